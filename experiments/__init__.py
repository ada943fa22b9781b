"""The runner: files, flags, printing and processes around the library."""
