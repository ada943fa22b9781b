"""What every model is built of: blocks, stacks of them, attention heads, matrices."""
