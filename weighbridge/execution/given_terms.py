"""Terms of replays that take collectives' results as given. They are apart so that naming them loads no PyTorch."""

GIVEN = "match given collectives"
"""The verdict of a replay that matches if the results that it took as given are right."""

MAX_OPENINGS = 1 << 16
"""Most chunks that one request may have opened."""
