"""Rounded operators by family: each module states its lines of the table of rules, their bounds, sources and words.

Notation and contract of a bound are those of `bounds`. Examples of every overload stand in a module of the same name in
tests/support/operator_examples, because they are made of random operands and formulas in long doubles, which neither
recording nor replay needs.
"""
