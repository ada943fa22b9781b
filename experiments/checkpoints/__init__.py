"""Checkpoints of a run: written atomically, verified when read, averaged."""
