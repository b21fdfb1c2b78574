"""The algorithms: pure functions on tensors and arrays, one method per file."""
