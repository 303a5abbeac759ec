"""Execution of tapes: replay, comparison, scoring and openings, in confined worker processes."""
