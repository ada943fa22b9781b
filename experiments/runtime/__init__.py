"""The process and its devices: sharding, compilation and its cache, memory."""
