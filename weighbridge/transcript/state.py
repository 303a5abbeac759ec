"""State: what outlives a step, its digest, and its form on disk as a checkpoint.

State is a set of storages (flat memory) with named views on them, so that tied and flattened weights are stored once,
plus the counters of the random generators.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weighbridge.core.bounded import DEFAULT_LIMITS, Limits
from weighbridge.core.digests import bytes_digest, record_digest
from weighbridge.core.errors import FormatError, UsageError
from weighbridge.transcript.tensor_file import DTYPES, TensorFile, dtype_name, raw_bytes, write_tensors

__all__ = [
    "DTYPES",
    "Checkpoint",
    "View",
    "checkpoint_digest",
    "dtype_name",
    "read_checkpoint",
    "state_digest",
    "write_checkpoint",
]

_FORMAT = "weighbridge-checkpoint/1"
_WORD = 1 << 64


@dataclass(frozen=True, slots=True)
class View:
    """A named tensor on a storage.

    Attributes:
        name: Name of the tensor, e.g. `model.wte.weight`; unique in a checkpoint.
        storage: Name of the storage it lies on.
        dtype: Short dtype name, a key of `DTYPES`.
        size: Sizes.
        stride: Strides in elements, never negative.
        offset: First element, counted in elements of `dtype` from the start of the storage.
    """

    name: str
    storage: str
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def end(self) -> int:
        """Returns the byte of the storage after the last one that this view can touch (0 for an empty view)."""
        if 0 in self.size:
            return 0
        last = self.offset + sum((size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True))
        return (last + 1) * DTYPES[self.dtype].itemsize

    def covers(self, nbytes: int) -> bool:
        """Tells whether this view is contiguous and is the whole of a storage of `nbytes` bytes."""
        expected, elements = [], 1
        for size in reversed(self.size):
            expected.append(elements)
            elements *= size
        contiguous = list(self.stride) == expected[::-1]
        return self.offset == 0 and contiguous and elements * DTYPES[self.dtype].itemsize == nbytes

    def tensor(self, storages: Mapping[str, Tensor]) -> Tensor:
        """Returns the tensor as a view on its storage.

        Args:
            storages: Storage name to 1-D uint8 tensor; a `Checkpoint`'s.
        """
        typed = storages[self.storage].view(DTYPES[self.dtype])
        return typed.as_strided(self.size, self.stride, self.offset)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A stored state: the state before `step`.

    Attributes:
        step: The step that would run next.
        storages: Storage name to its bytes, a 1-D uint8 tensor in host memory.
        views: Named tensors on the storages.
        rng: Generator name to its counter.
    """

    step: int
    storages: dict[str, Tensor]
    views: list[View]
    rng: dict[str, int] = field(default_factory=dict)


def state_digest(storages: Mapping[str, tuple[int, bytes]], rng: Mapping[str, int]) -> bytes:
    """Returns the 32-byte digest of a state.

    Args:
        storages: Storage name to (number of bytes, 32-byte BLAKE3 digest of the raw bytes).
        rng: Generator name to its counter.
    """
    return record_digest(
        "state/1", {"storages": {name: list(entry) for name, entry in storages.items()}, "rng": dict(rng)}
    )


def checkpoint_digest(checkpoint: Checkpoint) -> bytes:
    """Returns the `state_digest` of a checkpoint's storages and counters."""
    regions = {name: (data.numel(), bytes_digest(raw_bytes(data))) for name, data in checkpoint.storages.items()}
    return state_digest(regions, checkpoint.rng)


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint as safetensors (docs/formats/transcript.md).

    A storage that one contiguous view covers is stored as that typed tensor, so that other tools see weights; any other
    as bytes. The view table and the counters are JSON in the metadata.

    Raises:
        UsageError: A view does not lie within its storage, or a storage is not flat bytes.
    """
    for name, data in checkpoint.storages.items():
        if data.dtype != torch.uint8 or data.dim() != 1:
            raise UsageError(f"storage {name!r} must be a 1-D uint8 tensor; view its untyped storage as bytes")
    try:
        _check(checkpoint)
    except ValueError as error:
        raise UsageError(f"this checkpoint cannot be stored: {error}; correct its view table") from None
    metadata = {
        "format": _FORMAT,
        "step": str(checkpoint.step),
        "views": _canonical([asdict(view) for view in checkpoint.views]),
        "rng": _canonical(checkpoint.rng),
    }
    write_tensors(path, _typed(checkpoint), metadata)


def read_checkpoint(path: Path, limits: Limits = DEFAULT_LIMITS) -> Checkpoint:
    """Reads a checkpoint, trusting nothing in it.

    Raises:
        FormatError: The file does not follow the format, or a view does not lie within its storage.
        TranscriptError: The file is missing, not regular or larger than the limits.
    """
    file = TensorFile(path, limits)
    if set(file.metadata) != {"format", "step", "views", "rng"} or file.metadata["format"] != _FORMAT:
        raise FormatError(f"{path.name} is not a checkpoint of format {_FORMAT}; give a file from checkpoints/")
    try:
        step = _load(file.metadata["step"])
        views = [_view(value) for value in _load(file.metadata["views"])]
        rng = dict(_load(file.metadata["rng"]).items())
        layout = {name: file.shape(name) for name in file}
        storages = {name: file.read(name).reshape(-1).view(torch.uint8) for name in layout}
        checkpoint = Checkpoint(step, storages, views, rng)
        _check(checkpoint)
        if {name: (data.dtype, tuple(data.shape)) for name, data in _typed(checkpoint).items()} != layout:
            raise ValueError("its tensors are not the ones that its view table calls for")
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise FormatError(f"{path.name} is not a valid checkpoint ({error}); fetch it again", path=path.name) from None
    return checkpoint


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _load(text: str) -> Any:
    value = json.loads(text)
    if _canonical(value) != text:
        raise ValueError("metadata is not canonical JSON")
    return value


def _view(value: Any) -> View:
    size, stride = value["size"], value["stride"]
    if type(size) is not list or type(stride) is not list or type(value["name"]) is not str:
        raise ValueError("a view has no name or sizes")
    return View(**{**value, "size": tuple(size), "stride": tuple(stride)})


def _natural(value: Any, bound: int = 1 << 62) -> bool:
    return type(value) is int and 0 <= value < bound


def _check(checkpoint: Checkpoint) -> None:
    """Raises ValueError unless every view lies within its storage and all numbers are sane."""
    if not _natural(checkpoint.step):
        raise ValueError("the step is not a natural number")
    if not all(_natural(counter, _WORD) for counter in checkpoint.rng.values()):
        raise ValueError("a generator counter is not a 64-bit natural number")
    names = set()
    for view in checkpoint.views:
        if view.name in names:
            raise ValueError(f"view {view.name!r} occurs twice")
        names.add(view.name)
        if view.dtype not in DTYPES or view.storage not in checkpoint.storages:
            raise ValueError(f"view {view.name!r} names an unknown dtype or storage")
        if len(view.size) != len(view.stride) or len(view.size) > 64:
            raise ValueError(f"view {view.name!r} has sizes and strides that do not belong together")
        if not all(_natural(number) for number in (*view.size, *view.stride, view.offset)):
            raise ValueError(f"view {view.name!r} has a size, stride or offset out of range")
        nbytes = checkpoint.storages[view.storage].numel()
        if max(view.end(), view.offset) > nbytes or nbytes % DTYPES[view.dtype].itemsize:
            raise ValueError(f"view {view.name!r} does not lie within its storage")


def _typed(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Returns each storage as the tensor that the file holds: typed where one whole view explains it, else bytes."""
    views: dict[str, list[View]] = {}
    for view in checkpoint.views:
        views.setdefault(view.storage, []).append(view)
    result = {}
    for name, data in checkpoint.storages.items():
        only = views.get(name, [])
        whole = len(only) == 1 and only[0].covers(data.numel())
        # Of nothing, the stride may be 0, and then it has no view of another type.
        typed = data if data.numel() else torch.empty(0, dtype=torch.uint8)
        result[name] = typed.view(DTYPES[only[0].dtype]).reshape(only[0].size) if whole else data
    return result
