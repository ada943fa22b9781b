"""What parameters are at first."""
