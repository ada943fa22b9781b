"""The demo in a browser."""
