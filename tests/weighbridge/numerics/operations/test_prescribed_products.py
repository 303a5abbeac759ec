"""Which operations are split under policies with blocks, what they give then, and which bounds they have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from prover.capture.generators import Generators
from prover.capture.recording_context import Recording
from weighbridge.numerics.arrays.blocked_products import roundings
from weighbridge.numerics.bounds import Call
from weighbridge.numerics.conformance import bound_policy
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.families import products
from weighbridge.numerics.operations import prescribed_products
from weighbridge.numerics.operations.rounded import wide_results
from weighbridge.numerics.rounding.bound import Bound, dense_bound

aten = torch.ops.aten
Tensor = torch.Tensor
BLOCKED = tuple(bound_policy.BLOCKS)
TERMS = 700
"""More than a block of any policy, and a multiple of none."""


class Noting(Recording):
    """Notes wide results and their bounds."""

    def __init__(self, policy: str) -> None:
        super().__init__(1, Generators(), bound_policy.named(policy))
        self.wide: list[Tensor] = []
        self.bounds: list[Tensor] = []
        self.begin(0)

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        self.wide.append(wide.clone())
        self.bounds.append(dense_bound(wide, bound).view_as(wide).clone())
        return super().rounded(wide, bound, dtype)


def noted(policy: str, op: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Returns the wide result and its bound; operands are copied, as they may be changed."""
    context = Noting(policy)
    evaluate(op, [a.clone() if isinstance(a, Tensor) else a for a in args], kwargs, context)
    (wide,), (bound,) = context.wide, context.bounds
    return wide, bound


@dataclass(frozen=True)
class Case:
    op: Any
    shapes: tuple[tuple[int, ...], ...]
    options: dict[str, float] = field(default_factory=dict)
    changes: bool = False


K = TERMS
CASES = {
    "mm": Case(aten.mm.default, ((5, K), (K, 3))),
    "bmm": Case(aten.bmm.default, ((2, 5, K), (2, K, 3))),
    "mv": Case(aten.mv.default, ((5, K), (K,))),
    "addmm": Case(aten.addmm.default, ((3,), (5, K), (K, 3))),
    "addmm scaled": Case(aten.addmm.default, ((5, 3), (5, K), (K, 3)), {"beta": 0.5, "alpha": -3.0}),
    "addmm without what is added": Case(aten.addmm.default, ((3,), (5, K), (K, 3)), {"beta": 0}),
    "addmm in place": Case(aten.addmm_.default, ((5, 3), (5, K), (K, 3)), changes=True),
    "baddbmm": Case(aten.baddbmm.default, ((2, 1, 3), (2, 5, K), (2, K, 3)), {"alpha": 0.3}),
    "baddbmm in place": Case(aten.baddbmm_.default, ((2, 5, 3), (2, 5, K), (2, K, 3)), {"beta": 2.0}, changes=True),
    "addmv": Case(aten.addmv.default, ((5,), (5, K), (K,)), {"beta": -1.0}),
}


def operands(case: Case) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    made = [torch.randn(shape, generator=generator) for shape in case.shapes]
    if case.options.get("beta") == 0:
        made[0].fill_(torch.nan)
    return made


def exact(case: Case, made: list[Tensor]) -> Tensor:
    """The result with long doubles in the place of exact numbers."""
    import numpy as np

    *added, a, b = (t.numpy().astype(np.longdouble) for t in made)
    total = a @ b if b.ndim == 1 else np.einsum("...ik,...kj->...ij", a, b)
    total = total * np.longdouble(case.options.get("alpha", 1.0))
    if added and case.options.get("beta") != 0:
        total = total + added[0] * np.longdouble(case.options.get("beta", 1.0))
    return torch.from_numpy(total.astype(np.float64))


@pytest.mark.parametrize("policy", BLOCKED)
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_results_lie_within_bounds_that_count_the_roundings_of_blocks(case: Case, policy: str) -> None:
    made = operands(case)
    wide, bound = noted(policy, case.op, *made, **case.options)
    whole, wider = noted("mixed", case.op, *made, **case.options)
    truth = exact(case, made)
    assert ((wide - truth).abs() <= bound + truth.abs() * 2.0**-53).all()
    assert not torch.equal(wide, whole), "a split product of normal numbers has other last digits"
    counted, extra = roundings(K, bound_policy.BLOCKS[policy]), 6 if "add" in case.op._schema.name else 2
    assert float((bound / wider).max()) == pytest.approx((counted + extra) / (K + extra), rel=1e-6)


@pytest.mark.parametrize("policy", BLOCKED)
@pytest.mark.parametrize("case", [c for c in CASES.values() if not c.changes], ids=lambda case: case.op._schema.name)
def test_steps_that_run_as_programs_split_alike(case: Case, policy: str) -> None:
    made = operands(case)
    (found,) = wide_results(case.op, made, dict(case.options), torch.float64, bound_policy.named(policy))
    assert torch.equal(found, noted(policy, case.op, *made, **case.options)[0])


@pytest.mark.parametrize("terms", [0, 1, 64])
@pytest.mark.parametrize("policy", BLOCKED)
def test_sums_of_no_more_than_a_block_keep_their_bits_and_bounds(terms: int, policy: str) -> None:
    x, w, b = torch.randn(4, terms), torch.randn(terms, 3), torch.randn(3)
    for op, args in ((aten.mm.default, (x, w)), (aten.addmm.default, (b, x, w)), (aten.mv.default, (x, w[:, 0]))):
        blocked, mixed = noted(policy, op, *args), noted("mixed", op, *args)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(blocked, mixed, strict=True))


def test_operands_of_any_strides_are_split_alike() -> None:
    x, w = torch.randn(5, K), torch.randn(K, 3)
    usual, bound = noted("blocked-64", aten.mm.default, x, w)
    for a in (x, x.T.contiguous().T, torch.cat([x, x], 1)[:, :K]):
        for b in (w, w.T.contiguous().T, torch.cat([w, w], 1)[:, :3]):
            found, _ = noted("blocked-64", aten.mm.default, a, b)
            assert found.is_contiguous()
            assert ((found - usual).abs() <= 2 * bound).all()


def test_infinities_and_what_is_no_number_are_where_they_were() -> None:
    x, w = torch.randn(4, K), torch.randn(K, 3)
    x[0, 3], x[1, 9], x[2, 5], x[2, 600] = torch.inf, torch.nan, torch.inf, -torch.inf
    w[5], w[600] = 1.0, 1.0
    mine, theirs = noted("blocked-64", aten.mm.default, x, w)[0], noted("mixed", aten.mm.default, x, w)[0]
    assert torch.equal(mine.isnan(), theirs.isnan())
    assert torch.equal(mine[0], theirs[0])
    zero = {"alpha": 0, "beta": 1}
    added = noted("blocked-64", aten.addmm.default, torch.ones(3), x, w, **zero)[0]
    assert torch.equal(added, noted("mixed", aten.addmm.default, torch.ones(3), x, w, **zero)[0])


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (aten.mm.default, ((4, 700), (701, 3))),
        (aten.mm.default, ((4, 700), (699, 3))),
        (aten.mm.default, ((2, 4, 700), (700, 3))),
        (aten.mm.default, ((4, 700), (2, 700, 3))),
        (aten.bmm.default, ((2, 4, 700), (3, 700, 3))),
        (aten.bmm.default, ((4, 700), (700, 3))),
        (aten.mv.default, ((4, 700), (701,))),
        (aten.mv.default, ((4, 700), (700, 1))),
        (aten.addmm.default, ((7,), (4, 700), (700, 3))),
        (aten.addmm.default, ((1, 4, 3), (4, 700), (700, 3))),
        (aten.addmm_.default, ((3,), (4, 700), (700, 3))),
        (aten.addmm_.default, ((2, 4, 3), (4, 700), (700, 3))),
        (aten.baddbmm_.default, ((2, 1, 3), (2, 4, 700), (2, 700, 3))),
    ],
    ids=str,
)  # fmt: skip
def test_operands_that_do_not_fit_are_refused_as_they_are_without_blocks(op: Any, shapes: Any) -> None:
    """A tape comes from a Prover: blocks must not make a product of what has none."""
    made = [torch.randn(shape) for shape in shapes]
    for policy in ("mixed", *BLOCKED):
        with pytest.raises((RuntimeError, IndexError)):
            noted(policy, op, *made)


def test_16_bits_and_other_operations_are_evaluated_as_they_were() -> None:
    half = torch.randn(4, K).bfloat16(), torch.randn(K, 3).bfloat16()
    image, filters = torch.randn(1, 30, 6, 6), torch.randn(2, 30, 3, 3)
    others: list[tuple[Any, list[Any]]] = [
        (aten.mm.default, [*half]),
        (aten.dot.default, [torch.randn(K), torch.randn(K)]),
        (aten.sum.dim_IntList, [torch.randn(4, K), [1]]),
        (aten.convolution.default, [image, filters, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1]),
    ]
    for op, args in others:
        blocked, mixed = noted("blocked-64", op, *args), noted("mixed", op, *args)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(blocked, mixed, strict=True)), op


def test_who_gives_no_block_has_the_bound_of_whole_products() -> None:
    """A user's rule that takes a bound from here is of an operator that is not split."""
    a, b = torch.randn(2, K), torch.randn(K, 2)
    (found,) = products.mm(Call("mylib::mm", {"self": a, "mat2": b}, [a.double() @ b.double()]))
    assert float(found.factors[0].max()) == pytest.approx((K + 2) * 2.0**-53 * float(a.norm(dim=1).max()), rel=1e-5)
    blocked = bound_policy.named("blocked-64")
    assert prescribed_products.way_of(aten.mul.Tensor, blocked, torch.float64).block == 0
    assert prescribed_products.way_of(aten.mm.default, blocked, torch.float32).block == 0
    assert prescribed_products.way_of(aten.mm.default, blocked, torch.float64).block == 64
    assert prescribed_products.way_of(aten.mm.default, bound_policy.named("mixed"), torch.float64).block == 0
