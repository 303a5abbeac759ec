"""What a party shows of a disputed leaf: the agreed leaf before it, the log, and what the operation touches.

Everything in an opening is shown to be what the agreed leaf binds, so it does not matter who sent it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import DIGEST_SIZE, cbor
from weighbridge.core.errors import FormatError
from weighbridge.core.memory_map import Held
from weighbridge.execution.memory_roots import may_write
from weighbridge.transcript.state import state_digest
from weighbridge.transcript.tape import DTYPE_NAMES, DTYPES, Tape, references, resized
from weighbridge.transcript.tensor_file import raw_bytes

MAX_OPENING = 1 << 30
"""Most bytes of an opening."""

Slot = tuple[int, bytes | None, Held | None, list[bytes]]
"""(slot, its bytes if the operation reads them, what it holds, the proof of that)."""


@dataclass(frozen=True)
class Contents:
    """A state by the digests of its storages.

    Attributes:
        regions: State name to what the storage holds.
        rng: Generator name to its counter.
    """

    regions: dict[str, Held] = field(default_factory=dict)
    rng: dict[str, int] = field(default_factory=dict)

    def digest(self) -> bytes:
        """Returns the state digest (32 bytes)."""
        return state_digest({name: (each.size, each.content) for name, each in self.regions.items()}, self.rng)


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What is shown of one leaf.

    Attributes:
        log: The step's encoded rounding log.
        first: The first leaf, encoded, which binds the step's values; nothing for the first one.
        previous: The leaf before, encoded; nothing for the first one.
        slots: Of an operation: every slot that it reads, may write, makes or frees.
        state: Of the first and the last leaf: the state before the step.
        batch: Of the first leaf: batch tensors by path.
        undeclared: Of the first leaf: undeclared tensors by name.
        memory: Of the last leaf: what all slots hold after the last operation.
        worst: Of a part of an operation whose bound reads a worst row: which one.
    """

    log: bytes
    first: bytes = b""
    previous: bytes = b""
    slots: list[Slot] = field(default_factory=list)
    state: Contents = field(default_factory=Contents)
    batch: dict[str, Tensor] = field(default_factory=dict)
    undeclared: dict[str, Tensor] = field(default_factory=dict)
    memory: dict[int, Held] = field(default_factory=dict)
    worst: int | None = None

    def to_cbor(self) -> bytes:
        """Returns the opening as deterministic CBOR."""
        return cbor(
            {
                "log": self.log,
                "first": self.first,
                "previous": self.previous,
                "slots": [[slot, data, _pair(held), proof] for slot, data, held, proof in self.slots],
                "regions": {name: _pair(held) for name, held in self.state.regions.items()},
                "rng": self.state.rng,
                "batch": _tensors(self.batch),
                "undeclared": _tensors(self.undeclared),
                "memory": [[slot, held.size, held.content] for slot, held in sorted(self.memory.items())],
            }
            | ({} if self.worst is None else {"worst": self.worst})
        )

    @classmethod
    def from_cbor(cls, data: bytes) -> Opening:
        """Reads what `to_cbor` wrote.

        Raises:
            FormatError: It is no opening.
        """
        if len(data) > MAX_OPENING:
            raise FormatError(f"An opening of {len(data)} bytes is larger than {MAX_OPENING}; ask for it again.")
        raw = decode_cbor(data)
        try:
            opening = cls(
                log=_bytes(raw["log"]),
                first=_bytes(raw["first"]),
                previous=_bytes(raw["previous"]),
                slots=[
                    (
                        _natural(slot), None if content is None else _bytes(content),
                        None if held is None else _held(held), [_bytes(each) for each in proof],
                    )
                    for slot, content, held, proof in raw["slots"]
                ],
                state=Contents(
                    {_text(name): _held(pair) for name, pair in raw["regions"].items()},
                    {_text(name): _natural(at) for name, at in raw["rng"].items()},
                ),
                batch=_read(raw["batch"]),
                undeclared=_read(raw["undeclared"]),
                memory={_natural(slot): _held(pair) for slot, *pair in raw["memory"]},
                worst=_natural(raw["worst"]) if "worst" in raw else None,
            )  # fmt: skip
            again = opening.to_cbor()
        except (TypeError, ValueError, LookupError, AttributeError, RuntimeError, OverflowError):
            raise FormatError("An opening has not the fields of an opening; ask for it again.") from None
        if again != data:
            raise FormatError("An opening is not in its one encoding; ask for it again.")
        return opening


def opened_slots(tape: Tape, op: int) -> list[tuple[int, bool]]:
    """Returns the slots that an opening of an operation shows, ascending, and whether it shows their bytes."""
    node = tape.nodes[op]
    reads = {tape.refs[ref][0] for ref in references((node.args, tuple(node.kwargs.values())))}
    freed = {slot for at, slot in tape.frees if at == op}
    return [(slot, slot in reads) for slot in sorted(reads | freed | may_write(tape, op))]


def most_shown(tape: Tape) -> int:
    """Returns how many bytes of storages an opening of any operation shows at most, each at its largest size so far.

    Raises:
        TapeError: The tape names an operation that does not exist.
    """
    sizes = {item.slot: item.bytes for item in tape.inputs}
    most = sum(item.bytes for item in tape.inputs if item.origin not in ("state", "dropped"))  # the batch: leaf 0
    for op, node in enumerate(tape.nodes):
        most = max(most, sum(sizes.get(slot, 0) for slot, reads in opened_slots(tape, op) if reads))
        sizes.update((slot, max(size, sizes.get(slot, 0))) for slot, size in (*node.births, *resized(tape, node)))
    return most


def _pair(held: Held | None) -> list[Any] | None:
    return None if held is None else [held.size, held.content]


def _tensors(tensors: Mapping[str, Tensor]) -> list[list[Any]]:
    return [
        [name, DTYPE_NAMES[each.dtype], list(each.shape), bytes(raw_bytes(each))]
        for name, each in sorted(tensors.items())
    ]


def _read(raw: Any) -> dict[str, Tensor]:
    found = {}
    for name, dtype, shape, data in raw:
        flat = torch.frombuffer(bytearray(_bytes(data)), dtype=torch.uint8) if data else torch.empty(0).byte()
        found[_text(name)] = flat.view(DTYPES[dtype]).view([_natural(size) for size in shape])
    return found


def _held(raw: Any) -> Held:
    size, content = raw
    if len(_bytes(content)) != DIGEST_SIZE or _natural(size) >= 1 << 62:
        raise ValueError("digest")
    return Held(size, content)


def _natural(raw: Any) -> int:
    if type(raw) is not int or not 0 <= raw < 1 << 64:
        raise ValueError("number")
    return raw


def _bytes(raw: Any) -> bytes:
    if type(raw) is not bytes:
        raise TypeError("bytes")
    return raw


def _text(raw: Any) -> str:
    if type(raw) is not str:
        raise TypeError("text")
    return raw
