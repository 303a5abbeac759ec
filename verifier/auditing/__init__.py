"""Audits by many: auditors replay drawn segments of a transcript, commit to what they found, and a referee compares."""
