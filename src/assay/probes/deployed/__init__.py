"""What did making it smaller do to it?"""
