"""What a search of a gallery finds: how early, and of queries that are seen in part."""
