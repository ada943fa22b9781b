"""Text to batches: sources, tokenizer, corpus, packing, collating."""
