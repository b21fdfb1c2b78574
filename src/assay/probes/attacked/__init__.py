"""Can it be attacked?"""
