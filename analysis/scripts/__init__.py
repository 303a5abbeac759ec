"""Scripts that an analyst can copy: each is short, runs as it is, and uses nothing but `analysis`."""
