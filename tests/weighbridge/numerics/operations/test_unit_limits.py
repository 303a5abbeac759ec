"""Bounds of operations whose products are a truncating unit's: they hold, have the same bits on both sides, and know
what the unit makes of single elements."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.special_values import Alone

from weighbridge.core.errors import RefusedOperationError
from weighbridge.execution.unit_adjudication import Adjudication
from weighbridge.numerics.conformance import bound_policy
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.rounding import narrow
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.units import declared_products, injection
from weighbridge.numerics.units.orders import signature

aten = torch.ops.aten
Tensor = torch.Tensor
UNITS = ("a100", "h100")


class Noting(Alone):
    """Notes wide results and their bounds."""

    def __init__(self, policy: bound_policy.Policy) -> None:
        super().__init__()
        self.policy = policy
        self.noted: list[tuple[Tensor, Bound]] = []

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        self.noted.append((wide.clone(), bound))
        return super().rounded(wide, bound, dtype)


def policy_of(unit: str, **orders: int) -> bound_policy.Policy:
    return replace(bound_policy.named(f"unit-{unit}"), orders=orders)


def noted(policy: bound_policy.Policy, op: Any, *args: Any, device: str = "", **kwargs: Any) -> list[Any]:
    """Returns (wide result, bound) of each result, of a device with a unit, or of a replayer."""
    context = Noting(policy)
    here: AbstractContextManager[Any] = injection.injected(device, policy.orders) if device else nullcontext()
    with here:
        evaluate(op, [a.clone() if isinstance(a, Tensor) else a for a in args], kwargs, context)
    return context.noted


def some(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """One-signed, so that truncation errs in one direction."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).abs().to(dtype)


CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "mm": (aten.mm.default, (some(40, 900), some(900, 50)), {}),
    "mm of fp16": (aten.mm.default, (some(40, 900, dtype=torch.half), some(900, 50, dtype=torch.half)), {}),
    "bmm": (aten.bmm.default, (some(4, 20, 700), some(4, 700, 30)), {}),
    "mv": (aten.mv.default, (some(400, 900), some(900)), {}),
    "addmm": (aten.addmm.default, (some(50), some(40, 900), some(900, 50)), {}),
    "addmm scaled": (aten.addmm.default, (some(40, 50), some(40, 900), some(900, 50)), {"alpha": -0.3, "beta": 3.0}),
    "addmm of nothing": (aten.addmm.default, (some(40, 50), some(40, 900), some(900, 50)), {"beta": 0}),
    "baddbmm": (aten.baddbmm.default, (some(4, 20, 30), some(4, 20, 700), some(4, 700, 30)), {"alpha": 0.5}),
    "addmv": (aten.addmv.default, (some(400), some(400, 900), some(900)), {"beta": 2.0}),
    "addmm in place": (aten.addmm_.default, (some(40, 50), some(40, 900), some(900, 50)), {}),
    "convolution": (
        aten.convolution.default,
        (some(2, 64, 9, 9), some(32, 64, 3, 3), some(32), [1, 1], [1, 1], [1, 1], False, [0, 0], 1), {},
    ),
    "transposed": (
        aten.convolution.default,
        (some(2, 64, 9, 9), some(64, 16, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [1, 1], 2), {},
    ),
    "gradients": (
        aten.convolution_backward.default,
        (some(2, 32, 9, 9), some(2, 64, 9, 9), some(32, 64, 3, 3), [32], [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
         [True, True, True]), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", CALLS)
def test_both_sides_are_within_the_same_bound(name: str, unit: str) -> None:
    op, args, kwargs = CALLS[name]
    policy = policy_of(unit)
    device, replayer = (noted(policy, op, *args, device=where, **kwargs) for where in (unit, ""))
    assert len(device) == len(replayer) == (3 if name == "gradients" else 1)
    differ = 0
    for (x, bound), (y, again) in zip(device, replayer, strict=True):
        assert (bound.rel, bound.absolute, bound.products, bound.exact) == (0.0, 0.0, None, False)
        assert torch.equal(bound.factors[0], again.factors[0]), "the same bits on both sides"
        assert x.dtype == y.dtype == bound.factors[0].dtype == torch.float32
        assert bool(((x - y).abs() <= bound.factors[0].expand(x.shape) / 2).all())
        differ += int((x != y).sum())
        places = torch.meshgrid(*(torch.arange(n) for n in x.shape), indexing="ij")
        assert again.judge is not None
        found = again.judge.at([each.flatten() for each in places])
        assert torch.equal(found.view(x.shape), x), "a replayer knows what the unit has"
        few = [each.flatten()[::29] for each in places]
        assert torch.equal(again.judge.at(few), x[tuple(few)])
    assert differ, "a unit that truncates has other sums"


def test_long_sums_are_prescribed_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared_products, "LONGEST", 899)
    monkeypatch.setattr("weighbridge.numerics.operations.unit_limits.LONGEST", 899)
    for name in ("mm", "addmm", "mv"):
        op, args, kwargs = CALLS[name]
        device, replayer = (noted(policy_of("h100"), op, *args, device=where, **kwargs) for where in ("h100", ""))
        (x, bound), (y, _) = device[0], replayer[0]
        assert torch.equal(x, y)
        assert (bound.exact, bound.factors) == (True, ())
    short = noted(policy_of("h100"), *CALLS["bmm"][:1], *CALLS["bmm"][1])
    assert not short[0][1].exact


def test_declared_orders_are_computed_and_judged() -> None:
    a, b = some(40, 900), some(900, 50)
    orders = {signature(a, b): 128}
    ordered = replace(policy_of("h100"), orders=orders)
    (x, _), (one, _) = noted(ordered, aten.mm.default, a, b, device="h100")[0], noted(
        policy_of("h100"), aten.mm.default, a, b, device="h100"
    )[0]  # fmt: skip
    assert not torch.equal(x, one)
    ((_, bound),) = noted(ordered, aten.mm.default, a, b)
    places = [t.flatten() for t in torch.meshgrid(torch.arange(40), torch.arange(50), indexing="ij")]
    assert bound.judge is not None
    assert torch.equal(bound.judge.at(places).view(x.shape), x)
    few = [t[:30] for t in places]
    assert torch.equal(bound.judge.at(few), x.flatten()[:30])
    assert torch.equal(bound.judge.at(few, chain=0), one.flatten()[:30])
    assert not torch.equal(bound.judge.at(places, unit="a100", chain=0).view(x.shape), one)


def test_nothing_is_multiplied_of_empty_operands_and_types_are_not_mixed() -> None:
    policy = policy_of("h100")
    ((x, _),) = noted(policy, aten.mm.default, some(3, 4)[:, :0], some(4, 5)[:0])
    assert x.shape == (3, 5)
    assert not x.any()
    with pytest.raises(RefusedOperationError, match="use one type"):
        noted(policy, aten.mm.default, some(3, 4), some(4, 5, dtype=torch.half))


def test_float32_has_the_bounds_of_mixed() -> None:
    x, w = some(20, 30).float(), some(30, 10).float()
    ((wide, bound),) = noted(policy_of("h100"), aten.mm.default, x, w)
    ((other, mixed),) = noted(bound_policy.named("mixed"), aten.mm.default, x, w)
    assert torch.equal(wide, other)
    assert (bound.rel, bound.judge) == (mixed.rel, None)


@pytest.mark.parametrize("lies", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half])
def test_a_product_that_is_not_looked_at_accuses_no_party(dtype: torch.dtype, lies: bool) -> None:
    """An infinite product times 0 has no finite bound, so the log may name neighbours of what is added; none is it."""
    a = some(20, 64, dtype=dtype)
    a[:, 3] = float("inf")
    call = aten.addmm.default, some(20, 9, dtype=dtype), a, some(64, 9, dtype=dtype)
    device, replayer = (noted(policy_of("h100"), *call, device=where, alpha=0) for where in ("h100", ""))
    (x, bound), (y, again) = device[0], replayer[0]
    assert torch.equal(x, y)
    if lies:
        x[4, 5] *= 1 + 0.7 * torch.finfo(dtype).eps  # the next value
    logged = narrow.record(x, bound, dtype, 0, 0).entries
    followed, made = narrow.follow(y, again, dtype, logged), Adjudication()
    made.judge((1, "addmm", 0), y, again, followed, logged)
    assert (followed.followed, followed.inadmissible, made.wrong) == (int(lies), 0, int(lies))
