"""Tensor files: a strict, deterministic subset of safetensors.

The same tensors always give the same bytes (the reference writer shuffles metadata), and the reader trusts nothing: it
parses the header itself, insists on the one form in which these tensors are written, and allocates only what the file
really holds.
Any safetensors library reads the result. Numbers are little endian.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weighbridge.core.bounded import DEFAULT_LIMITS, Limits, decode_json, open_regular
from weighbridge.core.errors import FormatError, TranscriptError, UsageError
from weighbridge.core.host_memory import octets

DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
"""The dtypes a transcript can hold, by the short name that records use; safetensors writes the same in capitals."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MAX_DIMENSIONS = 64


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the short name of `dtype`, e.g. `bf16`.

    Raises:
        UsageError: Transcripts cannot hold this dtype.
    """
    try:
        return _NAMES[dtype]
    except KeyError:
        raise UsageError(f"{dtype} cannot be stored in a transcript; use one of {', '.join(DTYPES)}") from None


def raw_bytes(tensor: Tensor) -> memoryview:
    """Returns the elements of a dense tensor, row-major, as bytes in host memory (a copy only if needed).

    Raises:
        UsageError: The tensor is sparse, quantised or otherwise without plain elements.
    """
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UsageError("only dense tensors can be stored; convert with .to_dense() or .dequantize() first")
    flat = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous().reshape(-1)
    return octets(flat)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes a tensor file; the same content gives the same bytes.

    Args:
        path: File to create; an existing one is replaced.
        tensors: Dense tensors of the dtypes in `DTYPES`, any device.
        metadata: Text pairs for the `__metadata__` entry.

    Raises:
        UsageError: A tensor cannot be stored.
    """
    if "__metadata__" in tensors:
        raise UsageError("a tensor may not be named __metadata__; rename it")
    types = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    try:
        names, text = _header(types, metadata or {})
    except UnicodeEncodeError:
        raise UsageError("a tensor's name or the metadata is not valid Unicode; rename it") from None
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            file.write(raw_bytes(tensors[name]))


def _header(
    tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[list[str], bytes]:
    """Returns the names in the order in which their tensors are stored, and the header, of tensors of some types."""
    # Wide elements first, so that each tensor starts at a multiple of its element size.
    names = sorted(tensors, key=lambda name: (-tensors[name][0].itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    offset = 0
    for name in names:
        dtype, shape = tensors[name]
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": dtype_name(dtype).upper(), "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return names, text + b" " * (-len(text) % 8)


@dataclass(frozen=True, slots=True)
class _Entry:
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


class TensorFile:
    """A checked tensor file on disk; tensors are read one by one when asked for.

    Attributes:
        metadata: The text pairs of the `__metadata__` entry.
    """

    metadata: dict[str, str]

    def __init__(self, path: Path, limits: Limits = DEFAULT_LIMITS, *, other_writers: bool = False) -> None:
        """Parses and checks the header of `path`.

        Args:
            path: The file.
            limits: On what it may hold.
            other_writers: Whether to take what other writers of safetensors write too; a transcript has no such file.

        Raises:
            FormatError: The file does not follow the format to the byte.
            TranscriptError: The file is missing, not regular or larger than the limits.
        """
        self.path = path
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > limits.file:
                raise TranscriptError(
                    f"{path.name} has {size} bytes, above the limit of {limits.file}; raise the limit if you trust it",
                    code="transcript.file.oversized",
                    path=path.name,
                )
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
            if length > min(limits.header, size - 8):
                raise _bad(path, "its header length does not fit the file")
            header = file.read(length)
        self._data_start = 8 + length
        self._folders: dict[str, list[str]] | None = None
        self.metadata, self._entries = _parse_header(path, header, size - self._data_start, limits)
        if not other_writers:
            types = {name: (entry.dtype, entry.shape) for name, entry in self._entries.items()}
            if _header(types, self.metadata)[1] != header:
                raise _bad(path, "its header is not in the one form in which such tensors are stored")

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def below(self, folder: str) -> list[str]:
        """Returns the names that begin with `folder` and a slash; the first call sorts all names by folder."""
        if self._folders is None:
            self._folders = {}
            for name in self._entries:
                self._folders.setdefault(name.partition("/")[0], []).append(name)
        return self._folders.get(folder, [])

    def shape(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """Returns (dtype, shape) of a tensor without reading it."""
        entry = self._entry(name)
        return entry.dtype, entry.shape

    def read(self, name: str) -> Tensor:
        """Reads one tensor into host memory of its own.

        Raises:
            FormatError: No such tensor, the file has shrunk meanwhile, or a boolean is neither 0 nor 1.
        """
        entry = self._entry(name)
        raw = torch.empty(entry.end - entry.start, dtype=torch.uint8)
        with open_regular(self.path) as file:
            file.seek(self._data_start + entry.start)
            if file.readinto(raw.numpy().data) != entry.end - entry.start:
                raise _bad(self.path, f"tensor {name!r} ends early")
        if entry.dtype == torch.bool and bool(np.any(raw.numpy() > 1)):
            raise _bad(self.path, f"tensor {name!r} holds booleans that are neither 0 nor 1")
        return raw.view(entry.dtype).reshape(entry.shape)

    def _entry(self, name: str) -> _Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise _bad(self.path, f"it has no tensor {name!r}") from None


def _bad(path: Path, why: str) -> FormatError:
    return FormatError(f"{path.name} is not a valid tensor file: {why}; fetch it again", path=path.name)


def _parse_header(path: Path, text: bytes, data_size: int, limits: Limits) -> tuple[dict[str, str], dict[str, _Entry]]:
    try:
        header = decode_json(text, max_items=limits.header // 4, unique_keys=True)
    except FormatError as error:
        raise _bad(path, f"its header is not JSON ({error.message})") from None
    if not isinstance(header, dict):
        raise _bad(path, "its header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _bad(path, "its metadata is not a map of text")
    try:
        "".join([*header, *metadata, *metadata.values()]).encode()
    except UnicodeEncodeError:  # JSON can escape half a character; digests and reports cannot hold it
        raise _bad(path, "a name or its metadata is not valid Unicode") from None
    if len(header) > limits.tensors:
        raise _bad(path, f"it has {len(header)} tensors, above the limit of {limits.tensors}")
    entries = {name: _parse_entry(path, name, value) for name, value in header.items()}
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != position:
            raise _bad(path, f"tensor {name!r} does not start where the one before ends")
        position = entry.end
    if position != data_size:
        raise _bad(path, f"its tensors need {position} bytes and it holds {data_size}")
    return metadata, entries


def _parse_entry(path: Path, name: str, value: Any) -> _Entry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise _bad(path, f"entry {name!r} does not have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype != dtype.upper() or dtype.lower() not in DTYPES:
        raise _bad(path, f"tensor {name!r} has a dtype other than {', '.join(DTYPES)}")
    for numbers, most in ((shape, _MAX_DIMENSIONS), (offsets, 2)):
        if not isinstance(numbers, list) or len(numbers) > most:
            raise _bad(path, f"tensor {name!r} has a malformed shape or offsets")
        if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
            raise _bad(path, f"tensor {name!r} has sizes that are not small natural numbers")
    if len(offsets) != 2:
        raise _bad(path, f"tensor {name!r} does not have two offsets")
    torch_dtype = DTYPES[dtype.lower()]
    # An empty tensor may not have other sizes that overflow. Python's own integers hold any product.
    if math.prod(max(size, 1) for size in shape) >= 1 << 62:
        raise _bad(path, f"tensor {name!r} has an impossible shape")
    if offsets[1] - offsets[0] != math.prod(shape) * torch_dtype.itemsize:
        raise _bad(path, f"tensor {name!r} has a shape that does not fit its offsets")
    return _Entry(torch_dtype, tuple(shape), offsets[0], offsets[1])
