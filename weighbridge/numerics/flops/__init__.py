"""FLOPs of operations: one function by which tapes and chips count."""
