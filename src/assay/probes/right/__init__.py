"""Is it right?"""
