"""What an inspection knows: facts, policies, strata, segments, lineage."""
