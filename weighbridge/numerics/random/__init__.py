"""Counter-based randomness: the same variates on every device."""
