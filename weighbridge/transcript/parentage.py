"""Fine-tuning: what a run began from, as its draft declares it, and what really entered it.

W_0 is either made by a recorded initialisation from a short seed, or content came in from outside: as a model that
existed when the recording began, or as tensors that the initialisation loaded. Where that content came from, no replay
of this run can tell. So the draft may name a *parent*: another transcript, and a step before which its state held it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weighbridge.core.digests import DIGEST_SIZE, Leaf, region_digest
from weighbridge.core.errors import FormatError, TranscriptError, UsageError
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.state import DTYPES, Checkpoint
from weighbridge.transcript.steps import MAX_STEPS
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.tensor_file import raw_bytes

__all__ = ["Parent"]

KEY = "parent"
"""Key of the draft that holds the declaration."""

_HEX = re.compile(r"[0-9a-f]{64}")
_PERIOD = 8
"""Content that repeats itself after so many bytes (zeros, ones) is trivial: any program makes it."""

_FEW = 16
"""So many different trivial contents any program makes; more of them, each in its own storage, could be a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parent:
    """The state of another run that a run began from.

    Attributes:
        transcript: Identifier of the other run's transcript: 64 hexadecimal digits.
        step: The state before this step of it; its number of steps for the state at its end.
        state: Digest of that state, as the record of the step before names it (32 bytes).
    """

    transcript: str
    step: int
    state: bytes

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: A field is none of its kind.
        """
        if not _HEX.fullmatch(self.transcript) or type(self.step) is not int or not 1 <= self.step < MAX_STEPS:
            raise UsageError("a parent is named by a transcript's identifier and a step from 1 on; use Parent.of")
        if type(self.state) is not bytes or len(self.state) != DIGEST_SIZE:
            raise UsageError("a parent's state is named by a digest of 32 bytes; use Parent.of")

    @classmethod
    def of(cls, transcript: Transcript | str | Path, step: int | None = None) -> Parent:
        """Names the state before `step` of a transcript as a parent; by default the state at its end.

        Raises:
            TranscriptError: The transcript does not verify.
            UsageError: It has no such state.
        """
        opened = transcript if isinstance(transcript, Transcript) else Transcript.open(transcript)
        at = opened.steps if step is None else step
        if not 1 <= at <= opened.steps:
            raise UsageError(f"{opened.manifest.name} has states before steps 1 to {opened.steps}, none before {at}")
        return cls(transcript=opened.digest, step=at, state=opened.step(at - 1).state)

    def to_map(self) -> dict[str, Any]:
        """Returns what a draft says of it."""
        return {"transcript": bytes.fromhex(self.transcript), "step": self.step, "state": self.state}


def declared(transcript: Transcript) -> Parent | None:
    """Returns the parent that a transcript declares, in its draft or in step 0, or None if it declares none.

    Raises:
        FormatError: What it declares has another form.
    """
    said = transcript.draft.get(KEY)
    if said is None and transcript.steps:
        said = transcript.step(0).parent or None
    return from_map(said)


def from_map(said: object) -> Parent | None:
    """Returns the parent that a declaration names, or None if there is no declaration.

    Raises:
        FormatError: It has another form.
    """
    match said:
        case None:
            return None
        case {"transcript": bytes(name), "step": int(step), "state": bytes(state), **rest} if not rest:
            try:
                return Parent(transcript=name.hex(), step=step, state=state)
            except UsageError as error:
                raise FormatError(f"the parent that the run declares is malformed: {error.message}") from None
    raise FormatError("the draft's parent is not a map of transcript, step and state; ask for the run's declaration")


def entered(
    transcript: Transcript, salt: bytes, idle: Collection[str] = (), beside: Callable[[str], bool] = lambda _: False
) -> Counter[Leaf]:
    """Returns the content that W_0 was made from and no recorded program made, as (bytes, digest under `salt`).

    It is the state that existed when the recording began, and what the initialisation took from outside: undeclared
    tensors, and a batch, which could be W_0 itself. Left out is what goes nowhere from there, and what any program
    makes: up to eight bytes, or content that repeats itself after eight, as long as there are no more than 16 different
    such contents. Of a batch the small tensors count too, together: thousands of them could be W_0 as well.

    Args:
        transcript: A verified transcript.
        salt: Of the digests.
        idle: Names of what the initialisation took in that is to be left out, such as what no later step depends on.
        beside: Tells by their names which storages that existed before are to be left out.

    Raises:
        TranscriptError: The transcript is not what it was when it was opened, or does not hold what it began from
            (`transcript.malformed`).
        TapeError: The tape of step 0 is malformed.
    """
    found: Counter[Leaf] = Counter()
    if not transcript.steps:
        return found
    small, units = Counter[Leaf](), set[bytes]()
    for data in _contents(transcript, idle, beside):
        raw = raw_bytes(data)
        leaf = len(raw), region_digest(raw, salt)
        if trivial(np.frombuffer(raw, dtype=np.uint8)):
            small[leaf] += 1
            units.add(bytes(raw[:_PERIOD]))
        else:
            found[leaf] += 1
    return found + small if len(units) > _FEW else found


def _contents(transcript: Transcript, idle: Collection[str], beside: Callable[[str], bool]) -> Iterator[Tensor]:
    yield from (data for name, data in transcript.undeclared(0).items() if name not in idle)
    batch = [data for name, data in transcript.batch(0).items() if name not in idle]
    yield from (data for data in batch if data.nbytes > _PERIOD)
    if small := [raw_bytes(data) for data in batch if 0 < data.nbytes <= _PERIOD]:
        yield torch.frombuffer(bytearray(b"".join(bytes(each) for each in small)), dtype=torch.uint8)
    if not Tape.decode(transcript.tape(transcript.step(0).tape)).nodes:
        yield from (data for name, data in existing(transcript).items() if not beside(name))


def existing(transcript: Transcript) -> dict[str, Tensor]:
    """Returns the storages by name of a run whose step 0 makes nothing: what was there before step 1, as flat bytes.

    Raises:
        TranscriptError: There are steps after it and no checkpoint of that, so what it was cannot be told.
    """
    if 1 in transcript.checkpoint_steps:
        return transcript.checkpoint(1).storages
    if transcript.steps > 1:
        raise TranscriptError(
            "no tape makes what the run began from, and no checkpoint before step 1 holds it; ask for the transcript "
            "as it was recorded",
            code="transcript.malformed",
        )
    return {}


def held(checkpoint: Checkpoint, salt: bytes, brought: Collection[str] = ()) -> Counter[Leaf]:
    """Returns what a state held, storage by storage and view by view, as (bytes, digest under `salt`).

    Args:
        checkpoint: The state.
        salt: Of the digests.
        brought: Names of storages to leave out, such as what the run did not make.
    """
    found: Counter[Leaf] = Counter()
    for name, data in checkpoint.storages.items():
        if name not in brought:
            found[_leaf(data, salt)] += 1
    for view in checkpoint.views:
        if view.storage in brought:
            continue
        size, own = checkpoint.storages[view.storage].numel(), math.prod(view.size) * DTYPES[view.dtype].itemsize
        if not view.covers(size) and own <= size:  # a view that repeats itself could be of any size
            found[_leaf(view.tensor(checkpoint.storages).contiguous(), salt)] += 1
    return found


def unexplained(content: Counter[Leaf], by: Counter[Leaf]) -> int:
    """Returns the bytes of some content that others do not hold; what they hold once may enter several times."""
    return sum(size * count for (size, digest), count in content.items() if (size, digest) not in by)


def _leaf(data: Tensor, salt: bytes) -> Leaf:
    raw = raw_bytes(data)
    return len(raw), region_digest(raw, salt)


def trivial(raw: np.ndarray[Any, np.dtype[np.uint8]]) -> bool:
    """True for content that any program makes: up to eight bytes, or what repeats itself after eight."""
    if raw.size <= _PERIOD:
        return True
    return bool(np.array_equal(raw[_PERIOD:], raw[:-_PERIOD]))
