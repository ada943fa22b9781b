"""What every model is built of: blocks and stacks of them, attention heads, matrices."""
