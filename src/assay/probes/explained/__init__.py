"""Can its reasons be believed?"""
