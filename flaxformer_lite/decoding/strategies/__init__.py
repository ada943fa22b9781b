"""How continuations are chosen: one file a strategy, chosen by a spec string."""
