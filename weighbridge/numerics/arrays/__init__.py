"""Dense tensors as loops see them: memory order, sums of squares, single elements of products."""
