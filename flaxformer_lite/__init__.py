"""The encoder-decoder Transformer of "Attention Is All You Need" as pure-function Flax modules."""
