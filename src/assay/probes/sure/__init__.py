"""Is it sure?"""
