"""What a bound claims: `strict`, `calibrated`, or each where it belongs: `mixed`; `probabilistic`; in blocks; a unit's.

*Strict* bounds hold for any order of summation, with or without fused multiply-add, rounding to nearest. *Calibrated*
bounds are measured: in them, the growth gamma(n) of a strict bound is one unit roundoff whatever n is, and the whole
bound is multiplied by a factor per operation, the largest ratio of error to bound that was observed, times a safety
factor. A table of factors says where and how it was measured (`calibration_tables`); its digest stands in the manifest
draft, and a replay refuses a table that it does not have.

*Mixed* is the default: strict bounds for all that is computed in float64, so for every operation on float32, and
calibrated ones for all that is computed in float32, so for those on 16-bit types, for which no strict ones exist. Which
it is follows from the types on the tape; neither side chooses it for an operation. A mixed run that computes nothing in
16 bits needs no table, and replays whatever table there is.

*Probabilistic* is mixed with other bounds for what is computed in float64: they grow with the root of n, hold if
rounding errors are independent with mean zero, and fail with a stated probability (`weighbridge.core.bound_failure`).
Logs of wide models are smaller. Like calibrated ones, these bounds are no proof: sums whose rounding errors all have
one sign (of constants, say) can leave them.

*Blocked* is mixed with another way of computing in float64: products of matrices are split into blocks of the number of
terms in its name (`weighbridge.numerics.operations.prescribed_products`). Fewer roundings follow one another then, so
strict bounds, which are proven, are smaller. All machines split alike, because the draft names the policy.

*Unit* policies are mixed with products and convolutions of 16 bits that are those of the matrix unit in the name. Of a
unit that every processor computes fast (`weighbridge.numerics.units.fused_products`), they are so to the bit, on every
machine: such a product has no bound and no log, and a machine that has other bits did something else. Of a *truncating*
unit, the device that records has them, and others follow a log under the unit's own bounds
(`weighbridge.numerics.units.declared_products`). Other operations on 16-bit types keep their calibrated bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.numerics.conformance.calibration_tables import CalibrationTable, committed, measured_on, tables
from weighbridge.numerics.conformance.device_kind import device_model
from weighbridge.numerics.units import orders

BLOCKS = {"blocked-64": 64, "blocked-256": 256}
"""Policies that split products, and the least terms of their blocks; a name that exists keeps its number."""

UNITS = {"unit-vdpbf16ps": "vdpbf16ps", "unit-a100": "a100", "unit-h100": "h100"}
"""Policies under which products of 16-bit matrices are those of a unit, and that unit (`units.named`)."""
TRUNCATING = ("unit-a100", "unit-h100")
"""Those of units that truncate. No hardware is recorded under them yet: a unit's model stands in for it."""

ORDERS = "orders"
"""The draft's field of the orders of products under a truncating unit, if any is declared."""

NAMES = ("mixed", "strict", "calibrated", "probabilistic", *BLOCKS, "unit-vdpbf16ps")
"""The policies that any machine can record under; the first is the default."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How far two conforming results may lie apart.

    Attributes:
        name: One of `NAMES` or `TRUNCATING`.
        factors: Unless it is `strict`: factor of each operation's calibrated bound, by operator name; 8 where it was
            not measured.
        digest: Hex digest of the factors; empty for `strict`.
        known: Whether the factors are those that the run was recorded with.
        device: Model of the device on which the factors were measured; empty for `strict`.
        orders: Under a truncating unit, products in a chain by signature (`weighbridge.numerics.units.orders`).
    """

    name: str = "strict"
    factors: Mapping[str, float] = field(default_factory=dict)
    digest: str = ""
    known: bool = True
    device: str = ""
    orders: Mapping[str, int] = field(default_factory=dict)

    @property
    def calibrated(self) -> bool:
        """Whether all bounds are measured ones."""
        return self.name == "calibrated"

    @property
    def probabilistic(self) -> bool:
        """Whether bounds of what is computed in float64 hold with a stated probability only."""
        return self.name == "probabilistic"

    @property
    def block(self) -> int:
        """The least terms of the blocks that products in float64 are split into; 0 if they are not."""
        return BLOCKS.get(self.name, 0)

    @property
    def unit(self) -> str:
        """The matrix unit whose products of 16-bit matrices are computed; empty if none is prescribed."""
        return UNITS.get(self.name, "")

    @property
    def truncating(self) -> bool:
        """Whether that unit truncates, so that a log says where its results differ from those of other machines."""
        return self.name in TRUNCATING

    @property
    def narrow(self) -> bool:
        """Whether there are bounds for what is computed in float32: operations on 16-bit types."""
        return self.name != "strict"

    def at(self, wide: torch.dtype) -> Policy:
        """Returns the policy, `strict`, `calibrated` or `probabilistic`, of what is computed in a wide type.

        Raises:
            WeighbridgeError: It needs a table of factors that is not here (`replay.calibration.unknown`).
        """
        found = self
        if self.name == "mixed" or self.probabilistic or self.block or self.unit:
            float64 = self if self.probabilistic else STRICT
            found = float64 if wide is torch.float64 else replace(self, name="calibrated")
        if found.calibrated and not self.known:
            raise WeighbridgeError(
                "the run was recorded with a calibration table that this version does not have; if you accept its "
                "bounds, put the table into the directory that WEIGHBRIDGE_CALIBRATIONS names",
                code="replay.calibration.unknown",
            )
        return found

    def factor(self, operation: str) -> float:
        """Returns the factor for an operator name without namespace and overload."""
        return self.factors.get(operation, 8.0) if self.calibrated else 1.0


STRICT = Policy()


def calibrated(table: CalibrationTable | None = None) -> Policy:
    """Returns the policy of a calibration table, by default of the committed one."""
    table = committed() if table is None else table
    return Policy("calibrated", table.factors, table.digest, device=table.device)


def named(name: str, device: str | torch.device | None = None) -> Policy:
    """Returns the policy of a name.

    Args:
        name: One of `NAMES` or `TRUNCATING`.
        device: Where the run computes: the table is the one that was measured on such a device, if there is one.

    Raises:
        UsageError: There is none, or a table cannot be read.
    """
    if name == "strict":
        return STRICT
    if name in (*NAMES, *TRUNCATING):
        table = None if device is None else measured_on(device_model(device))
        return replace(calibrated(table), name=name)
    raise UsageError(
        f"there is no policy {name!r}; choose {', '.join(NAMES[:-1])} or {NAMES[-1]}, or with a unit's model "
        f"{' or '.join(TRUNCATING)}"
    )


def declared(draft: Mapping[str, Any]) -> Policy:
    """Returns the policy that a transcript's draft names, `calibration` being the digest of its table.

    Raises:
        UsageError: There is none of that name, or it has no such orders.
    """
    policy = named(str(draft.get("policy")))
    if ORDERS in draft:
        if not policy.truncating:
            raise UsageError(f"the draft declares orders of products, which the policy {policy.name!r} has not")
        policy = replace(policy, orders=orders.parse(draft[ORDERS]))
    table = tables().get(str(draft.get("calibration", "")))
    if policy.digest and table is not None:
        return replace(calibrated(table), name=policy.name, orders=policy.orders)
    return replace(policy, known=policy.digest == draft.get("calibration", ""))
