"""Batch norms, means, and layer norms of 16 bits in single steps, against PyTorch's own kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weighbridge.numerics.rewrites import batch_norm, decompositions

aten = torch.ops.aten
Tensor = torch.Tensor
MASKS = [[True, True, True], [True, False, False], [False, True, False], [False, False, True]]


def real(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def run(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    replace = decompositions.find(op)
    assert replace is not None
    return replace(*args, **kwargs)


def near(found: Tensor | None, wanted: Tensor | None, loose: float = 1e-5) -> None:
    if found is None or wanted is None:
        assert found is None
        assert wanted is None
        return
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    torch.testing.assert_close(found, wanted, rtol=loose, atol=loose)


@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 5), (6, 4, 5, 3), (2, 4, 2, 3, 2)])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("channels_last", [True, False])
def test_batch_norm(shape: tuple[int, ...], training: bool, affine: bool, channels_last: bool) -> None:
    x = real(*shape) * 3 + 1
    if channels_last and len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    w, b = (real(4, seed=1), real(4, seed=2)) if affine else (None, None)
    running = [(real(4, seed=3), real(4, seed=4).abs() + 0.5) for _ in range(2)]
    found = batch_norm.forward(x, w, b, *running[0], training, 0.2, 1e-4)
    wanted = aten.native_batch_norm.default(x, w, b, *running[1], training, 0.2, 1e-4)
    assert found[0].stride() == wanted[0].stride()
    for own, theirs in zip([*found, *running[0]], [*wanted, *running[1]], strict=True):
        near(own, theirs)
    grad = real(*shape, seed=5)
    for mask in MASKS:
        args = (grad, x, w, *running[1], *wanted[1:], training, 1e-4, mask)
        for own, theirs in zip(
            batch_norm.backward(*args),
            aten.native_batch_norm_backward.default(*args),
            strict=True,
        ):
            if theirs is not None or own is not None:
                near(own, theirs, 1e-4)


def test_batch_norm_without_running_statistics_leaves_none_behind() -> None:
    x = real(40, 4)
    found = batch_norm.forward(x, None, None, None, None, True, 0.1, 1e-5)
    for own, theirs in zip(
        found, aten.native_batch_norm.default(x, None, None, None, None, True, 0.1, 1e-5), strict=True
    ):
        near(own, theirs)


def test_batch_norm_of_16_bits_is_rounded_once() -> None:
    """As accurate as float32 steps with one rounding at the end."""
    x, g = real(16, 4, 5, 5).bfloat16(), real(16, 4, 5, 5, seed=1).bfloat16()
    w, b, mean, var = real(4), real(4, seed=1), torch.zeros(4), torch.ones(4)
    out, own, rstd = run(aten.native_batch_norm.default, x, w, b, mean, var, True, 0.1, 1e-5)
    assert (out.dtype, own.dtype, rstd.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    wide = [t.double() for t in (x, w, b, torch.zeros(4), torch.ones(4))]
    exact = aten.native_batch_norm.default(*wide, True, 0.1, 1e-5)
    torch.testing.assert_close(out.double(), exact[0], rtol=2.0**-8, atol=1e-6)
    grads = run(aten.native_batch_norm_backward.default, g, x, w, mean, var, own, rstd, True, 1e-5, MASKS[0])
    assert [t.dtype for t in grads] == [torch.bfloat16, torch.float32, torch.float32]
    expected = aten.native_batch_norm_backward.default(
        g.double(), wide[0], wide[1], *wide[3:], *exact[1:], True, 1e-5, MASKS[0]
    )
    torch.testing.assert_close(grads[0].double(), expected[0], rtol=2.0**-8, atol=1e-5)


@pytest.mark.parametrize("dims", [None, [], [0], [-1], [0, 2], 1])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_means(dims: Any, keep: bool, dtype: torch.dtype | None, kind: torch.dtype) -> None:
    x = real(3, 4, 5).to(kind)
    found, wanted = (
        call(x, dims, keep, dtype=dtype) for call in (lambda *a, **k: run(aten.mean.dim, *a, **k), aten.mean.dim)
    )
    near(found, wanted, 1e-5 if wanted.dtype == torch.float32 else 2.0**-8)
    if dims is None and not keep:
        near(run(aten.mean.default, x, dtype=dtype), aten.mean.default(x, dtype=dtype), 2.0**-8)


def test_a_mean_of_one_number_and_means_of_integers() -> None:
    near(run(aten.mean.default, torch.tensor(3.0)), torch.tensor(3.0))
    near(run(aten.mean.default, torch.arange(5), dtype=torch.float32), torch.tensor(2.0))
    assert run(aten.mean.default, torch.ones(3, dtype=torch.float64)) is NotImplemented


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_layer_norm_of_16_bits(kind: torch.dtype) -> None:
    x, w, b, g = (t.to(kind) for t in (real(7, 40), real(40, seed=1), real(40, seed=2), real(7, 40, seed=3)))
    out, mean, rstd = run(aten.native_layer_norm.default, x, [40], w, b, 1e-5)
    wide = [t.double() for t in (x, w, b)]
    exact = aten.native_layer_norm.default(wide[0], [40], wide[1], wide[2], 1e-5)
    torch.testing.assert_close(out.double(), exact[0], rtol=2.0**-8, atol=1e-6)
    found = run(aten.native_layer_norm_backward.default, g, x, [40], mean, rstd, w, b, [True, True, True])
    expected = aten.native_layer_norm_backward.default(
        g.double(), wide[0], [40], exact[1], exact[2], wide[1], wide[2], [True, True, True]
    )
    for own, theirs in zip(found, expected, strict=True):
        assert own.dtype == kind
        torch.testing.assert_close(own.double(), theirs, rtol=2.0**-8, atol=1e-5)
    for op in (aten.native_layer_norm.default, aten.native_layer_norm_backward.default):
        unless = decompositions.unless(op)
        assert unless is not None
        assert unless(x.float(), x.float(), [40])
        assert not unless(x, x, [40])
