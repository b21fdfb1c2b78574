"""The pages, one file each: what it shows, and what its forms do."""
