"""Sealed workers: the image that one runs, and the launcher that measures and starts it."""
