"""What happens within one position, each by itself (paper §3.3)."""
