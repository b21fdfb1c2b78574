"""What could wrong labels have done to it?"""
