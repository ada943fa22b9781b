"""Several processes that train one run together, by `jax.distributed`."""
