"""How many inspections are enough: detection probability, sample sizes and costs, as pure functions over arrays.

`domain.DetectionDomainError`, a ValueError, for inputs that mean nothing.
"""
