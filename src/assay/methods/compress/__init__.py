"""Smaller networks: which channels go, what they cost, and how the rest takes over."""
