"""Random operations: which variates an overload draws, from counter-based Philox.

Elements are numbered in row-major order of the logical tensor, whatever its layout, so a strided and a contiguous
tensor of the same shape get the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.random import device_philox, philox
from weighbridge.numerics.rule_table import base_name
from weighbridge.numerics.schemas import Op

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Draw:
    """The key of one draw: (seed, stream, counter); the element index completes it."""

    seed: int
    stream: int
    counter: int


Drawer = Callable[[torch.Generator | None, torch.device], Draw]


COMPILED = frozenset({"cpu"})
"""Kinds of device for which words are made by compiled code; elsewhere by PyTorch operations, on the device."""
_LONGEST = 1 << 31
"""Longest range of integers whose remainders 64-bit operations can take."""


def _device_words(draw: Draw, device: torch.device, count: int, first: int = 0) -> Tensor:
    return device_philox.words(draw.seed, draw.stream, draw.counter, count, device, first)


def unit(draw: Draw, count: int, device: torch.device) -> Tensor:
    """Returns `count` float32 multiples of 2^-24 in [0, 1)."""
    if device.type in COMPILED:
        return torch.from_numpy(philox.unit_float32(philox.words(draw.seed, draw.stream, draw.counter, count)))
    return device_philox.in_chunks(
        count, lambda first, n: device_philox.unit_float32(_device_words(draw, device, n, first))
    )


def normal(draw: Draw, count: int, device: torch.device) -> Tensor:
    """Returns `count` standard normal float32 variates."""
    if device.type in COMPILED:
        return torch.from_numpy(philox.normal_float32(philox.words(draw.seed, draw.stream, draw.counter, count)))
    return device_philox.in_chunks(
        count, lambda first, n: device_philox.normal_float32(_device_words(draw, device, n, first))
    )


def integers(draw: Draw, low: int, high: int, count: int, device: torch.device) -> Tensor:
    """Returns `count` int64 in [low, high); the bias of the modulus is below 2^-32 for ranges below 2^32."""
    span = high - low
    if span <= 0 or span > 1 << 63:
        raise RefusedOperationError(f"an integer range from {low} to {high} is empty or too large")
    if device.type in COMPILED or span > _LONGEST:
        w = philox.wide_words(draw.seed, draw.stream, draw.counter, count)
        return torch.from_numpy((w % np.uint64(span)).astype(np.int64) + low).to(device)
    return low + device_philox.in_chunks(
        count, lambda first, n: device_philox.integers(_device_words(draw, device, 2 * n, 2 * first), span)
    )


def permutation(draw: Draw, count: int, device: torch.device) -> Tensor:
    """Returns a permutation of range(count), int64: the stable order of 64-bit words."""
    if device.type in COMPILED:
        w = philox.wide_words(draw.seed, draw.stream, draw.counter, count)
        return torch.from_numpy(np.argsort(w, kind="stable").astype(np.int64))
    return device_philox.order(_device_words(draw, device, 2 * count))


def _affine(values: Tensor, scale: Any, shift: Any) -> Tensor:
    """values*scale + shift as two separate IEEE operations in float32."""
    result: Tensor = (values * scale) + shift
    return result


def drawn_shape(bound: dict[str, Any]) -> tuple[int, ...]:
    """Returns the shape of what a random overload makes.

    Args:
        bound: Its operands by schema name.
    """
    if isinstance(bound.get("self"), Tensor):
        return tuple(bound["self"].shape)
    if "size" in bound:
        return tuple(bound["size"])
    parameters = [v.shape for v in (bound.get("mean"), bound.get("std")) if isinstance(v, Tensor)]
    return tuple(torch.broadcast_shapes(*parameters)) if parameters else (bound["n"],)  # type: ignore[no-untyped-call]


def sample(op: Op, args: Sequence[Any], kwargs: dict[str, Any], bound: dict[str, Any], drawer: Drawer) -> Any:
    """Evaluates a random overload.

    Args:
        op: The overload; its rule is `random`.
        args: Positional operands.
        kwargs: Keyword operands.
        bound: Operands by schema name.
        drawer: Gives the key of the draw for (generator, device).

    Returns:
        A new tensor, or the operand that was filled.

    Raises:
        RefusedOperationError: For dtypes other than float32, integers and bool.
    """
    name, _ = base_name(op)
    existing = bound.get("self")
    if isinstance(existing, Tensor):
        device, dtype, shape = existing.device, existing.dtype, tuple(existing.shape)
        if bound.get("dtype") is not None:
            dtype = bound["dtype"]
        if bound.get("device") is not None:
            device = torch.device(bound["device"])
    else:
        parameters = [v for v in (bound.get("mean"), bound.get("std")) if isinstance(v, Tensor)]
        device = parameters[0].device if parameters else torch.device(bound.get("device") or "cpu")
        integral = name in ("randint", "randperm")
        named = bound.get("dtype")  # a default of the schema is a number instead, that of int64
        dtype = named if isinstance(named, torch.dtype) else torch.int64 if integral else torch.get_default_dtype()
        dtype = parameters[0].dtype if parameters else dtype
        shape = drawn_shape(bound)
    if dtype.is_complex or dtype is torch.float64:
        raise RefusedOperationError(
            f"{op} for {dtype}: random values are made in float32; convert afterwards", operation=str(op)
        )
    count = int(np.prod(shape, dtype=np.int64)) if shape else 1
    draw = drawer(bound.get("generator"), device)

    def put(values: Tensor) -> Tensor:
        return values.view(shape)

    if name in ("rand", "rand_like"):
        result = put(unit(draw, count, device))
    elif name in ("randn", "randn_like"):
        result = put(normal(draw, count, device))
    elif name == "uniform":
        result = _affine(put(unit(draw, count, device)), bound["to"] - bound["from"], bound["from"])
    elif name == "normal":
        result = _affine(put(normal(draw, count, device)), bound["std"], bound["mean"])
    elif name == "bernoulli":
        probability: Any = bound.get("p", existing)
        if isinstance(probability, Tensor):
            probability = probability.to(torch.float64)
        result = put(unit(draw, count, device)).to(torch.float64) < probability
    elif name in ("randint", "randint_like"):
        result = put(integers(draw, bound.get("low", 0), bound["high"], count, device))
    elif name == "randperm":
        result = put(permutation(draw, bound["n"], device))
    else:  # random_: every integer the type can hold exactly
        low, high = bound.get("from", 0) or 0, bound.get("to")
        if high is None:
            high = (1 << 24) + 1 if dtype.is_floating_point else 2 if dtype is torch.bool else torch.iinfo(dtype).max
        result = put(integers(draw, low, high, count, device))
    if op._schema.name.endswith("_") and isinstance(existing, Tensor):
        return existing.copy_(result)
    return result.to(dtype)
