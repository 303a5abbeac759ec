"""Batch norm as one operation: loops, PyTorch's operations and the decomposition agree in every bit.

Sums may be taken in any order, so the second way is given the first one's sums as they were rounded; its own lie
within the bound of both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.float_strategies import any_values, arrays
from torch.utils._python_dispatch import TorchDispatchMode

from prover.capture.generators import Generators
from prover.capture.recording_context import Recording
from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.context import Context
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.operations import batch_norm_loops, composed
from weighbridge.numerics.random.variates import Draw
from weighbridge.numerics.rewrites import batch_norm
from weighbridge.numerics.rounding import contested, cpu_kernels
from weighbridge.numerics.rounding.bound import Bound, dense_bound
from weighbridge.numerics.schemas import bind

aten = torch.ops.aten
Tensor = torch.Tensor
FORWARD = aten._native_batch_norm_legit.default
PLAIN = aten._native_batch_norm_legit.no_stats
EVALUATION = aten._native_batch_norm_legit_no_training.default
BACKWARD = aten.native_batch_norm_backward.default


class Sums(Context):
    """Rounds sums, or takes them as another evaluation has rounded them; keeps all checksums."""

    def __init__(self, given: list[tuple[Tensor, Tensor, Tensor]] | None = None) -> None:
        self.given = given
        self.made: list[tuple[Tensor, Tensor, Tensor]] = []
        self.checksums: list[int] = []

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        assert dtype == torch.float32
        e = dense_bound(wide, bound)
        out = contested.round_plain(wide)[0]
        if self.given is not None:
            theirs, limit, out = self.given[len(self.made)]
            torch.testing.assert_close(e, limit, rtol=1e-6, atol=0, equal_nan=True)
            apart = (theirs - wide).abs()
            assert bool(((apart <= 2 * limit) | ~torch.isfinite(wide) | ~torch.isfinite(theirs)).all())
            assert torch.equal(torch.isfinite(wide), torch.isfinite(theirs))
        self.made.append((wide, e, out))
        return out.clone()

    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        own = int(cpu_kernels.pass_exact(bits.numpy().view(np.uint32)))
        assert checksum in (None, own)
        self.checksums.append(own)

    def draw(self, generator: torch.Generator | None, device: torch.device) -> Draw:
        raise AssertionError("nothing is drawn")

    def host(self, value: bool | int | float) -> bool | int | float:
        raise AssertionError("nothing is handed out")


def bits(t: Tensor | None) -> Any:
    """Bit patterns in logical order, NaN all the same."""
    if t is None:
        return None
    pattern = t.contiguous().view(torch.int32)
    return torch.where(t.isnan().contiguous(), cpu_kernels.CANONICAL_NAN, pattern).tolist()


class Decomposed(TorchDispatchMode):
    """Evaluates each operation as the Recorder would."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return evaluate(func, args, kwargs or {}, self.context)


def ways(op: Any, *args: Any) -> tuple[Any, ...]:
    """The results and what the operation changed, after all ways of computing them were compared."""
    found, first = [], None
    for way in ("loops", "steps", "decomposed"):
        own = [a.clone(memory_format=torch.preserve_format) if isinstance(a, Tensor) else a for a in args]
        sums = Sums(None if first is None else first.made)
        with pytest.MonkeyPatch.context() as patch:
            if way == "decomposed":
                with Decomposed(sums):
                    if op is BACKWARD:
                        out = batch_norm.backward(*own)
                    else:
                        named = bind(op, own, {})
                        x, w, b, momentum, eps = (named[k] for k in ("input", "weight", "bias", "momentum", "eps"))
                        running = named.get("running_mean"), named.get("running_var")
                        out = batch_norm.forward(x, w, b, *running, named.get("training", False), momentum, eps)
            else:
                if way == "loops":
                    assert batch_norm_loops.walks(bind(op, own, {}))
                else:
                    patch.setattr(batch_norm_loops, "walks", lambda bound: False)
                out = evaluate(op, own, {}, sums)
        if way == "steps":
            assert first is not None
            assert sums.checksums == first.checksums
        if first is None:
            first = sums
        assert len(sums.made) == len(first.made)
        found.append((out, own))
    for out, own in found[1:]:
        for a, b in zip([*found[0][0], *found[0][1]], [*out, *own], strict=True):
            if isinstance(a, Tensor) or isinstance(b, Tensor):
                assert a.shape == b.shape
                assert bits(a) == bits(b)
    assert [None if t is None else t.stride() for t in found[0][0]] == [
        None if t is None else t.stride() for t in found[1][0]
    ]
    return (*found[0][0], *found[0][1])


shapes = st.one_of(
    st.tuples(st.integers(1, 40), st.integers(1, 5)),
    st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 7)),
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 3, 16, 75])),
    st.tuples(*[st.integers(1, 2)] * 5),
)


def drawn(data: st.DataObject, shape: tuple[int, ...]) -> Tensor:
    size = int(np.prod(shape))
    with np.errstate(all="ignore"):
        values = data.draw(arrays(size, any_values)).astype(np.float32)
    x = torch.from_numpy(values).view(shape)
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    if len(shape) in layouts and data.draw(st.booleans()):
        return x.contiguous(memory_format=layouts[len(shape)])
    return x


numbers = st.sampled_from([0.0, 1e-5, 0.1, 1.0, 1e-45, 1e300, -0.3])


@given(st.data(), shapes, st.booleans(), st.booleans(), numbers, numbers)
def test_all_ways_give_the_same_bits(
    data: st.DataObject, shape: tuple[int, ...], affine: bool, running: bool, momentum: float, eps: float
) -> None:
    x, c = drawn(data, shape), shape[1]
    weight, bias = (drawn(data, (c,)), drawn(data, (c,))) if affine else (None, None)
    mean, variance = drawn(data, (c,)), drawn(data, (c,))
    if running:
        _, saved, rstd, *_ = ways(FORWARD, x, weight, bias, mean, variance, True, momentum, eps)
    else:
        _, saved, rstd, *_ = ways(PLAIN, x, weight, bias, True, momentum, eps)
    ways(EVALUATION, x, weight, bias, mean, variance, momentum, eps)
    mask, g = [data.draw(st.booleans()) for _ in range(3)], drawn(data, shape)
    ways(BACKWARD, g, x, weight, mean, variance, saved, rstd, True, eps, mask)
    ways(BACKWARD, g, x, weight, mean, variance, None, None, False, eps, mask)


@pytest.mark.parametrize("shape", [(700, 3), (5, 3, 999), (2, 3, 30, 40), (3000, 300), (2, 700, 3, 3)])
@pytest.mark.parametrize("last", [False, True])
def test_larger_ones_are_what_pytorch_computes(shape: tuple[int, ...], last: bool) -> None:
    """More than a block in each direction; in channels-last too."""
    torch.manual_seed(3)
    x, g = torch.randn(2, *shape) * 3 + 1
    if last and len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    weight, bias, mean = torch.randn(3, shape[1])
    variance = torch.rand(shape[1]) + 0.5
    out = ways(FORWARD, x, weight, bias, mean, variance, True, 0.1, 1e-5)
    running = mean.clone(), variance.clone()
    wanted = aten.native_batch_norm.default(x, weight, bias, *running, True, 0.1, 1e-5)
    for a, b in zip((*out[:3], *out[6:8]), (*wanted, *running), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    own = ways(BACKWARD, g, x, weight, *running, *out[1:3], True, 1e-5, [True, True, True])
    theirs = BACKWARD(g, x, weight, *running, *wanted[1:], True, 1e-5, [True, True, True])
    for a, b in zip(own[:3], theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_operands_that_the_loops_cannot_walk_go_by_steps() -> None:
    """Strided vectors, operands without elements, and statistics that are part of what is normalised."""
    x, both = torch.rand(6, 4), torch.rand(4, 2)
    strided = bind(FORWARD, (x, both[:, 0], both[:, 1], torch.rand(4), torch.rand(4), True, 0.1, 1e-5), {})
    inside = bind(FORWARD, (x, None, None, x[0], torch.rand(4), True, 0.1, 1e-5), {})
    empty = bind(PLAIN, (x[:0], None, None, True, 0.1, 1e-5), {})
    for bound in (strided, inside, empty):
        assert not batch_norm_loops.walks(bound)
    out, *_ = evaluate(FORWARD, list(strided.values()), {}, Sums())
    torch.testing.assert_close(out, torch.nn.functional.batch_norm(x, None, None, both[:, 0], both[:, 1], True))
    changed = x.clone()
    evaluate(FORWARD, (changed, None, None, changed[0], torch.rand(4), True, 0.1, 1e-5), {}, Sums())
    torch.testing.assert_close(changed[0], x[0] * 0.9 + x.mean(0) * 0.1)
    evaluate(PLAIN, list(empty.values()), {}, Sums())


def test_a_statistic_may_be_a_strided_view() -> None:
    x, both = torch.rand(6, 4), torch.zeros(4, 2)
    evaluate(FORWARD, (x, None, None, both[:, 0], both[:, 1], True, 1.0, 1e-5), {}, Sums())
    torch.testing.assert_close(both[:, 0], x.mean(0))
    torch.testing.assert_close(both[:, 1], x.var(0))


VECTOR, LONG = torch.rand(4), torch.rand(5)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (FORWARD, (torch.rand(6, 4), LONG, VECTOR, VECTOR, VECTOR, True, 0.1, 1e-5)),
        (FORWARD, (torch.rand(6, 4), VECTOR, VECTOR, LONG, VECTOR, True, 0.1, 1e-5)),
        (FORWARD, (torch.rand(6, 4), VECTOR.double(), VECTOR, VECTOR, VECTOR, True, 0.1, 1e-5)),
        (FORWARD, (torch.rand(6, 4).bfloat16(), VECTOR, VECTOR, VECTOR, VECTOR, True, 0.1, 1e-5)),
        (FORWARD, (torch.rand(4), VECTOR, VECTOR, VECTOR, VECTOR, True, 0.1, 1e-5)),
        (PLAIN, (torch.rand(6, 4), VECTOR, VECTOR, False, 0.1, 1e-5)),
        (EVALUATION, (torch.rand(6, 4), VECTOR, VECTOR, VECTOR[:1], VECTOR, 0.1, 1e-5)),
        (BACKWARD, (torch.rand(6, 5), torch.rand(6, 4), *[VECTOR] * 5, True, 1e-5, [True] * 3)),
        (BACKWARD, (torch.rand(6, 4), torch.rand(6, 4), *[VECTOR] * 3, None, VECTOR, True, 1e-5, [True] * 3)),
        (BACKWARD, (torch.rand(6, 4), torch.rand(6, 4), VECTOR, None, None, VECTOR, VECTOR, False, 1e-5, [True] * 3)),
        (BACKWARD, (torch.rand(6, 4), torch.rand(6, 4), *[VECTOR] * 3, LONG, VECTOR, True, 1e-5, [True] * 3)),
    ],
)  # fmt: skip
def test_operands_that_do_not_fit_are_refused(op: Any, args: tuple[Any, ...]) -> None:
    """A hostile tape may name any: the loops trust what they are given."""
    with pytest.raises(RefusedOperationError, match="no rule"):
        evaluate(op, args, {}, Recording(0, Generators()))


def test_the_rule_is_for_float32_alone() -> None:
    """All else is decomposed."""
    assert composed._fits(bind(PLAIN, (torch.rand(6, 4), None, None, True, 0.1, 1e-5), {}), True)
    assert not composed._fits(bind(PLAIN, (torch.rand(6, 4).half(), None, None, True, 0.1, 1e-5), {}), True)
