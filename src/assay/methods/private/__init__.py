"""What answers and features give away, and how less of it is given."""
