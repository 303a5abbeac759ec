"""Counts of every operation of the table: declared, 0 only where nothing is computed, and products as in PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.flop_counting import counted
from support.operator_examples import EXAMPLES, Maker
from support.releases import lacking
from support.rule_tables import restored
from torch.utils.flop_counter import FlopCounterMode

from weighbridge.numerics import rule_table
from weighbridge.numerics.flops import counts, formulas
from weighbridge.numerics.flops.formulas import Shape
from weighbridge.numerics.rule_table import RULES, Kind
from weighbridge.numerics.schemas import Op

aten = torch.ops.aten

COMPUTING = {Kind.SELECT, Kind.EXACT, Kind.CHAIN, Kind.COMPOSED, Kind.ROUNDED, Kind.RANDOM}


def overload(key: str) -> Op:
    """The overload of a line of the table, or its form in place where it has no other."""
    name, _, variant = key.partition("/")[0].partition(".")
    library, _, short = name.rpartition("::")
    space = getattr(torch.ops, library) if library else aten
    packets = [getattr(space, each) for each in (short, f"{short}_") if hasattr(space, each)]
    found = next(getattr(packet, variant) for packet in packets if variant in packet.overloads())
    assert isinstance(found, Op)
    return found


def undeclared() -> list[str]:
    """The lines of the table that may stand on a tape and have no count."""
    allowed = [key for key, rule in RULES.items() if rule.kind is not Kind.REFUSED or rule.integers]
    return [key for key in allowed if key not in lacking() and not counts.declared(overload(key))]


def test_every_rule_has_a_count() -> None:
    assert undeclared() == []


def test_a_rule_without_a_count_is_found() -> None:
    torch.library.define("weighbridge_uncounted::nothing", "(Tensor x) -> Tensor")
    with restored():
        rule_table.register("weighbridge_uncounted::nothing.default", Kind.MOVE)
        assert undeclared() == ["weighbridge_uncounted::nothing.default"]


def test_no_name_has_two_counts() -> None:
    named = [set(text.split()) for text in counts._PER_ELEMENT.values()]
    for first, second in itertools.combinations([set(counts.FREE), *named], 2):
        assert not first & second
    assert sum(map(len, named)) == sum(len(text.split()) for text in counts._PER_ELEMENT.values())


@pytest.mark.parametrize("key", sorted(key for key, rule in RULES.items() if rule.kind in COMPUTING))
def test_what_computes_is_not_free(key: str) -> None:
    if key not in lacking():
        assert counts._count(overload(key)) != 0


@pytest.mark.parametrize("key", sorted(EXAMPLES))
def test_what_is_computed_counts_at_least_one_for_each_result(key: str) -> None:
    for example in EXAMPLES[key](Maker("plain")):
        operands = [each.clone() if isinstance(each, torch.Tensor) else each for each in example.args]
        with torch.backends.mkldnn.flags(enabled=False):
            out = example.op(*operands, **example.kwargs)
        made = list(out) if isinstance(out, (list, tuple)) else [out]
        found = counts.count(example.op, operands, example.kwargs, out)
        full = all(each.numel() for each in operands if isinstance(each, torch.Tensor))
        assert found >= (made[0].numel() if full else 0)
        assert found == counts.count(
            example.op, [shaped(v) for v in operands], example.kwargs, [shaped(v) for v in made]
        )


def shaped(value: Any) -> Any:
    """What a tape knows of an operand."""
    if isinstance(value, (list, tuple)):
        return [shaped(each) for each in value]
    return Shape(tuple(value.shape)) if isinstance(value, torch.Tensor) else value


def convolution(transposed: bool, mask: tuple[bool, bool, bool] | None = None) -> Callable[[], Any]:
    x, w = torch.randn(2, 4, 9, 7), torch.randn((4, 6, 3, 2) if transposed else (6, 4, 3, 2))
    settings = ((2, 1), (1, 0), (1, 1), transposed, (0, 0), 1)
    y = aten.convolution(x, w, None, *settings)
    if mask is None:
        return lambda: aten.convolution(x, w, None, *settings)
    return lambda: aten.convolution_backward(torch.ones_like(y), x, w, None, *settings, mask)


@pytest.mark.parametrize(
    "call",
    [
        lambda: aten.mm(torch.ones(3, 4), torch.ones(4, 5)),
        lambda: aten.bmm(torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
        lambda: aten.addmm(torch.ones(5), torch.ones(3, 4), torch.ones(4, 5)),
        lambda: aten.baddbmm(torch.ones(2, 3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
        convolution(False), convolution(True), convolution(False, (True, False, False)),
        convolution(False, (False, True, False)), convolution(True, (True, True, False)),
    ],
)  # fmt: skip
def test_products_count_as_in_pytorch(call: Callable[[], Any]) -> None:
    with FlopCounterMode(display=False) as theirs:
        call()
    assert counted(call) == theirs.get_total_flops() > 0


M, K, N = 6, 40, 5
A, B = torch.randn(M, K), torch.randn(K, N)

WAYS: dict[str, Callable[[], torch.Tensor]] = {
    "mm": lambda: A @ B,
    "one vector at a time": lambda: torch.stack([torch.mv(A, B[:, j]) for j in range(N)], 1),
    "dot": lambda: torch.stack([torch.stack([torch.dot(a, b) for b in B.t()]) for a in A]),
    "a product that broadcasts, and a sum": lambda: (A[:, :, None] * B).sum(1),
    "outer products": lambda: sum(torch.outer(A[:, k], B[k]) for k in range(K)),  # type: ignore[return-value, misc]
    "addcmul": lambda: torch.addcmul(torch.zeros(M, K, N), A[:, :, None], B).sum(1),
    "addr": lambda: torch.addr(torch.zeros(M, N), A[:, 0], B[0]) + A[:, 1:] @ B[1:],
    "einsum": lambda: torch.einsum("mk,kn->mn", A, B),
    "bilinear": lambda: torch.nn.functional.bilinear(A, torch.ones(M, 1), B.t()[:, :, None].contiguous()),
    "embedding bags with weights": lambda: torch.nn.functional.embedding_bag(
        torch.arange(K).expand(M, K).contiguous(), B, mode="sum", per_sample_weights=A
    ),
    "rows added by index": lambda: torch.zeros(M, N).index_add(
        0, torch.arange(M).repeat_interleave(K), (A.reshape(-1, 1) * B.repeat(M, 1))
    ),
    "a convolution": lambda: torch.nn.functional.conv1d(A[:, :, None], B.t()[:, :, None].contiguous())[:, :, 0],
    "integers": lambda: ((A * 2**12).long() @ (B * 2**12).long()).float() / 2**24,
    "sums of squares": lambda: (
        (A[:, :, None] + B).square().sum(1) - A.square().sum(1)[:, None] - B.square().sum(0)
    ) / 2,
    "distances": lambda: (
        A.square().sum(1)[:, None] + B.square().sum(0)
        - torch.cdist(A, B.t().contiguous(), compute_mode="donot_use_mm_for_euclid_dist").square()
    ) / 2,
    "logarithms": lambda: (
        (A.abs().log()[:, :, None] + B.abs().log()).exp() * (A.sign()[:, :, None] * B.sign())
    ).sum(1),
    "averages": lambda: (
        torch.nn.functional.avg_pool2d((A[:, :, None] * B).transpose(1, 2)[None], (1, K))[0, ..., 0] * K
    ),
    "running sums": lambda: (A[:, :, None] * B).cumsum(1)[:, -1],
}  # fmt: skip
"""A matrix product in other words."""


@pytest.mark.parametrize("way", WAYS)
def test_a_product_in_other_words_counts_about_as_much(way: str) -> None:
    """Each way gives the product, so it is one; it may count half, where a multiplication and an addition are one."""
    torch.testing.assert_close(WAYS[way](), A @ B, rtol=1e-2, atol=1e-2)
    assert counted(WAYS[way]) >= M * K * N


def test_work_without_a_rule_has_a_bound() -> None:
    """Each is at least what a straightforward algorithm takes."""
    x, n = torch.randn(24, 24), 24
    for call, least in (
        (lambda: torch.linalg.svdvals(x), 4 * n**3),
        (lambda: torch.linalg.eigvals(x), 10 * n**3),
        (lambda: torch.linalg.inv(x), 2 * n**3),
        (lambda: torch.linalg.qr(x), 4 * n**3 // 3),
        (lambda: torch.linalg.cholesky(x @ x.t() + 99 * torch.eye(n)), n**3 // 3),
        (lambda: torch.linalg.solve(x, x), 2 * n**3),
        (lambda: torch.linalg.matrix_exp(x), 2 * n**3),
        (lambda: torch.fft.fft(x.flatten()), 5 * n**2 * 9),
        (lambda: torch._int_mm(x.to(torch.int8), x.to(torch.int8)), 2 * n**3),
        (lambda: torch.sparse.mm(x.to_sparse(), x), 2 * n**3),
        (lambda: torch.sparse.mm(x.to_sparse_csr(), x), 2 * n**3),
        (
            lambda: torch.nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
            4 * n**3,
        ),
        (lambda: torch.lstm_cell(x, (x, x), x.repeat(4, 1), x.repeat(4, 1)), 16 * n**3),
    ):
        assert counted(call) >= least


def test_the_bound_holds_for_a_recurrent_layer() -> None:
    steps, batch, width = 5, 3, 7
    weights = [Shape((4 * width, width)), Shape((4 * width, width))]
    operands = {"input": Shape((steps, batch, width)), "weights": weights}
    assert formulas.bound(operands, []) >= 2 * steps * batch * 2 * 4 * width * width


def test_complex_products_count_as_the_real_ones_in_them() -> None:
    x = torch.ones(3, 3, dtype=torch.complex64)
    assert counted(lambda: x @ x) == 4 * counted(lambda: x.real.contiguous() @ x.real.contiguous())


def test_lists_count_as_their_tensors() -> None:
    parts = [torch.ones(3), torch.ones(4)]
    assert counted(lambda: torch._foreach_mul_(parts, 2.0)) >= 7


@pytest.mark.parametrize(
    "call",
    [
        lambda: A.t().reshape(-1), lambda: A.double(), lambda: A.clone(), lambda: torch.cat([A, A]),
        lambda: torch.zeros(9), lambda: A.expand(3, M, K).contiguous(), lambda: A[2:], lambda: A.repeat(2, 2),
    ],
)  # fmt: skip
def test_what_only_moves_is_free(call: Callable[[], Any]) -> None:
    assert counted(call) == 0
