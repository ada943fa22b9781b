"""What training a config costs, computed from shapes alone."""
