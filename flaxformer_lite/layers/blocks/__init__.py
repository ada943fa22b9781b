"""What a layer is made of, and in which order."""
