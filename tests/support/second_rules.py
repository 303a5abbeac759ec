"""One operation by the rules of both Executors: what each rounds, within which bound, and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from weighbridge.execution.second.memory import Array, kind_of
from weighbridge.execution.second.rounding import canonical, to_float32
from weighbridge.execution.second.table import RULES, Call, Rule, Wide, base
from weighbridge.numerics.context import Context
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.random.variates import Draw
from weighbridge.numerics.rounding import contested, formats
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.transcript.tape import DTYPE_NAMES, Ref

Op = torch._ops.OpOverload
Tensor = torch.Tensor
KEY = (0x1234567890ABCDEF, 3 << 12, 1 << 40)
"""Of the draws of both."""


@dataclass(slots=True)
class First(Context):
    """Rounds without a log, and keeps what was rounded."""

    seen: list[tuple[Tensor, Bound]] = field(default_factory=list)

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """See `Context.rounded`."""
        self.seen.append((wide.clone(), bound))
        return formats.to_format(wide, dtype)

    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        """See `Context.exact`."""
        if checksum is None:
            contested.canonicalise(bits)

    def draw(self, generator: torch.Generator | None, device: torch.device) -> Draw:
        """See `Context.draw`."""
        return Draw(*KEY)

    def host(self, value: bool | int | float) -> bool | int | float:
        """See `Context.host`."""
        return value


@dataclass(slots=True)
class Second:
    """The same for the second Executor."""

    seen: list[Wide] = field(default_factory=list)

    def rounded(self, wide: Wide, ref: Ref | None = None) -> Array:
        """See `Accounting.rounded`."""
        self.seen.append(wide)
        return to_float32(np.asarray(wide.value))

    def exact(self, value: Array, ref: Ref | None = None) -> Array:
        """See `Accounting.exact`."""
        return canonical(value)

    def draw(self) -> tuple[int, int, int]:
        """See `Accounting.draw`."""
        return KEY


def table() -> dict[str, Rule]:
    """The table of the second Executor's rules. It is filled, and JAX loaded, by the first call."""
    import weighbridge.execution.second.rules

    assert weighbridge.execution.second.rules.FAMILIES
    return RULES


def first(op: Op, args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], list[tuple[Tensor, Bound]]]:
    """What the first Executor makes: results, and what it rounded."""
    context = First()
    with torch.no_grad():
        out = evaluate(op, args, kwargs, context)
    return list(out) if isinstance(out, (list, tuple)) else [out], context.seen


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        kind_of(DTYPE_NAMES[value.dtype])  # raises for 16-bit floats, which NumPy lacks
        return value.detach().numpy().copy()
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return kind_of(DTYPE_NAMES[value]) if isinstance(value, torch.dtype) else value


def _ref(value: Any) -> Ref | None:
    if not isinstance(value, Tensor):
        return None
    return 0, DTYPE_NAMES[value.dtype], tuple(value.shape), tuple(value.stride()), 0


def second(op: Op, args: Any, kwargs: dict[str, Any], results: list[Any]) -> tuple[list[Any], list[Wide]]:
    """What the second Executor makes of operands as they were: results, and what it rounded.

    Args:
        op: The overload.
        args: Positional operands.
        kwargs: Keyword operands.
        results: What the first one made, for types and shapes, as a tape has them.
    """
    from weighbridge.execution.second.executor import settled

    key, changes = base(f"{op._schema.name.removeprefix('aten::')}.{op._overloadname or 'default'}")
    rule, accounting = RULES[key], Second()
    operands = rule.bind([_plain(a) for a in args], {k: _plain(v) for k, v in kwargs.items()})
    refs = [_ref(value) for value in results]
    call = Call(key.partition(".")[0], operands, refs, changes, accounting)
    assert rule.function is not None
    with np.errstate(all="ignore"):
        given = rule.function(call)
        found = [settled(r, ref, rule, call) for r, ref in zip(given if isinstance(given, list) else [given], refs,
                                                              strict=True)]  # fmt: skip
    return found, accounting.seen
