"""The process and its devices: sharding, compilation, caches, malloc."""
