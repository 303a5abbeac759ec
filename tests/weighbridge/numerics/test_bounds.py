"""Error bounds hold: against narrower arithmetic, against other orders of summation, and against wider arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from examples import EXAMPLES, STYLES, Example, Maker
from weighbridge.numerics import bounds, bounds_pointwise, rounding
from weighbridge.numerics.evaluate import Context, evaluate
from weighbridge.numerics.randomness import Draw
from weighbridge.numerics.rounding import Bound

Tensor = torch.Tensor


class Listening(Context):
    """A context that keeps every wide result with its bound, and rounds plainly."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, Bound]] = []

    def rounded(self, wide: Tensor, bound: Bound) -> Tensor:
        self.seen.append((wide.clone(memory_format=torch.preserve_format), bound))
        return rounding.round_plain(wide)[0]

    def exact(self, bits: Tensor) -> None:
        raise AssertionError("a rounded operation is not exact")

    def draw(self, generator: torch.Generator | None, device: torch.device) -> Draw:
        raise AssertionError("a rounded operation draws nothing")

    def host(self, value: bool | int | float) -> bool | int | float:
        raise AssertionError("a rounded operation hands out nothing")


def copied(value: Any) -> Any:
    """Operands that an in-place operation may change."""
    if isinstance(value, Tensor):
        return value.clone(memory_format=torch.preserve_format)
    return [copied(v) for v in value] if isinstance(value, list) else value


def listen(example: Example) -> tuple[list[tuple[Tensor, Bound]], list[Tensor]]:
    """Returns the wide results with their bounds, and the float results of the operation as it is evaluated here."""
    context = Listening()
    with torch.backends.mkldnn.flags(enabled=False):
        out = evaluate(example.op, [copied(a) for a in example.args], copied(example.kwargs), context)
    returned = out if isinstance(out, (tuple, list)) else [out]
    return context.seen, [t for t in returned if isinstance(t, Tensor) and t.is_floating_point()]


def error_bound(wide: Tensor, bound: Bound) -> Tensor:
    """The bound of every element, in the logical shape of `wide`."""
    e = rounding.dense_bound(wide, bound)
    return e.as_strided(wide.shape, wide.stride())


CASES = [(key, style) for key in sorted(EXAMPLES) for style in STYLES]


@pytest.mark.parametrize("key", sorted(EXAMPLES))
def test_there_is_one_finite_bound_for_each_floating_result(key: str) -> None:
    for example in EXAMPLES[key](Maker("plain")):
        seen, returned = listen(example)
        assert len(seen) >= len(returned) >= 1
        for wide, bound in seen:
            assert wide.dtype == torch.float64
            e = error_bound(wide, bound)
            assert bool((e >= 0).all())
            assert bool(torch.isfinite(e).all())


@pytest.fixture
def single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds for arithmetic in float32 instead of float64."""
    monkeypatch.setattr(bounds, "U", 2.0**-24)
    monkeypatch.setattr(bounds_pointwise, "U", 2.0**-24)
    monkeypatch.setattr(bounds, "_unless_exact", lambda total, least: total)


EXACT_SQUARES = {"tanh_backward.default"}
"""Rest on squares of float32 values, which float64 holds and float32 does not; see the test against long doubles."""


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize(("key", "style"), [case for case in CASES if case[0] not in EXACT_SQUARES])
def test_the_bound_for_float32_covers_the_float32_kernel(key: str, style: str) -> None:
    """The same kernels and formulas with a coarser rounding, beside which float64 is as good as the exact result."""
    for example in EXAMPLES[key](Maker(style, seed=1)):
        seen, _ = listen(example)
        with torch.backends.mkldnn.flags(enabled=False):
            args = [copied(a) for a in example.args]
            out = example.op(*args, **copied(example.kwargs))
        narrow = [
            t for t in (out if isinstance(out, (tuple, list)) else [out]) if t is not None and t.is_floating_point()
        ]
        if len(seen) > len(narrow):  # running statistics
            narrow += [args[3], args[4]]
        assert len(narrow) == len(seen)
        for number, ((wide, bound), t) in enumerate(zip(seen, narrow, strict=True)):
            # Where float32 runs out of range, float64 does not: intermediate results like exp(x) included.
            inside = ((wide.abs() > 1e-32) & (wide.abs() < 1e32)) | (wide == 0)
            error, e = (t.double() - wide).abs()[inside], error_bound(wide, bound)[inside]
            worst = float((error / e).nan_to_num(0).max()) if error.numel() else 0.0
            assert bool((error <= e).all()), f"{example.op} result {number}: {worst:.2f} times its bound"
