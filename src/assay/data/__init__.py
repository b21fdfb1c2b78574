"""Loading, bundled samples, corruptions."""
