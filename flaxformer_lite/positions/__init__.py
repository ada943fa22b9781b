"""Where a token is: in the embedding, in queries and keys, or in the scores (§3.5)."""
