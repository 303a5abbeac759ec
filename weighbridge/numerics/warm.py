"""Loads all compiled loops, by using each once, while files can still be read and written.

On a machine that has never recorded or replayed they are compiled now (half a minute, once). A replay worker could not
keep what it compiles later. And in a recorded step, the compiler's leavings would hold tensors a little longer than a
later run of the same program does: another tape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from weighbridge.core import cbor_items, jit
from weighbridge.core.announcement import compiling
from weighbridge.numerics.context import Context
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.operations import sequences
from weighbridge.numerics.random import philox
from weighbridge.numerics.random.variates import Draw
from weighbridge.numerics.rounding import contested, cpu_kernels, narrow, rounding_log
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.canonical_nan import holds_nan
from weighbridge.numerics.sketches import codec
from weighbridge.numerics.units import chunked_products, fused_products, truncated_products

aten = torch.ops.aten


class _Forgetful(Context):
    """Rounds as a Recorder does, and as a replay does, and keeps nothing."""

    def rounded(self, wide: torch.Tensor, bound: Bound, dtype: torch.dtype) -> torch.Tensor:
        """See `Context.rounded`."""
        contested.follow(wide, bound, contested.record(wide, bound, 0, 0).entries)
        return wide.to(dtype)

    def exact(self, bits: torch.Tensor, checksum: int | None = None) -> None:
        """See `Context.exact`."""
        contested.canonicalise(bits)

    def draw(self, generator: torch.Generator | None, device: torch.device) -> Draw:
        """See `Context.draw`."""
        return Draw(0, 0, 0)

    def host(self, value: bool | int | float) -> bool | int | float:
        """See `Context.host`."""
        return value


def warm(progress: Callable[[int, int], object] | None = None) -> int:
    """Uses every compiled loop that a recording or replay may need, on the CPU, whatever tensors are by default.

    Args:
        progress: Called with (uses done, uses in all) before each loop that has to be compiled, and from the first
            one on after each use. By default, standard error says so.

    Returns:
        How many loops had to be compiled.
    """
    progress = progress or compiling()
    done = compiled = total = 0

    def begins() -> None:
        nonlocal compiled
        compiled += 1
        progress(done, total)

    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.no_grad(), torch.device("cpu"), jit.watched(begins):
            uses = _uses()
            total = len(uses)
            for use in uses:
                use()
                done += 1
                if compiled:
                    progress(done, total)
    finally:
        torch.set_default_dtype(default)
    return compiled


def warm_decoders() -> None:
    """Uses the compiled loops that decode a transcript, all but those of rounding logs. This starts no threads."""
    for use in _decoders():
        use()


def _decoders() -> list[Callable[[], object]]:
    return [
        lambda: cbor_items.count(np.zeros(1, dtype=np.uint8), 1),
        lambda: cbor_items.count(np.frombuffer(b"\x00", dtype=np.uint8), 1),
    ]


def _use_by_address() -> None:
    wide, x = torch.ones(2, dtype=torch.float64), torch.ones(2)
    cpu_kernels.round_at(wide.data_ptr(), x.data_ptr(), 2)
    lines = np.array([[sequences.SQRT, 2, 0, 0, 0, -1, 0, 0]], dtype=np.int64)
    at, numbers = np.array([x.data_ptr()], dtype=np.int64), np.empty(0, dtype=np.float32)
    sequences.run(lines, at, numbers, np.empty(1, dtype=np.uint64), np.empty(0))


def _use_model(x: torch.Tensor, unit: str) -> None:
    truncated_products.product(x, x.mT, unit)
    truncated_products.dots(x, x, unit)


def _uses() -> list[Callable[[], object]]:
    x, ones = torch.linspace(-1, 1, 512).view(2, 256), torch.ones(256)
    whole, mean = x.t().contiguous(), torch.zeros(2, 1)
    calls: list[tuple[torch._ops.OpOverload, tuple[Any, ...]]] = [
        (aten.mm.default, (x, whole)),
        (aten.sum.dim_IntList, (x, [0])),
        (aten.sum.dim_IntList, (x, [1])),
        (aten.linalg_vector_norm.default, (x,)),
        (aten.exp.default, (x,)),
        (aten.softplus.default, (x * torch.inf,)),  # nothing finite: logged as a whole
        (aten.mul.Tensor, (x, x)),
        (aten.sqrt.default, (ones,)),
        (aten.lerp.Scalar, (x, x, 0.5)),
        (aten._softmax_backward_data.default, (x, x, 1, torch.float32)),
        (aten.native_layer_norm.default, (x, [256], ones, ones, 1e-5)),
        (aten.native_layer_norm_backward.default, (x, x, [256], mean, mean + 1, ones, ones, [True, True, True])),
        (aten._native_batch_norm_legit.default, (x, ones, ones, ones.clone(), ones.clone(), True, 0.1, 1e-5)),
        (aten.native_batch_norm_backward.default, (x, x, ones, None, None, ones, ones, True, 1e-5, [True] * 3)),
        (aten.native_batch_norm_backward.default, (x, x, None, ones, ones, None, None, False, 1e-5, [True] * 3)),
        (aten.max_pool2d_with_indices_backward.default,
         (x.view(2, 1, 16, 16), x.view(2, 1, 16, 16), [1, 1], [1, 1], [0, 0], [1, 1], False,
          torch.arange(256).expand(2, 1, 256).reshape(2, 1, 16, 16))),
        (aten.randn.default, ([8],)),
        (aten.rand.default, ([8],)),
    ]  # fmt: skip
    context = _Forgetful()
    one = np.ones(1, dtype=np.int64)
    entries = [rounding_log.OpEntries(0, 0, one, one.astype(np.uint8), one.astype(np.uint64))]
    return [
        *(partial(evaluate, op, operands, {}, context) for op, operands in calls),
        lambda: fused_products.product(whole[:4] * 1e-30, x * 1e-10),
        lambda: chunked_products.chunked(x, whole),
        *(partial(_use_model, x.bfloat16(), unit) for unit in truncated_products.UNITS),
        lambda: philox.normal_float32(philox.words(0, 0, 0, 4)),
        lambda: holds_nan(ones),
        lambda: contested.round_plain(torch.ones(2, dtype=torch.float64)),
        _use_by_address,
        lambda: narrow.round_plain(torch.ones(2), torch.bfloat16),
        lambda: narrow.canonicalise(torch.ones(2, dtype=torch.bfloat16)),
        lambda: rounding_log.decode(rounding_log.encode(entries), max_entries=1),
        codec.warm,
        *_decoders(),
    ]
