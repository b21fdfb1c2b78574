"""What changes between one domain and another: measured, tested, weighed."""
