"""A whole inspection in a sealed worker: the Verifier's case goes in, the Prover's files go in, one record comes out.

Up to the logs of the drawn chips an inspection is an ordinary one, on the Verifier's machine. What it knows then is a
*case* (`case`). The worker (`session_worker`) goes on from there with the files that the Prover committed to
(`inputs`), asks no party anything (`session`), and makes the record of the outcome.
"""
