"""What a bound claims: `strict` or `calibrated` (design, "What a bound claims").

*Strict* bounds hold for any order of summation, with or without fused multiply-add, rounding to nearest. *Calibrated*
bounds are measured: in them, the growth gamma(n) of a strict bound is one unit roundoff whatever n is, and the whole
bound is multiplied by a factor per operation, the largest ratio of error to bound that was observed, times a safety
factor. The committed table `calibration.json` says where and how it was measured; its digest stands in the manifest
draft, and a replay refuses a table that it does not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from weighbridge.core.digests import record_digest
from weighbridge.core.errors import UsageError

TABLE = Path(__file__).parent / "calibration.json"


@dataclass(frozen=True, slots=True)
class Policy:
    """How far two conforming results may lie apart.

    Attributes:
        name: `strict` or `calibrated`.
        factors: For `calibrated`: factor of each operation's bound, by operator name; 8 where it was not measured.
        digest: Hex digest of the factors; empty for `strict`.
    """

    name: str = "strict"
    factors: Mapping[str, float] = field(default_factory=dict)
    digest: str = ""

    @property
    def calibrated(self) -> bool:
        """Whether bounds are measured ones."""
        return self.name == "calibrated"

    def factor(self, operation: str) -> float:
        """Returns the factor for an operator name without namespace and overload."""
        return self.factors.get(operation, 8.0) if self.calibrated else 1.0


STRICT = Policy()


@cache
def calibrated() -> Policy:
    """Returns the policy of the committed calibration table."""
    table = json.loads(TABLE.read_text())
    factors = {str(k): float(v["factor"]) for k, v in table["operations"].items()}
    return Policy("calibrated", factors, record_digest("calibration/1", factors).hex())


def named(name: str) -> Policy:
    """Returns the policy of a name.

    Raises:
        UsageError: There is none.
    """
    if name == "strict":
        return STRICT
    if name == "calibrated":
        return calibrated()
    raise UsageError(f"there is no policy {name!r}; choose strict or calibrated")
