"""Where the gradients of parameters lie, and whether a program leaves them where a step did."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch


def lying(parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, Any]:
    """Returns what storage and which part of it each gradient is, by its name; holds no tensor."""
    grads = {name: p.grad for name, p in parameters.items()}
    return {
        name: (t.untyped_storage()._cdata, t.dtype, t.shape, t.stride(), t.storage_offset())
        for name, t in grads.items()
        if t is not None
    }


def astray(
    before: Mapping[str, Any], after: Mapping[str, Any], made: Container[str], gone: Container[str]
) -> str | None:
    """Returns why a program would leave gradients elsewhere than a step did, if it would.

    Args:
        before: Where they were before the step.
        after: Where they are after it.
        made: Names of those that lie on memory that the step made.
        gone: Names of those whose memory died in it.
    """
    for name in sorted(before.keys() | after.keys()):
        if name in made or before.get(name) == after.get(name):
            continue
        if name in after:
            return f"it puts {name} on memory that was there before, as a view of something"
        if name not in gone:
            return f"it lets go of {name}, whose memory something else holds; let go of it outside, or set it to zeros"
    return None
