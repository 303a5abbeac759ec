"""A keyed digest over all operation results of a replayed segment: what only a party that has the results can make.

State digests and checksums stand in the transcript, so a party could repeat them and execute nothing. This digest is
BLAKE3 with a key that was not known when the segment was recorded, over what each operation wrote, in order. Two
parties that executed the segment have equal digests, on any device on which the results match.

It is made by the hook `Executor.before`, so replays without it are as fast as ever. A replay with it runs no
straight-line programs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from blake3 import blake3
from torch import Tensor

from weighbridge.execution.memory_roots import may_write
from weighbridge.transcript.tape import Tape

_HEAD = struct.Struct(">QQQQ")


class WorkDigest:
    """Takes the results of one step after another."""

    def __init__(self, key: bytes) -> None:
        """Begins a segment.

        Args:
            key: Keys the digest (32 bytes); it must name the segment too (`verifier.auditing.plan.segment_key`).
        """
        self._hasher = blake3(key=key, max_threads=blake3.AUTO)

    def begin(self, step: int, tape: Tape) -> Callable[[int, Mapping[int, Tensor]], None]:
        """Returns what is to be called before each operation of a step, and after the last one.

        Args:
            step: Number of the step.
            tape: Its program.
        """
        written: list[list[int]] = [sorted(may_write(tape, op)) for op in range(len(tape.nodes))]

        def take(index: int, slots: Mapping[int, Tensor]) -> None:
            for slot in written[index - 1] if index else ():
                data = slots.get(slot)
                if data is not None:
                    self._hasher.update(_HEAD.pack(step, index - 1, slot, data.numel()))
                    self._hasher.update(data.cpu().numpy().data)

        return take

    def digest(self) -> bytes:
        """Returns the digest of all results so far (32 bytes)."""
        return self._hasher.digest()
