"""Does it stay right?"""
