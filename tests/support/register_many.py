"""A process that registers chips in a database: `python -m support.register_many DB FIRST COUNT`."""

from __future__ import annotations

import sys

from support.custody_trade import ueid

from verifier.registry import Chip, Registry


def main() -> None:
    """Registers the chips with these numbers, one by one, and says each when it is durable."""
    registry = Registry(sys.argv[1])
    first, count = int(sys.argv[2]), int(sys.argv[3])
    for number in range(first, first + count):
        registry.register(Chip(ueid=ueid(number), address="localhost:1", owner="acme"))
        print(number, flush=True)


if __name__ == "__main__":
    main()
