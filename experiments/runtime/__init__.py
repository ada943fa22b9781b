"""The process and its devices."""
