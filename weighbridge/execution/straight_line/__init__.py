"""Straight-line programs made from tapes: what a tape has once, a step need not find out anew."""
