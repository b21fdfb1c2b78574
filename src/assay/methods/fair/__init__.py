"""How differently people are treated: measured, and traded against error."""
