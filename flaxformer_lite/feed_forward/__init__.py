"""Position-wise feed-forward networks (paper §3.3)."""
