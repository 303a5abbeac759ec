"""What the arguments of a step have beside tensors, as something that can be compared."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

import torch

from prover.recording.structure import NotPlainError


def without_tensors(value: Any) -> list[Any]:
    """Returns what a nest of arguments has beside tensors, in order.

    Raises:
        NotPlainError: Something in it cannot be compared.
    """
    if isinstance(value, torch.Tensor):
        return [type(value)]
    if value is None or type(value) in (bool, int, float, str, bytes, torch.dtype, torch.device):
        return [type(value), value or repr(value)]  # of two zeros that are equal, one may be negative
    if hasattr(value, "keys") and hasattr(value, "__getitem__"):
        return [type(value), *(part for key in value.keys() for part in (key, *without_tensors(value[key])))]  # noqa: SIM118
    if isinstance(value, (list, tuple)):
        return [type(value), len(value), *(part for each in value for part in without_tensors(each))]
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value), *without_tensors(vars(value))]
    raise NotPlainError(f"an argument is a {type(value).__name__}")


def plain(args: tuple[Any, ...]) -> list[Any] | None:
    """Returns the same of all arguments of a call, or None if they cannot be compared."""
    try:
        return without_tensors(args)
    except NotPlainError:
        return None
