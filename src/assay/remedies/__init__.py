"""Remedies, one file per cure: thin adapters from the vocabulary to the methods."""
