"""The draw of chips: commit, close, open, and recompute."""
