"""The transcript on disk: tapes, steps, state, tensors, jobs, and how each is read and written."""

__all__ = ["data", "parentage", "reader"]
