"""The Recorder's own reading of memory, outside dispatch modes: a chip must not count it as the workload's."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from weighbridge.core.host_memory import bytes_of, octets

P = ParamSpec("P")
T = TypeVar("T")


def storage_bytes(storage: torch.UntypedStorage) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a storage in host memory, without an operation that a chip would count as the workload's."""
    if storage.device.type == "cpu":
        return bytes_of(storage)
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return np.frombuffer(octets(whole), dtype=np.uint8)


def unseen(method: Callable[P, T]) -> Callable[P, T]:
    """Marks bookkeeping between steps: the host's work, which a chip must not take for the workload's."""

    @wraps(method)
    def without_modes(*args: P.args, **kwargs: P.kwargs) -> T:
        with _disable_current_modes():
            return method(*args, **kwargs)

    return without_modes
