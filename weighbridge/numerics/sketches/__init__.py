"""Sketches of 16-bit outputs: what another machine needs to find the few elements that it rounds otherwise."""
