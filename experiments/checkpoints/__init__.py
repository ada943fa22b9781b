"""The saved states of a run: written whole, verified when read, averaged."""
