"""The data pipeline: sources, tokenizers, corpus, packing, collation."""
