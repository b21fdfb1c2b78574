"""What a search of a gallery finds, how early and of queries seen in part; and how one for places is trained."""
