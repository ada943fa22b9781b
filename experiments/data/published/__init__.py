"""The tokenizers of published checkpoints."""
