"""Keeps transcripts: declares them, hands them out, recomputes what a Verifier asks for, and uploads them."""
