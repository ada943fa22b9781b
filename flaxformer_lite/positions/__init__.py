"""Where a token is: told at the embedding, in queries and keys, or in the scores (§3.5)."""
