"""Benchmarks: scripts that measure, and the committed results of their runs."""
