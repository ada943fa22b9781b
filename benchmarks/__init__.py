"""The project beside its peers, on the same text and the same machine."""
