"""The files of a run: its config, logs and result, and the model it trained."""
