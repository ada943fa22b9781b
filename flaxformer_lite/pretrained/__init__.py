"""Published checkpoints: loads a folder as a model and variables, and converts back."""
