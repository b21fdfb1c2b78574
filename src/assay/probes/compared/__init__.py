"""Does it compare well?"""
