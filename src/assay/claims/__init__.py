"""Published statements and the studies that test them, one file per source."""
