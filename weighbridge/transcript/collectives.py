"""Collectives on tapes: what an operation exchanges, with whom, and what a step record commits to about it.

A rank's tape names each collective with its group; a rank's step record holds, for each, a root over the chunks that
this rank contributed and one over those that it got. So one rank can be replayed with results taken from elsewhere, and
any chunk of any contribution can be opened and combined again (docs/sharding.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch

from weighbridge.core import merkle
from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import TapeError
from weighbridge.numerics import exchanges
from weighbridge.transcript.tape import RESIZE, Node, Ref, Tape, references
from weighbridge.transcript.tensor_file import raw_bytes

Tensor = torch.Tensor

CHUNK = 16384
"""Bytes of a chunk; a multiple of every element's size."""

PREFIX = "weighbridge::"


Pairing = tuple[int, tuple[int, ...], int, int]
"""What members of a collective agree on: (step, group, tag or -1, ordinal in the step)."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective of a tape.

    Attributes:
        op: Index of the operation.
        name: One of `exchanges.NAMES`.
        outs: What is written.
        ins: What is contributed.
        reduction: How contributions are combined; empty if they are moved.
        group: Ranks of the group in its order; [source, destination] of a message.
        root: Group rank of the root.
        tag: Of a message.
        ordinal: How many collectives of this group (messages with this tag between the two) came before in the step.
    """

    op: int
    name: str
    outs: tuple[Ref, ...]
    ins: tuple[Ref, ...]
    reduction: str
    group: tuple[int, ...]
    root: int
    tag: int
    ordinal: int

    def pairing(self, step: int) -> Pairing:
        """Returns what the other members know this collective by."""
        return step, self.group, self.tag if self.name in exchanges.MESSAGES else -1, self.ordinal

    def group_rank(self, rank: int) -> int:
        """Returns the group rank of a rank."""
        return self.group.index(rank)

    def sources(self, rank: int) -> list[exchanges.Sources]:
        """Returns what each of the results at a rank is made from (`exchanges.pieces`)."""
        return exchanges.pieces(self.name, len(self.group), self.group_rank(rank), self.root)

    def matches(self, other: Call) -> bool:
        """Whether another member's call can be the same collective."""
        if self.name in exchanges.MESSAGES:
            return {self.name, other.name} == exchanges.MESSAGES
        return (self.name, self.reduction, self.root) == (other.name, other.reduction, other.root)


class Exchange(Protocol):
    """Gives the results of collectives in a replay.

    Attributes:
        given: Whether they are taken as given, and not made from contributions.
    """

    given: ClassVar[bool]

    def exchange(self, step: int, call: Call, ins: Sequence[Tensor], outs: Sequence[Tensor]) -> list[Tensor]:
        """Returns what a collective makes.

        Args:
            step: The step in progress.
            call: The collective.
            ins: What this rank contributes.
            outs: Tensors of the dtypes and shapes of the results, not to be written.

        Returns:
            One tensor for each of `outs`, of its dtype and number of elements.
        """


def is_collective(node: Node) -> bool:
    """Whether a node of a tape is a collective."""
    return node.op.startswith(PREFIX) and node.op != RESIZE


def calls(tape: Tape, rank: int) -> list[Call]:
    """Returns the collectives of a tape in order.

    Args:
        tape: A decoded tape.
        rank: The rank whose tape it is.

    Raises:
        TapeError: One is malformed, or this rank is not in its group.
    """
    count: Counter[tuple[tuple[int, ...], int]] = Counter()
    found = []
    for index, node in enumerate(tape.nodes):
        if is_collective(node):
            call = _call(tape, index, node, rank)
            pairing = call.group, call.tag if call.name in exchanges.MESSAGES else -1
            found.append(replace(call, ordinal=count[pairing]))
            count[pairing] += 1
    return found


def _call(tape: Tape, index: int, node: Node, rank: int) -> Call:
    def wrong(why: str) -> TapeError:
        return TapeError(f"operation {index} ({node.op[:80]}) {why}; the Prover's recorder did not make this tape")

    name, _, overload = node.op.removeprefix(PREFIX).partition(".")
    if name not in exchanges.NAMES or overload != "default" or node.kwargs or node.outputs or node.births:
        raise wrong("is no collective")
    match node.args:
        case (
            ("l", tuple(outs)), ("l", tuple(ins)), ("s", str(reduction)), ("l", tuple(group)), int(root), int(tag)
        ) if all(len(references((r,))) == 1 for r in (*outs, *ins)):  # fmt: skip
            pass
        case _:
            raise wrong("has operands that do not fit it")
    members = tuple(group)
    if not members or not all(type(r) is int and 0 <= r < 1 << 16 for r in members) or len(set(members)) < len(members):
        raise wrong("has a group that is no list of different ranks")
    if rank not in members or not 0 <= root < len(members) or (name not in exchanges.ROOTED and root):
        raise wrong(f"has a group or root that does not fit rank {rank}")
    if name in exchanges.MESSAGES and (len(members) != 2 or members[name == "recv"] != rank):
        raise wrong(f"is no message of rank {rank}")
    if (reduction in exchanges.REDUCTIONS) != (name in exchanges.REDUCING) or (
        reduction and reduction not in exchanges.REDUCTIONS
    ):
        raise wrong("has a reduction that does not fit it")
    refs = [tuple(tape.refs[i] for i in references(tuple(side))) for side in (outs, ins)]
    call = Call(index, name, refs[0], refs[1], reduction, members, root, tag, 0)
    own = call.group_rank(rank)
    expected = len(call.sources(rank)), exchanges.given(name, len(members), own, root)
    if (len(refs[0]), len(refs[1])) != expected or len({r[1] for side in refs for r in side}) > 1:
        raise wrong("has other tensors than its kind says")
    return call


# -- commitments -------------------------------------------------------------------------------------------------------


def chunk_count(size: int) -> int:
    """Returns how many chunks a tensor of so many bytes has."""
    return -(-size // CHUNK)


def chunks(data: memoryview | bytes) -> Iterator[memoryview]:
    """Yields the chunks of one tensor's bytes."""
    view = memoryview(data)
    for at in range(0, len(view), CHUNK):
        yield view[at : at + CHUNK]


def leaf(chunk: bytes | memoryview) -> bytes:
    """Returns the leaf hash of a chunk."""
    return merkle.leaf_hash(bytes_digest(chunk))


def leaves(tensors: Iterable[Tensor]) -> list[bytes]:
    """Returns the leaf hashes of all chunks of tensors, tensor after tensor."""
    return [leaf(chunk) for t in tensors for chunk in chunks(raw_bytes(t))]


def commit(tensors: Iterable[Tensor]) -> bytes:
    """Returns the root over the chunks of tensors, as a step record holds it (32 bytes)."""
    return merkle.root(leaves(tensors))


def as_flat(data: bytes | memoryview, like: Tensor) -> Tensor:
    """Returns bytes as a flat tensor of the dtype and device of another."""
    return torch.frombuffer(bytearray(data), dtype=like.dtype).to(like.device) if len(data) else like.new_empty(0)
