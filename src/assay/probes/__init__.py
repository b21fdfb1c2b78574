"""Probes, one file per question, in folders by theme: thin adapters from the vocabulary to the methods."""
