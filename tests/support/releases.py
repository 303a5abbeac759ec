"""What the oldest PyTorch that `pyproject.toml` allows lacks of what the tables name (`make test-oldest`)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed  # registers the class that `need_jobs` asks

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
    assert not missing or older_than_pinned(), f"torch {torch.__version__} lacks {missing}"
    return frozenset(missing)


def older_than_pinned() -> bool:
    """Says whether this PyTorch is older than the one in `constraints.txt`."""
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text()
    pinned = re.search(r"^torch==(\S+)$", pins, re.MULTILINE)
    assert pinned is not None
    return release(torch.__version__) < release(pinned[1])


def need_jobs() -> None:
    """Skips a test of a job on several ranks where collectives do not say which reduction they make (PyTorch 2.6).

    The Recorder refuses such jobs there: `test_a_reduction_that_cannot_be_read_is_refused`.
    """
    if not torch.classes.c10d.ReduceOp()._has_method("op"):
        assert older_than_pinned(), "the pinned PyTorch must say it"
        pytest.skip("this PyTorch records no jobs on several ranks")
