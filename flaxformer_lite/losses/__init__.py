"""Losses: what each label costs, by the logits before it."""
