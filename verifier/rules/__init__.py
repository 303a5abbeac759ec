"""Rules that training runs must keep: expressions over facts that the Verifier established by itself.

`schema` says which facts there are, `expression` checks and evaluates one rule, `ruleset` is the signed document,
`declarations` are what runs must say of themselves, and `judge` turns outcomes into findings. See docs/rules.md.
"""
