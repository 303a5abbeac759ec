"""Disputes about one step: its tree, the judgement of one leaf, and the game that finds which leaf to judge."""
