"""Vendor and composite overloads, rewritten into overloads that have rules."""
