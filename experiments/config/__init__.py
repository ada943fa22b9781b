"""What the fields of a config may be, and what follows from them."""
