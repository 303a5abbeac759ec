"""A decomposition computes what PyTorch's own operation computes, up to rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.releases import lacking

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.rewrites import decompositions

aten = torch.ops.aten
Tensor = torch.Tensor


def real(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def whole(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def sound(n: int, batch: int = 2) -> Tensor:
    """Matrices that are safe to invert and need their rows exchanged."""
    return (real(batch, n, n) + 4 * torch.eye(n)).flip(-2)


def positive(n: int) -> Tensor:
    a = real(2, n, n)
    return a @ a.mT + torch.eye(n)


TIES = torch.tensor([[2.0, 1.0, 2.0, 1.0, 3.0], [0.0, -0.0, 5.0, 5.0, 5.0]])
BROKEN = torch.tensor([[2.0, float("nan"), 1.0, 0.0, 3.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
ALIKE = torch.tensor([[1.0, 2.0, -3.0], [1.0, 2.0, 4.0], [1.0, 2.0, -3.0]])
ORDERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf"))
LU, PIVOTS, _ = torch.linalg.lu_factor_ex(sound(5))

CALLS: dict[str, list[tuple[Any, ...]]] = {
    "kthvalue.default": [(real(3, 7), 2), (real(3, 7), 3, 0, True), (torch.tensor(1.0), 1)],
    "median.dim": [(real(3, 7), 1), (real(3, 6), 0, True), (BROKEN, 1)],
    "_unique2.default": [(whole(4, 3, 5), True, True, True), (real(6), False, False, False)],
    "histc.default": [(real(50), 7), (real(50), 8, -1, 1), (whole(4, 30).float(), 4, 0, 3), (torch.ones(3), 3)],
    "diagonal_backward.default": [(real(3), [3, 4], 1, 0, 1)],
    "trace.default": [(real(4, 4),)],
    "_pack_padded_sequence.default": [
        (real(4, 3, 2), torch.tensor([4, 2, 1]), False),
        (real(3, 4, 2), torch.tensor([3, 3, 1]), True),
    ],
    "put.default": [(real(3, 4), torch.tensor([[1, -1]]), real(1, 2)), (real(3), torch.tensor([1, 1]), real(2), True)],
    "index_copy.default": [(real(3, 4), 1, torch.tensor([2, 0]), real(3, 2)), (real(3), 0, torch.tensor(1), real())],
    "addbmm.default": [(real(2, 3), real(4, 2, 5), real(4, 5, 3))],
    "_trilinear.default": [(real(4, 3), real(6, 3, 2), real(4, 2), [1, 3], [0], [1, 2], [2, 3])],
    "_cdist_forward.default": [
        *((real(3, 4), real(5, 4, seed=1), p, None) for p in ORDERS),
        *((real(3, 0), real(5, 0), p, None) for p in ORDERS),
    ],
    "_cdist_backward.default": [
        *((real(3, 5), real(3, 4), real(5, 4, seed=1), p, torch.cdist(real(3, 4), real(5, 4, seed=1), p))
          for p in ORDERS),
        *((real(3, 3), ALIKE, ALIKE, p, torch.cdist(ALIKE, ALIKE, p, "donot_use_mm_for_euclid_dist")) for p in ORDERS),
    ],
    "upsample_linear1d.default": [(real(2, 3, 5), [8], False), (real(2, 3, 5), [9], True)],
    "upsample_linear1d_backward.default": [(real(2, 3, 8), [8], [2, 3, 5], False)],
    "adaptive_max_pool2d_backward.default": [
        (real(2, 3, 2, 3), real(2, 3, 5, 7), F.adaptive_max_pool2d(real(2, 3, 5, 7), (2, 3), return_indices=True)[1])
    ],
    "linalg_solve_triangular.default": [],
    "linalg_cholesky_ex.default": [(positive(5),)],
    "linalg_lu_factor_ex.default": [(sound(5),), (real(2, 6, 4),), (real(4, 6),)],
    "linalg_lu_solve.default": [(LU, PIVOTS, real(2, 5, 3))],
    "_linalg_solve_ex.default": [(sound(5), real(2, 5, 3)), (sound(5), real(2, 5)), (sound(5)[0], real(5))],
    "linalg_inv_ex.default": [(sound(5),), (sound(4)[0],)],
    "_linalg_det.default": [(sound(5),), (sound(4)[0],)],
    "_linalg_slogdet.default": [(sound(5),), (sound(4)[0],)],
    "rrelu_with_noise.default": [(real(3, 4), torch.zeros(3, 4))],
    "lerp.Scalar": [(real(3).double(), real(3, seed=1).double(), 0.3)],
    "addcmul.default": [tuple(real(3, seed=n).double() for n in range(3))],
    "glu.default": [(real(3, 4), 1)],
    "celu.default": [(real(5), 0.7)],
}  # fmt: skip


def run(key: str, *args: Any, **kwargs: Any) -> list[Any]:
    name, _, overload = key.partition(".")
    op = getattr(getattr(aten, name), overload)
    replace = decompositions.find(op)
    assert replace is not None
    found = replace(*args, **kwargs)
    return list(found) if isinstance(found, (tuple, list)) else [found]


def native(key: str, *args: Any, **kwargs: Any) -> list[Any]:
    name, _, overload = key.partition(".")
    wanted = getattr(getattr(aten, name), overload)(*args, **kwargs)
    return list(wanted) if isinstance(wanted, (tuple, list)) else [wanted]


@pytest.mark.parametrize(("key", "number"), [(key, i) for key in sorted(CALLS) for i in range(len(CALLS[key]))])
def test_a_decomposition_is_the_operation(key: str, number: int) -> None:
    args = CALLS[key][number]
    for found, wanted in zip(run(key, *args), native(key, *args), strict=True):
        assert found.shape == wanted.shape
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dim", [0, 1])
def test_scatter_reduce(reduce: str, include_self: bool, dim: int) -> None:
    x, index, src = real(4, 5), whole(4, 3, 4), real(6, 6, seed=1)
    (found,) = run("scatter_reduce.two", x, dim, index, src, reduce, include_self=include_self)
    (wanted,) = native("scatter_reduce.two", x, dim, index, src, reduce, include_self=include_self)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("key", ["kthvalue.default", "median.dim"])
def test_of_equal_elements_the_first_is_taken(key: str) -> None:
    args = (TIES, 4, 1) if key.startswith("k") else (TIES, 1)
    values, indices = run(key, *args)
    assert indices.tolist() == ([2, 3] if key.startswith("k") else [0, 2])
    assert torch.equal(TIES.gather(1, indices[:, None])[:, 0], values)


@pytest.mark.parametrize(
    "options", [(u, left, one) for u in (True, False) for left in (True, False) for one in (True, False)]
)
def test_triangular_systems(options: tuple[bool, bool, bool]) -> None:
    upper, left, unit = options
    a, b = sound(4).flip(-2), real(2, 4, 3) if left else real(2, 3, 4)
    settings = {"upper": upper, "left": left, "unitriangular": unit}
    (found,) = run("linalg_solve_triangular.default", a, b, **settings)
    torch.testing.assert_close(found, torch.linalg.solve_triangular(a, b, **settings), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_systems_from_their_factors(left: bool, adjoint: bool) -> None:
    b = real(2, 5, 3) if left else real(2, 3, 5)
    (found,) = run("linalg_lu_solve.default", LU, PIVOTS, b, left=left, adjoint=adjoint)
    torch.testing.assert_close(found, native("linalg_lu_solve.default", LU, PIVOTS, b, left=left, adjoint=adjoint)[0])


@pytest.mark.parametrize("shape", [(5, 5), (7, 4), (4, 7), (2, 5, 3), (1, 1), (3, 0)])
@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr(shape: tuple[int, ...], mode: str) -> None:
    a = real(*shape)
    q, r = run("linalg_qr.default", a, mode)
    wanted_q, wanted_r = torch.linalg.qr(a, mode)
    torch.testing.assert_close(r, wanted_r, rtol=1e-4, atol=1e-5)
    assert q.shape == wanted_q.shape
    if mode != "r":
        torch.testing.assert_close(q @ r, a, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(q.mT @ q, torch.eye(q.shape[-1]).expand(*a.shape[:-2], -1, -1), rtol=1e-4, atol=1e-5)


def test_qr_of_columns_that_are_zero_or_alike_stays_orthogonal() -> None:
    a = torch.tensor([[0.0, 1.0, 1.0], [0.0, 2.0, 2.0], [0.0, 3.0, 3.0], [0.0, 4.0, 4.0]])
    q, r = run("linalg_qr.default", a)
    torch.testing.assert_close(q.T @ q, torch.eye(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(q @ r, a, atol=1e-5, rtol=0)


def test_what_has_no_factorisation_is_refused() -> None:
    singular = torch.ones(3, 3)
    assert int(run("linalg_cholesky_ex.default", -torch.eye(3))[1]) == 1
    assert int(run("linalg_inv_ex.default", singular)[1]) == int(native("linalg_inv_ex.default", singular)[1])
    for key in ("linalg_inv_ex.default", "linalg_lu_factor_ex.default", "linalg_cholesky_ex.default"):
        with pytest.raises(RefusedOperationError, match="add a multiple of the identity"):
            run(key, -singular, check_errors=True)


def test_cholesky_of_either_half() -> None:
    a = positive(4)
    upper = run("linalg_cholesky_ex.default", a, upper=True)[0]
    torch.testing.assert_close(upper, torch.linalg.cholesky(a, upper=True), rtol=1e-4, atol=1e-5)


def groups(kind: str) -> tuple[Tensor, Tensor, Callable[[Tensor, Tensor, list[slice]], Tensor]]:
    if kind == "rows":
        return real(7, 4), real(3, 4, 5), lambda a, b, g: torch.cat([a[s] @ b[i] for i, s in enumerate(g)])
    if kind == "columns":
        return real(3, 4, 5), real(5, 7), lambda a, b, g: torch.cat([a[i] @ b[:, s] for i, s in enumerate(g)], 1)
    return real(4, 7), real(7, 5), lambda a, b, g: torch.stack([a[:, s] @ b[s] for s in g])


@pytest.mark.skipif("_grouped_mm.default" in lacking(), reason="this PyTorch has no such operation")
@pytest.mark.parametrize("kind", ["rows", "columns", "inside"])
def test_products_of_groups(kind: str) -> None:
    a, b, by_hand = groups(kind)
    (found,) = run("_grouped_mm.default", a, b, torch.tensor([2, 2, 7], dtype=torch.int32))
    torch.testing.assert_close(found, by_hand(a, b, [slice(0, 2), slice(2, 2), slice(2, 7)]))


# --- samples --------------------------------------------------------------------------------------------------------


def chances(counts: Tensor, expected: Tensor) -> float:
    """The p-value of Pearson's test."""
    from scipy.stats import chisquare

    shares = expected.double() / expected.double().sum()
    return float(chisquare(counts.double().numpy(), (shares * counts.sum()).numpy()).pvalue)


WEIGHTS = torch.tensor([[0.0, 1.0, 2.0, 3.0, 0.0, 4.0], [5.0, 0.0, 0.0, 0.0, 5.0, 0.0]])


def test_categories_come_as_often_as_they_weigh() -> None:
    torch.manual_seed(1)
    (drawn,) = run("multinomial.default", WEIGHTS, 20_000, True)
    for row, weights in zip(drawn, WEIGHTS, strict=True):
        counts = torch.bincount(row, minlength=6)
        seen = weights > 0
        assert not counts[~seen].any(), "a category without weight is never drawn"
        assert chances(counts[seen], weights[seen]) > 1e-4


def test_without_replacement_the_first_is_drawn_by_weight_and_nothing_twice() -> None:
    torch.manual_seed(1)
    (drawn,) = run("multinomial.default", WEIGHTS[:1].expand(5000, 6), 4, False)
    assert all(len(set(row)) == 4 for row in drawn.tolist())
    counts = torch.bincount(drawn[:, 0], minlength=6)
    assert not counts[WEIGHTS[0] == 0].any()
    seen = WEIGHTS[0] > 0
    assert chances(counts[seen], WEIGHTS[0][seen]) > 1e-4


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_weights_that_mean_nothing_are_an_error(weights: list[float]) -> None:
    with pytest.raises(RuntimeError, match="probability tensor"):
        run("multinomial.default", torch.tensor([weights]), 1, True)


def test_the_largest_variate_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 - 2^-24 times a total rounds to less than the total, so no draw falls behind the last category."""
    monkeypatch.setattr(Tensor, "uniform_", lambda x, generator=None: x.fill_(1 - 2.0**-24))
    for total in (1.0, 1 + 2.0**-23, 1.5, 2 - 2.0**-23, 3.3e-38, 1e30):
        (drawn,) = run("multinomial.default", torch.tensor([total, 0.0]), 1, True)
        assert drawn.tolist() == [0]


@pytest.mark.parametrize(
    ("key", "cdf", "args"),
    [
        ("exponential_.default", ("expon", {"scale": 0.5}), (2.0,)),
        ("cauchy_.default", ("cauchy", {"loc": 1.0, "scale": 3.0}), (1.0, 3.0)),
        ("log_normal_.default", ("lognorm", {"s": 0.5}), (0.0, 0.5)),
    ],
)
def test_variates_have_their_distribution(key: str, cdf: tuple[str, dict[str, float]], args: tuple[float, ...]) -> None:
    import scipy.stats

    torch.manual_seed(1)
    (drawn,) = run(key, torch.empty(4000), *args)
    assert scipy.stats.kstest(drawn.double().numpy(), getattr(scipy.stats, cdf[0])(**cdf[1]).cdf).pvalue > 1e-4


def test_geometric_variates_count_from_one() -> None:
    torch.manual_seed(1)
    (drawn,) = run("geometric_.default", torch.empty(20_000), 0.5)
    counts = torch.bincount(drawn.long(), minlength=6)[1:6]
    expected = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.03125])
    assert float(drawn.min()) == 1
    assert chances(counts, expected) > 1e-4


def test_noisy_slopes_are_kept_for_the_backward_pass() -> None:
    torch.manual_seed(1)
    x, noise = real(1000), torch.zeros(1000)
    (out,) = run("rrelu_with_noise.default", x, noise, 0.1, 0.3, True)
    negative = x <= 0
    assert torch.equal(out[~negative], x[~negative])
    assert (noise[~negative] == 1).all()
    assert ((noise[negative] >= 0.1) & (noise[negative] <= 0.3)).all()
    (back,) = run("rrelu_with_noise_backward.default", torch.ones(1000), x, noise, 0.1, 0.3, True, False)
    assert torch.equal(back, noise)


# --- the cells that only a GPU has ----------------------------------------------------------------------------------


def gated(
    kind: str, gates: Tensor, hidden: Tensor, state: Tensor, biases: tuple[Tensor | None, Tensor | None]
) -> Tensor:
    """The cell in PyTorch's own words: identity matrices make its gates the given ones."""
    n, width = state.shape[1], gates.shape[1]
    cell = (torch.nn.LSTMCell if kind == "lstm" else torch.nn.GRUCell)(width, n, bias=biases[0] is not None)
    values = {"weight_ih": torch.eye(width), "bias_ih": biases[0], "bias_hh": biases[1]}
    call = torch.func.functional_call
    if kind == "lstm":  # the hidden gates join the input gates
        given = {**values, "weight_hh": torch.zeros(width, n)}
        hy, cy = call(cell, {k: v for k, v in given.items() if v is not None}, (gates + hidden, (state * 0, state)))
        return torch.cat([hy, cy], 1)
    # With hx = state and a matrix W of full rank, W hx = hidden.
    weight = torch.linalg.lstsq(state, hidden).solution.T
    given = {**values, "weight_hh": weight}
    return call(cell, {k: v for k, v in given.items() if v is not None}, (gates, state))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("biased", [True, False])
def test_fused_cells(kind: str, biased: bool) -> None:
    parts, n = (4, 3) if kind == "lstm" else (3, 3)
    gates, hidden = real(2, parts * n).requires_grad_(), real(2, parts * n, seed=1).requires_grad_()
    state = real(2, n, seed=2).requires_grad_()
    biases = (real(parts * n, seed=3), real(parts * n, seed=4)) if biased else (None, None)
    wanted = gated(kind, gates, hidden, state, biases)
    found = run(f"_thnn_fused_{kind}_cell.default", gates, hidden, state, *biases)
    outputs = torch.cat(found[:2], 1) if kind == "lstm" else found[0]
    torch.testing.assert_close(outputs, wanted, rtol=1e-4, atol=1e-5)
    grad = real(*outputs.shape, seed=5)
    if kind == "lstm":
        back = run(
            "_thnn_fused_lstm_cell_backward_impl.default", grad[:, :n], grad[:, n:], state, found[1], found[2], biased
        )
        of_gates, of_state, of_bias = back
        of_hidden = of_gates
    else:
        of_gates, of_hidden, of_state, of_bias, _ = run("_thnn_fused_gru_cell_backward.default", grad, found[1], biased)
    by_hand = torch.autograd.grad(outputs, (gates, state, hidden), grad)
    torch.testing.assert_close(of_gates, by_hand[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(of_state, by_hand[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(of_hidden, by_hand[2], rtol=1e-4, atol=1e-5)
    assert (of_bias is None) == (not biased)
    if biased:
        torch.testing.assert_close(of_bias, by_hand[0].sum(0), rtol=1e-4, atol=1e-5)
