"""Is it fair?"""
