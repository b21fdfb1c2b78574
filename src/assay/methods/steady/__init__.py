"""What an answer hangs on that it should not: where things stand in a picture."""
