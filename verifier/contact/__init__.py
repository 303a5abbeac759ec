"""Everything the Verifier says to chips and Provers, and everything they send it."""
