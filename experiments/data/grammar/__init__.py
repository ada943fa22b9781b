"""A synchronous grammar: one tree a sentence, realised by `english` and `german`."""
