"""Published checkpoints as runs, and runs in the formats of other programs."""
