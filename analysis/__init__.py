"""How many inspections are enough: detection probability, sample sizes, costs. Pure functions over NumPy arrays, no I/O.

The model and its symbols are those of Shavit, "What does it take to catch a Chinchilla?" (arXiv 2303.11341); `docs/paper.md`
says where the paper is off. Every parameter is keyword-only and broadcasts; every function raises
`domain.DetectionDomainError`, a ValueError, for inputs that mean nothing.
"""
