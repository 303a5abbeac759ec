"""`weighbridge registry ...`: the Verifier's registry of chips."""
