"""A second Executor: what operations mean, written again in NumPy and JAX, and compared with transcripts of the first.

It shares with the first one what a transcript is (readers of tapes, records, logs and checkpoints), and nothing of what
an operation computes: no rule here calls PyTorch, and none reads the first one's table of rules.
"""
