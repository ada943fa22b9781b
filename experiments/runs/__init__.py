"""A run's directory: its config, logs and result, and the model it trained."""
