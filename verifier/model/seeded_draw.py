"""Which chips an inspection looks at: a draw without replacement, recomputable from the recorded seed.

The draw depends on no library's random generator. With `||` for concatenation and all integers big-endian:

1. The population is the set of registered UEIDs, sorted as byte strings.
2. The stream is BLAKE3 in extended-output mode over `weighbridge/sampling/1` || 0x00 || seed, read as 64-bit integers.
3. A number below n is the next integer x of the stream with x < n * floor(2^64 / n), reduced modulo n; others are
   skipped.
4. For k = 0, 1, ... the k-th chip drawn is the one at place k + (number below C - k), which changes places with the one
   at place k (the first steps of a Fisher-Yates shuffle).

So a longer draw with the same seed begins with the shorter one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from blake3 import blake3

from weighbridge.core.errors import UsageError

_DOMAIN = b"weighbridge/sampling/1\x00"


def draw(population: Iterable[bytes], samples: int, seed: bytes) -> list[bytes]:
    """Draws `samples` different members of `population`, in the order drawn.

    Args:
        population: UEIDs of the registered chips, in any order, each once.
        samples: How many to draw; at least 1 and at most the size of the population.
        seed: 16 to 64 bytes, kept in the report.

    Raises:
        UsageError: The seed has a wrong length, a UEID occurs twice, or `samples` is out of range.
    """
    places = sorted(population)
    if not 16 <= len(seed) <= 64:
        raise UsageError(f"a sampling seed has 16 to 64 bytes, not {len(seed)}; pass none to have one made")
    if len(set(places)) != len(places):
        raise UsageError("a chip occurs twice in the population; register each chip once")
    if not 1 <= samples <= len(places):
        raise UsageError(f"cannot sample {samples} of {len(places)} registered chips; register more or ask for fewer")
    below = _numbers(seed)
    for place in range(samples):
        other = place + below(len(places) - place)
        places[place], places[other] = places[other], places[place]
    return places[:samples]


def _numbers(seed: bytes) -> Callable[[int], int]:
    """Returns a function that gives the next uniform number below its argument."""
    stream = blake3(_DOMAIN + seed)
    offset = 0

    def below(bound: int) -> int:
        nonlocal offset
        limit = (1 << 64) // bound * bound
        while True:
            value = int.from_bytes(stream.digest(8, seek=offset), "big")
            offset += 8
            if value < limit:
                return value % bound

    return below
