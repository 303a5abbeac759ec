"""Detection probability: what an inspection of some chips says about all of them. Pure functions, no I/O."""
