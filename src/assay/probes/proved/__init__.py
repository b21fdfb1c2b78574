"""What is proved?"""
