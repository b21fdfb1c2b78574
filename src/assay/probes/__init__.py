"""Probes, one file per question: thin adapters from the vocabulary to the methods."""
