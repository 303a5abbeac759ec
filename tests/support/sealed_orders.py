"""Orders of sealed jobs for tests."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from weighbridge.attest.sealed_order import Order

FIELDS = ("verifier_nonce", "prover_nonce", "commitment", "prover", "aggregator", "measurement")


def sealed_order(**changed: Any) -> Order:
    """Returns an order with random fields, but for those that are given."""
    made = Order(**{name: os.urandom(48 if name == "measurement" else 32) for name in FIELDS}, steps=(3, 9))
    return replace(made, **changed)
