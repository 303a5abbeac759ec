"""Evidence that stands alone: one finding or one snapshot of an inspection, with all that a check offline needs.

`bundle` is the format, `export` makes a bundle from a Verifier's database, `verification` checks one without a network
and without a database, and `page` says for people what is in it.
"""
