"""Layers, heads and small architectures."""
