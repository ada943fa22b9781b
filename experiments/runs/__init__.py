"""The files of a run, and the model it trained."""
