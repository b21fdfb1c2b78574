"""Does it keep secrets?"""
