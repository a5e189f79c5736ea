"""Sizes from which on a cell is computed in another way; known without torch."""

LARGEST_LOGITS = 2**28
"""Logits up to which head and loss are left to autograd: 1 GB in float32. Larger ones are never held whole (the 128k
vocabulary at 8,192 tokens): then head and loss are computed piece by piece, their gradients within the forward pass."""
