"""`weighbridge warm`: compile what recordings and replays need, before any of them has to wait for it."""

from __future__ import annotations

import time

from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json
from weighbridge.core.errors import UsageError


def command(as_json: Json = False) -> None:
    """Compile the kernels of recordings and replays for this machine, once. Later commands find them compiled."""
    from weighbridge.core import jit
    from weighbridge.numerics.warm import warm

    begun = time.perf_counter()
    compiled = warm()
    seconds = round(time.perf_counter() - begun, 1)
    if jit.lost():
        raise UsageError(
            f"{jit.lost()} of the kernels were compiled but cannot be kept: no directory for them can be written; "
            "set NUMBA_CACHE_DIR to one that can, for later commands too"
        )
    if as_json:
        print_json({"compiled": compiled, "seconds": seconds})
    elif compiled:
        print(f"compiled {compiled} kernels in {seconds} s")
    else:
        print("nothing to do: all kernels are compiled for this machine")
