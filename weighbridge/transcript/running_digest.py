"""The running digest: what a workload tells its chip about the step in progress, and what a replay must come to too.

A snapshot in the middle of a step is signed before the step has a record. The digest fixes what the record may say
later: the batch, the program so far, and everything that came out of it so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blake3 import blake3
from torch import Tensor

from weighbridge.core.digests import cbor, record_digest
from weighbridge.transcript.data import batch_digest
from weighbridge.transcript.tape import Tape, references


def running_digest(
    tape: Tape, op: int, *, step: int, batch: Mapping[str, Tensor], undeclared: Mapping[str, Tensor],
    values: Sequence[bool | int | float], host: Sequence[bool | int | float], rng: Mapping[int, int], checksums: bytes,
) -> bytes:  # fmt: skip
    """Returns the digest of a step's operations so far, as a snapshot carries it (32 bytes).

    Args:
        tape: The step's program; what comes after the first `op` operations does not matter.
        op: Operations that were complete.
        step: Number of the step.
        batch: Path to tensor of the step's batch, as it was when the step began.
        undeclared: Name to tensor of its undeclared tensors; only those matter that the first `op` operations use.
        values: The vector of hoisted values; those that the first `op` operations do not use do not matter.
        host: Host values so far.
        rng: Generator number to its counter now, of the generators that the step has drawn from so far.
        checksums: Checksums so far, 8 little-endian bytes each.
    """
    used = _Used(tape, op)
    own = {name: tensor for name, tensor in undeclared.items() if name in used.undeclared}
    return record_digest(
        "running/2",
        [
            step,
            op,
            prefix_digest(tape, op),
            batch_digest(batch, own),
            list(values[: used.values]),
            list(host),
            {str(number): counter for number, counter in rng.items()},
            checksums,
        ],
    )


def prefix_digest(tape: Tape, op: int) -> bytes:
    """Returns the digest of a program's first `op` operations (32 bytes).

    It covers the operations, the references that they name, and where the storages behind these came from.
    """
    used = _Used(tape, op)
    hasher = blake3(b"weighbridge/tape-prefix/1\x00")
    for node in tape.nodes[:op]:
        hasher.update(cbor([node.op, node.args, node.kwargs, node.outputs, node.births, node.draw]))
    hasher.update(cbor(tape.refs[: used.refs]))
    inputs = sorted((i for i in tape.inputs if i.slot in used.slots), key=lambda i: i.slot)
    hasher.update(cbor([[i.slot, i.bytes, i.origin, i.name] for i in inputs]))
    return hasher.digest()


class _Used:
    """What the first operations of a program name.

    Attributes:
        refs: How many references, from the first on: they stand in order of first use.
        values: How many hoisted values, likewise.
        slots: Storages.
        undeclared: Names of undeclared tensors.
    """

    def __init__(self, tape: Tape, op: int) -> None:
        self.refs = self.values = 0
        for node in tape.nodes[:op]:
            operands = (node.args, tuple(node.kwargs.values()))
            for index in [*references(operands), *(o for o in node.outputs if o is not None)]:
                self.refs = max(self.refs, index + 1)
            self.values = max(self.values, _values(operands))
        self.slots = {ref[0] for ref in tape.refs[: self.refs]}
        self.undeclared = {i.name for i in tape.inputs if i.origin == "free" and i.slot in self.slots}


def _values(value: Any) -> int:
    """Returns how many hoisted values encoded operands need."""
    if isinstance(value, tuple):
        if len(value) == 2 and value[0] == "v" and type(value[1]) is int:
            return value[1] + 1
        return max(map(_values, value), default=0)
    return 0
