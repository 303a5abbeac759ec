"""Grid sampling in every mode against PyTorch's kernel, and where the kernels of a CPU and a GPU differ."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from weighbridge.numerics.rewrites import decompositions  # noqa: F401 (fills the table)
from weighbridge.numerics.rewrites.rewrite_table import TABLE

aten = torch.ops.aten
BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)
NAN, INF = float("nan"), float("inf")


def sample(x: Tensor, points: Tensor, mode: int = BILINEAR, padding: int = ZEROS, align: bool = False) -> Tensor:
    return TABLE["grid_sampler_2d.default"](x, points, mode, padding, align)  # type: ignore[no-any-return]


def gradients(
    grad: Tensor,
    x: Tensor,
    points: Tensor,
    mode: int = BILINEAR,
    padding: int = ZEROS,
    mask: tuple[bool, bool] = (True,) * 2,
) -> tuple[Tensor | None, Tensor | None]:
    found: tuple[Tensor | None, Tensor | None] = TABLE["grid_sampler_2d_backward.default"](
        grad, x, points, mode, padding, False, list(mask)
    )
    return found


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("padding", [ZEROS, BORDER, REFLECTION])
@pytest.mark.parametrize(("d", "mode"), [(2, BILINEAR), (2, NEAREST), (2, BICUBIC), (3, BILINEAR), (3, NEAREST)])
def test_every_mode_is_the_kernels(d: int, mode: int, padding: int, align: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    for sizes in product((1, 2, 5), repeat=d):
        x = torch.randn(2, 3, *sizes, generator=generator, dtype=torch.float64)
        points = torch.randn(2, *(3, 2, 4)[:d], d, generator=generator, dtype=torch.float64) * 2
        settings = (mode, padding, align)
        wanted = getattr(aten, f"grid_sampler_{d}d")(x, points, *settings)
        torch.testing.assert_close(TABLE[f"grid_sampler_{d}d.default"](x, points, *settings), wanted)
        grad = torch.randn(wanted.shape, generator=generator, dtype=torch.float64)
        both = getattr(aten, f"grid_sampler_{d}d_backward")(grad, x, points, *settings, [True, True])
        found = TABLE[f"grid_sampler_{d}d_backward.default"](grad, x, points, *settings, [True, True])
        torch.testing.assert_close(found, both)


@pytest.mark.parametrize("mode", [BILINEAR, NEAREST, BICUBIC])
def test_what_is_stored_in_place_of_what_lies_outside_does_not_matter(mode: int) -> None:
    x = torch.full((1, 1, 8, 8), NAN)
    x[..., 4:, 4:] = 1.0
    points = torch.tensor([[5.0, 5.0], [-9.0, 0.0], [3e9, 1e30]]).view(1, 1, 3, 2)
    assert not sample(x, points, mode).any()
    of_x, of_grid = gradients(torch.ones(1, 1, 1, 3), x, points, mode)
    assert of_x is not None
    assert of_grid is not None
    assert not of_x.any()
    assert not of_grid.any()


@pytest.mark.parametrize("mode", [BILINEAR, NEAREST, BICUBIC])
def test_coordinates_that_are_no_number_lie_outside(mode: int) -> None:
    x, points = torch.ones(1, 1, 3, 3), torch.tensor([[NAN, 0.0], [INF, 0.0], [0.0, -INF]]).view(1, 1, 3, 2)
    assert not sample(x, points, mode).any()
    of_x, _ = gradients(torch.ones(1, 1, 1, 3), x, points, mode)
    assert of_x is not None
    assert not of_x.any()


@pytest.mark.parametrize("padding", [BORDER, REFLECTION])
def test_coordinates_that_are_no_number_are_the_first_where_there_is_no_outside(padding: int) -> None:
    x, points = torch.arange(9.0).view(1, 1, 3, 3), torch.full((1, 1, 1, 2), NAN)
    assert sample(x, points, padding=padding).tolist() == [[[[0.0]]]]
    assert torch.equal(sample(x, points, padding=padding), aten.grid_sampler_2d(x, points, BILINEAR, padding, False))


def test_16_bits_are_sampled_in_32() -> None:
    x, points = torch.randn(2, 3, 5, 4).bfloat16(), torch.rand(2, 4, 4, 2).bfloat16()
    found = sample(x, points)
    assert torch.equal(found, sample(x.float(), points.float()).bfloat16())
    for mine, wide in zip(
        gradients(found, x, points), gradients(found.float(), x.float(), points.float()), strict=True
    ):
        assert mine is not None
        assert wide is not None
        assert torch.equal(mine, wide.bfloat16())


def test_only_gradients_that_are_asked_for() -> None:
    x, points = torch.randn(1, 2, 3, 3), torch.rand(1, 2, 2, 2)
    grad = torch.ones(1, 2, 2, 2)
    whole = gradients(grad, x, points)
    assert gradients(grad, x, points, mask=(False, True))[0] is None
    assert gradients(grad, x, points, mask=(True, False))[1] is None
    torch.testing.assert_close(gradients(grad, x, points, mask=(True, False))[0], whole[0])
    torch.testing.assert_close(gradients(grad, x, points, mask=(False, True))[1], whole[1])


@pytest.mark.parametrize("shape", [(0, 2, 3, 3), (2, 0, 3, 3)])
def test_no_images_or_channels(shape: tuple[int, ...]) -> None:
    assert sample(torch.zeros(shape), torch.zeros(shape[0], 4, 1, 2)).shape == (*shape[:2], 4, 1)
