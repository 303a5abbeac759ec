"""Error bounds hold: against narrower arithmetic, against other orders of summation, and against wider arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.bound_errors import EXACT_SQUARES, copied, error_bound, listen, reductions, single_precision
from support.operator_examples import EXAMPLES, REFERENCES, STYLES, WIDE_ENOUGH, Maker, long

from weighbridge.numerics.operations.embeddings import used_rows
from weighbridge.numerics.schemas import bind

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


@pytest.mark.parametrize("key", sorted(EXAMPLES))
def test_bounds_for_float32_are_those_of_a_coarser_rounding(key: str) -> None:
    """Or else the tests that compare float32 kernels with them would be vacuous, or fail, for some family."""
    example = next(EXAMPLES[key](Maker("plain")))
    fine, _ = listen(example)
    with single_precision():
        coarse, _ = listen(example)
    for (x, usual), (y, larger) in zip(fine, coarse, strict=True):
        small, large = error_bound(x, usual), error_bound(y, larger)
        floor = 2.0**-999  # of softmax, for what underflows
        assert bool(((large >= small * 2.0**20) | (small < floor)).all())


@pytest.mark.parametrize(("key", "style"), [case for case in CASES if case[0] not in EXACT_SQUARES])
def test_the_bound_for_float32_covers_the_float32_kernel(key: str, style: str) -> None:
    """The same kernels and formulas with a coarser rounding, beside which float64 is as good as the exact result."""
    for example in EXAMPLES[key](Maker(style, seed=1)):
        with single_precision():
            seen, _ = listen(example)
        with torch.backends.mkldnn.flags(enabled=False):
            args = [copied(a) for a in example.args]
            out = example.op(*args, **copied(example.kwargs))
        narrow = [
            t for t in (out if isinstance(out, (tuple, list)) else [out]) if t is not None and t.is_floating_point()
        ]
        if len(seen) > len(narrow):  # running statistics
            narrow += [args[3], args[4]]
        if key.startswith("embedding_dense_backward"):  # rows that are not used are not computed
            narrow = [narrow[0][used_rows(bind(example.op, example.args, example.kwargs))[0]]]
        assert len(narrow) == len(seen)
        for number, ((wide, bound), t) in enumerate(zip(seen, narrow, strict=True)):
            # Where float32 runs out of range, float64 does not: intermediate results like exp(x) included.
            inside = ((wide.abs() > 1e-32) & (wide.abs() < 1e32)) | (wide == 0)
            error, e = (t.double() - wide).abs()[inside], error_bound(wide, bound)[inside]
            worst = float((error / e).nan_to_num(0).max()) if error.numel() else 0.0
            assert bool((error <= e).all()), f"{example.op} result {number}: {worst:.2f} times its bound"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("n", [6, 33, 1000])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_order_of_summation_stays_within_the_bound(style: str, n: int, threads: int) -> None:
    """Two conforming results lie within one bound of the exact one each, so within two of each other."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    before, differing = torch.get_num_threads(), 0
    try:
        for first, second in reductions(Maker(style, seed=n), order):
            torch.set_num_threads(1)
            one, _ = listen(first)
            torch.set_num_threads(threads)
            two, _ = listen(second)
            for (x, bound), (y, _) in zip(one, two, strict=True):
                assert bool(((x - y).abs() <= 2 * error_bound(x, bound)).all()), str(first.op)
                differing += int((x != y).sum())
    finally:
        torch.set_num_threads(before)
    assert differing > 0, "nothing was summed in another order"


@pytest.mark.skipif(not WIDE_ENOUGH, reason="long double is no wider than double on this machine")
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("key", sorted(REFERENCES))
def test_the_float64_kernel_is_within_its_bound_of_the_exact_result(key: str, style: str) -> None:
    for example in EXAMPLES[key](Maker(style, seed=2)):
        seen, _ = listen(example)
        seen = [(wide, bound) for wide, bound in seen if wide.numel()]
        for number, ((wide, bound), exact) in enumerate(
            zip(seen, REFERENCES[key](*example.args, **example.kwargs), strict=True)
        ):
            error = np.abs(long(wide) - exact.reshape(wide.shape))
            e = error_bound(wide, bound).numpy()
            assert (error <= e + 1e-300).all(), f"{example.op} result {number}: {float((error / e).max()):.2f} times"
