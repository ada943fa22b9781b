"""The edge to the user: flags, messages, what is shown, signals."""
