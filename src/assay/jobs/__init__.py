"""What a command does, one file or folder each: audit, compare, verify, seal, cure, explain, rank, test claims."""
