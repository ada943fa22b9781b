"""A trained model in the formats of other programs: one file a format."""
