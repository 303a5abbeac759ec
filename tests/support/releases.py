"""What the oldest PyTorch that `pyproject.toml` allows lacks of what the tables name (`make test-oldest`)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import torch

LATER = {
    "_cudnn_attention_backward.default", "_foreach_powsum.Scalar", "_fused_adagrad_.tensor_lr",
    "_fused_rms_norm_backward.default", "_grouped_mm.default", "_upsample_lanczos2d_aa.default",
    "_upsample_lanczos2d_aa_backward.default", "addmm.dtype", "baddbmm.dtype", "bmm.dtype", "mm.dtype",
}  # fmt: skip
"""Overloads that PyTorch got after 2.6, each reviewed by hand; a name that is misspelt does not belong here."""


def release(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version, local part aside: `2.6.0+cpu` is (2, 6, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])


@cache
def lacking() -> frozenset[str]:
    """Returns the overloads of `LATER` that this PyTorch has not got; the pinned one must have them all."""
    missing = set()
    for key in LATER:
        name, _, overload = key.partition(".")
        packet = getattr(torch.ops.aten, name, None)
        if packet is None or overload not in packet.overloads():
            missing.add(key)
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text()
    pinned = re.search(r"^torch==(\S+)$", pins, re.MULTILINE)
    assert pinned is not None
    assert not missing or release(torch.__version__) < release(pinned[1]), f"torch {torch.__version__} lacks {missing}"
    return frozenset(missing)
