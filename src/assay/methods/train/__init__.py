"""How models are trained: the one loop that every training method shares, and the methods themselves."""
