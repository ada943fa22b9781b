"""What the section `optimizer` of a config names, made with optax."""
