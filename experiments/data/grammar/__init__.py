"""A synchronous grammar: a sentence is one tree, which `english` and `german` each read aloud."""
