"""The running digest: what a workload tells its chip about the step in progress, and what a replay must come to too.

A snapshot in the middle of a step is signed before the step has a record. The digest fixes what the record may say
later: the batch, the program so far, and everything that came out of it so far.

A followed program says only as it goes what its batches are: their number decides their names, and a second one on the
same memory makes its window larger. So the digest of such a step covers those that were used so far, without names, and
places in their memory relative to the first. The draft says which of the two it is (`KEY`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blake3 import blake3
from torch import Tensor

from weighbridge.core.digests import cbor, record_digest
from weighbridge.transcript.data import batch_digest
from weighbridge.transcript.tape import DTYPES, Input, Ref, Tape, references

KEY = "running"
FOLLOWED = 3
"""What a draft has under `KEY` if batches become known as the program uses them."""


def running_digest(
    tape: Tape, op: int, *, step: int, batch: Mapping[str, Tensor], undeclared: Mapping[str, Tensor],
    values: Sequence[bool | int | float], host: Sequence[bool | int | float], rng: Mapping[int, int], checksums: bytes,
    followed: bool = False,
) -> bytes:  # fmt: skip
    """Returns the digest of a step's operations so far, as a snapshot carries it (32 bytes).

    Args:
        tape: The step's program; what comes after the first `op` operations does not matter.
        op: Operations that were complete.
        step: Number of the step.
        batch: Path to tensor of the step's batch, as it was when the step began; of a followed program, as far as it
            has entered.
        undeclared: Name to tensor of its undeclared tensors; only those matter that the first `op` operations use.
        values: The vector of hoisted values; those that the first `op` operations do not use do not matter.
        host: Host values so far.
        rng: Generator number to its counter now, of the generators that the step has drawn from so far.
        checksums: Checksums so far, 8 little-endian bytes each.
        followed: Whether batches become known as the program uses them.
    """
    used = _Used(tape, op)
    own = {name: tensor for name, tensor in undeclared.items() if name in used.undeclared}
    if followed:
        batch = {str(place): batch[name] for place, name in enumerate(used.batch) if name in batch}
    return record_digest(
        "running/3" if followed else "running/2",
        [
            step,
            op,
            prefix_digest(tape, op, followed=followed),
            batch_digest(batch, own),
            list(values[: used.values]),
            list(host),
            {str(number): counter for number, counter in rng.items()},
            checksums,
        ],
    )


def prefix_digest(tape: Tape, op: int, *, followed: bool = False) -> bytes:
    """Returns the digest of a program's first `op` operations (32 bytes).

    It covers the operations, the references that they name, and where the storages behind these came from. Of batches
    of a followed program it leaves out names and the sizes of windows, and counts offsets from the first tensor.
    """
    used = _Used(tape, op)
    hasher = blake3(b"weighbridge/tape-prefix/1\x00")
    for node in tape.nodes[:op]:
        hasher.update(cbor([node.op, node.args, node.kwargs, node.outputs, node.births, node.draw]))
    refs = tape.refs[: used.refs]
    inputs = sorted((i for i in tape.inputs if i.slot in used.slots), key=lambda i: i.slot)
    if followed:
        refs = [used.relative(ref) for ref in refs]
        inputs = [i if i.origin != "batch" else Input(i.slot, 0, i.origin, "") for i in inputs]
    hasher.update(cbor(refs))
    hasher.update(cbor([[i.slot, i.bytes, i.origin, i.name] for i in inputs]))
    return hasher.digest()


class _Used:
    """What the first operations of a program name.

    Attributes:
        refs: How many references, from the first on: they stand in order of first use.
        values: How many hoisted values, likewise.
        slots: Storages.
        undeclared: Names of undeclared tensors.
        batch: Names of the batch's tensors that are among the references, one for each of these.
    """

    def __init__(self, tape: Tape, op: int) -> None:
        self.refs = self.values = 0
        for node in tape.nodes[:op]:
            operands = (node.args, tuple(node.kwargs.values()))
            for index in [*references(operands), *(o for o in node.outputs if o is not None)]:
                self.refs = max(self.refs, index + 1)
            self.values = max(self.values, _values(operands))
        named = tape.refs[: self.refs]
        self.slots = {ref[0] for ref in named}
        self.undeclared = {i.name for i in tape.inputs if i.origin == "free" and i.slot in self.slots}
        names: dict[Ref, str] = {}
        self._bases: dict[int, int] = {}
        for name, ref in tape.batch_views:
            names.setdefault(ref, name)
            self._bases.setdefault(ref[0], _begin(ref))
        self.batch = [names[ref] for ref in named if ref in names]

    def relative(self, ref: Ref) -> Ref:
        """Returns a reference to batch memory as bytes from where the first tensor on it begins."""
        base = self._bases.get(ref[0])
        return ref if base is None else (*ref[:4], _begin(ref) - base)


def _begin(ref: Ref) -> int:
    return ref[4] * DTYPES[ref[1]].itemsize


def _values(value: Any) -> int:
    """Returns how many hoisted values encoded operands need."""
    if isinstance(value, tuple):
        if len(value) == 2 and value[0] == "v" and type(value[1]) is int:
            return value[1] + 1
        return max(map(_values, value), default=0)
    return 0
