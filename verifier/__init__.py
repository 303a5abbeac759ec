"""The Verifier: chip registry, sampling, inspections, checks and reports. It works from bytes alone."""
