"""Linear layers of attention and feed-forward networks."""
