"""Explanations of single predictions, and trials that tell whether they can be believed."""
