"""The command line: flags, messages, progress and signals."""
