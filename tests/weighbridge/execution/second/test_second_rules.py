"""The rules of the second Executor beside those of the first: values within bounds, the same bounds, the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support import special_values
from support.operator_examples import EXAMPLES, STYLES, Maker
from support.second_executor import NEEDED
from support.second_rules import first, second, table

from weighbridge.core.errors import RefusedOperationError, TapeError
from weighbridge.execution.second import bounds
from weighbridge.execution.second.memory import NotCoveredError
from weighbridge.execution.second.signatures import require_form
from weighbridge.execution.second.table import Kind, Wide
from weighbridge.numerics.arrays import blocked_products
from weighbridge.numerics.rounding.bound import Bound, dense_bound, sharpened
from weighbridge.numerics.schemas import needed
from weighbridge.program.operands import resolve

Floats = Any
pytestmark = NEEDED

_ROUNDED = """
_log_softmax.default _log_softmax_backward_data.default _safe_softmax.default _softmax.default
_softmax_backward_data.default addmm.default baddbmm.default bmm.default convolution.default
convolution_backward.default cos.default cumsum.default embedding_dense_backward.default erf.default exp.default
expm1.default gelu.default gelu_backward.default linalg_vector_norm.default log.default log1p.default log2.default
max_pool2d_with_indices_backward.default mm.default mse_loss.default mse_loss_backward.default
native_layer_norm.default native_layer_norm_backward.default nll_loss_backward.default nll_loss_forward.default
pow.Tensor_Scalar rsqrt.default sigmoid.default sigmoid_backward.default silu.default silu_backward.default
sin.default sum.default sum.dim_IntList tanh.default tanh_backward.default
"""
_UNROUNDED = """
_to_copy.default abs.default add.Scalar add.Tensor addcdiv.default addcmul.default all.default amax.default
amin.default any.default cat.default clamp.default clamp_max.default clamp_min.default clone.default
constant_pad_nd.default copy.default div.Scalar div.Tensor embedding.default eq.Scalar eq.Tensor fill.Scalar
fill.Tensor full.default full_like.default gather.default ge.Scalar ge.Tensor gt.Scalar gt.Tensor hardtanh.default
index_select.default isfinite.default isinf.default isnan.default le.Scalar le.Tensor lerp.Scalar lerp.Tensor
logical_and.default logical_not.default logical_or.default logical_xor.default lt.Scalar lt.Tensor masked_fill.Scalar
masked_fill.Tensor max.default max_pool2d_with_indices.default maximum.default min.default minimum.default mul.Scalar
mul.Tensor ne.Scalar ne.Tensor neg.default new_full.default new_ones.default new_zeros.default ones_like.default
reciprocal.default relu.default rsub.Scalar rsub.Tensor scalar_tensor.default select_backward.default
slice_backward.default sqrt.default stack.default sub.Scalar sub.Tensor threshold_backward.default tril.default
triu.default where.Scalar where.ScalarOther where.ScalarSelf where.self zero.default zeros_like.default
"""
ROUNDED, UNROUNDED = _ROUNDED.split(), _UNROUNDED.split()
"""Written here, because the table itself loads JAX, which collecting the tests should not."""


def bounds_of_first(x: torch.Tensor, bound: Bound) -> Floats:
    """The bound of every element, in row-major order, as a replayer has it."""
    x = x.contiguous()
    e = dense_bound(x, bound).numpy()
    return sharpened(x, bound, np.arange(x.numel()), x.reshape(-1).numpy(), e)


def bounds_of_second(wide: Wide) -> Floats:
    value = np.asarray(wide.value)
    places = np.unravel_index(np.arange(value.size), value.shape) if value.ndim else ()
    return np.broadcast_to(wide.bound().at(value.reshape(-1), tuple(places), value.shape), value.size)


def compare(op: Any, args: Any, kwargs: dict[str, Any]) -> int:
    """Compares one call; returns how many elements were rounded."""
    copied = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    results, seen = first(op, copied, kwargs)
    found, wides = second(op, args, kwargs, results)
    assert len(wides) == len(seen)
    count = 0
    for (x, bound), wide in zip(seen, wides, strict=True):
        y, value = x.contiguous().reshape(-1).numpy(), np.asarray(wide.value).reshape(-1)
        e, other = bounds_of_first(x, bound), bounds_of_second(wide)
        finite = np.isfinite(y)
        assert np.array_equal(y[~finite], value[~finite], equal_nan=True)
        with np.errstate(all="ignore"):
            assert np.all(np.abs(y - value)[finite] <= 2 * e[finite]), (op, np.max(np.abs(y - value)[finite]))
            judged = finite & np.isfinite(e)
            assert np.allclose(other[judged], e[judged], rtol=2.0**-21, atol=0), (op, other[judged], e[judged])
        count += y.size
    for result, made in zip(results, found, strict=True):
        if isinstance(result, torch.Tensor) and made is not None and not wides:
            expected = special_values.bits(result).numpy()
            assert np.array_equal(expected, np.array(made, order="C").view(expected.dtype)), op
    return count


def test_collecting_tests_loads_no_jax(jax_at_collection: bool) -> None:
    """All processes of a test run collect all tests, and some fork, which JAX's threads make dangerous."""
    assert not jax_at_collection


def test_every_rounded_rule_is_tried() -> None:
    assert sorted(key for key, rule in table().items() if rule.kind is Kind.ROUNDED) == ROUNDED
    assert set(ROUNDED) - set(EXAMPLES) == set()


def test_every_other_rule_is_tried_with_special_values() -> None:
    tried = (Kind.EXACT, Kind.SELECT, Kind.MOVE)
    assert sorted(k for k, rule in table().items() if rule.kind in tried and k in special_values.CALLS) == UNROUNDED


@pytest.mark.parametrize(
    "key", [pytest.param(k, marks=pytest.mark.soak) if k.startswith("convolution") else k for k in ROUNDED]
)
def test_values_lie_within_the_first_ones_bounds_and_bounds_agree(key: str) -> None:
    """Twice the bound, as two conforming devices may lie apart; exactly equal where the bound is 0."""
    count = uncovered = 0
    for style in STYLES:
        for example in EXAMPLES[key](Maker(style, seed=5)):
            try:
                count += compare(example.op, example.args, example.kwargs)
            except NotCoveredError:
                uncovered += 1
    assert count


@pytest.mark.parametrize("key", UNROUNDED)
def test_special_values_have_the_same_bits(key: str) -> None:
    """NaN of every kind, infinities, subnormal numbers and both zeros, in whole vectors, tails and strided operands."""
    values = special_values.special(torch.float32)
    count = 0
    for size in (1, 7, 70):
        x, y = values[:size].clone(), values.flip(0)[:size].clone()
        for left, right in ((x, y), (torch.stack([x, y], 1).view(-1)[::2], torch.stack([y, x], 1).view(-1)[::2])):
            for operands in special_values.CALLS[key](left, right):
                named = operands[-1] if isinstance(operands[-1], dict) else {}
                args = operands[: -1 if named else None]
                for op in special_values._overloads(key):
                    if op._schema.name.endswith("_"):
                        continue
                    try:
                        compare(op, args, named)
                        count += 1
                    except (NotCoveredError, RefusedOperationError, RuntimeError):
                        continue  # 16-bit operands, and what the first one refuses
    assert count


@pytest.mark.parametrize("key", ["exp.default", "tanh.default", "sigmoid.default", "rsqrt.default", "silu.default"])
def test_special_values_of_functions(key: str) -> None:
    op = EXAMPLES[key](Maker("plain")).__next__().op
    compare(op, (special_values.special(torch.float32).reshape(7, 10),), {})


def test_special_values_in_products_sums_and_softmax() -> None:
    """One kind of number in a row that has no other of them: what it makes of a whole sum."""
    aten = torch.ops.aten
    values = torch.stack([torch.full((4,), 0.5).index_fill(0, torch.tensor(1), v) for v in special_values.special(
        torch.float32).tolist()[:40]])  # fmt: skip
    compare(aten.mm.default, (values, torch.ones(4, 3)), {})
    compare(aten.sum.dim_IntList, (values, [1]), {})
    compare(aten._log_softmax.default, (values, 1, False), {})
    compare(aten._safe_softmax.default, (values, 1), {})


def test_draws_are_the_same_numbers() -> None:
    aten = torch.ops.aten
    for size in (1, 5, 4099):
        x = torch.empty(size)
        for op, args in (
            (aten.uniform_.default, (x, -0.3, 0.7)), (aten.normal_.default, (x, 1.5, 0.02)),
            (aten.bernoulli_.float, (x, 0.25)), (aten.randn.default, ([size],)), (aten.rand.default, ([size],)),
        ):  # fmt: skip
            compare(op, args, {})


# --- calls ----------------------------------------------------------------------------------------------------------


def allowed(name: str) -> torch._ops.OpOverload | None:
    """The overload of a name, if the first Executor lets it stand on a tape."""
    try:
        return resolve(name)
    except TapeError:
        return None


def test_operands_are_those_of_the_schema() -> None:
    """By position and by name, in the form that changes nothing and in the one that changes its first operand."""
    for key, rule in table().items():
        name, _, overload = key.partition(".")
        for op, changes in ((key, False), (f"{name}_.{overload}", True)):
            found = allowed(op)
            if found is None:
                with pytest.raises(TapeError, match="which is not allowed"):
                    require_form(op, key, changes)
                continue
            require_form(op, key, changes)
            names = [argument.name for argument in found._schema.arguments]
            assert names[: len(rule.names)] == list(rule.names), op
            assert {name for name in rule.names if name not in rule.defaults} == {*needed(found)}, op
            assert changes or set(names[len(rule.names) :]) == rule.placing, op


@pytest.mark.parametrize("least", [64, 256])
@pytest.mark.parametrize("terms", [1, 64, 65, 256, 257, 384, 700, 14_548, 65_536, 1 << 21])
def test_blocks_and_what_they_count_are_the_same(terms: int, least: int) -> None:
    """Written twice, from docs/bounds.md."""
    assert bounds.block_length(terms, least) == blocked_products.length(terms, least)
    for given in (0, least):
        assert bounds.roundings(terms, given) == blocked_products.roundings(terms, given)
