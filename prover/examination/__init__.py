"""Examines a script before it is recorded: what would be refused, reported or slow, and what the recording costs."""
