"""The game about a chip's memory: down a keyed tree and a plain one, to the chunk that cannot have both values.

A chip hashes its storages with a key, a state's digests have none, so two digests cannot be compared and the referee
has neither storage. The challenger claims that both are of the same bytes and shows the highest layer of each tree;
the defender names a node at which the layers are not of one content; the challenger shows the layers below it; and so
on. In the end one of them shows 1,024 bytes. BLAKE3 binds a chunk by each of its two values, so these bytes have
both, or exactly one, which refutes the claim.

The referee hashes; it decodes no tensor, and executes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from weighbridge.core.digests import DIGEST_SIZE
from weighbridge.core.errors import ProofError, UsageError
from weighbridge.core.treehash import descent
from weighbridge.core.treehash.parts import chunks_of
from weighbridge.core.treehash.tree import CHUNK
from weighbridge.execution.dispute.asking import Judgement, forfeited
from weighbridge.execution.dispute.memory_claim import MemoryClaim
from weighbridge.execution.dispute.memory_messages import Doubt, Equality, Granted, Layer
from weighbridge.execution.dispute.messages import Content, DisputeError, Shown

Turn = Literal["doubt", "layer", "opening", "nothing"]

_CHALLENGER, _DEFENDER = 0, 1
_Found = TypeVar("_Found")


@dataclass
class MemoryGame:
    """A dispute about a chip's memory as far as it has come.

    Attributes:
        claim: What is disputed.
        path: The nodes that were denied, the highest first.
        keyed: The newest layer of the storage's tree.
        plain: The newest layer of the tree of the bytes.
        granted: Whether the defender does not deny the claim.
        chunk: The bytes that were shown in the end.
    """

    claim: MemoryClaim
    keyed: bytes
    plain: bytes
    path: tuple[int, ...] = ()
    granted: bool = False
    chunk: bytes | None = None
    _turn: Turn = "doubt"

    @classmethod
    def open(cls, said: Equality) -> MemoryGame:
        """Takes the claim.

        Raises:
            FormatError: It is malformed.
            DisputeError: Its parts do not belong together, or its layers are not those of the digests.
        """
        claim = _checked(lambda: MemoryClaim.read(said))
        _require_layers(claim, said, (), claim.leaf.digest, claim.source.held().content)
        return cls(claim, said.keyed, said.plain)

    def due(self) -> tuple[int, Turn]:
        """Returns whose turn it is, and with what."""
        return (_DEFENDER if self._turn == "doubt" else _CHALLENGER), self._turn

    def values(self) -> tuple[bytes, bytes]:
        """Returns the keyed and the plain value of the node that was denied last (32 bytes each)."""
        at = DIGEST_SIZE * self.path[-1]
        return self.keyed[at : at + DIGEST_SIZE], self.plain[at : at + DIGEST_SIZE]

    def has(self, chunk: bytes) -> tuple[bool, bool]:
        """Returns whether a chunk has the keyed value, and whether the plain one, of the node that was denied last.

        Raises:
            DisputeError: It is not as large as the chunk of that place.
        """
        size, path, values = self.claim.size, self.path, self.values()
        keyed = _checked(lambda: descent.value_of_chunk(chunk, size, path, self.claim.salt))
        return keyed == values[0], descent.value_of_chunk(chunk, size, path) == values[1]

    def take(self, content: Content) -> None:
        """Takes what is due.

        Raises:
            DisputeError: It is something else; the dispute stays as it was.
        """
        match content, self._turn:
            case Granted(), "doubt" if not self.path:
                self.granted, self._turn = True, "nothing"
            case Doubt() as doubt, "doubt":
                self._deny(doubt)
            case Layer() as layer, "layer":
                _require_layers(self.claim, layer, self.path, *self.values())
                self.keyed, self.plain, self._turn = layer.keyed, layer.plain, "doubt"
            case Shown() as shown, "opening" if len(shown.opening) <= CHUNK:
                self.chunk, self._turn = shown.opening, "nothing"
            case _:
                raise DisputeError(f"Expected is {self._turn} about the chip's memory, and nothing else.")

    def _deny(self, doubt: Doubt) -> None:
        if not 0 <= doubt.node < len(self.keyed) // DIGEST_SIZE:
            raise DisputeError(f"There is no node {doubt.node} in this layer; name one that there is.")
        before = self.path
        self.path = (*before, doubt.node)
        if len(self.path) < descent.height(self.claim.size):
            if doubt.chunk:
                self.path = before
                raise DisputeError("A chunk is shown at the end of the way down; name the node alone.")
            self._turn = "layer"
        elif not doubt.chunk:
            self._turn = "opening"
        else:
            try:
                decides = sum(self.has(doubt.chunk)) == 1
            except DisputeError:
                decides = False
            if not decides:
                self.path = before
                raise DisputeError("This chunk has both values or none, so it refutes nothing; name the node alone.")
            self.chunk, self._turn = doubt.chunk, "nothing"

    def judgements(self) -> list[tuple[int, Judgement]]:
        """Returns what is said of each claim, once all was said."""
        if self.granted:
            why = "the defender does not deny it, and nothing was judged"
            return [(_CHALLENGER, Judgement("undecided", "dispute.memory.granted", why))]
        assert self.chunk is not None, "all was said"
        where = f"chunk {descent.chunk_number(self.claim.size, self.path)} of {chunks_of(self.claim.size)}"
        try:
            keyed, plain = self.has(self.chunk)
        except DisputeError:
            keyed = plain = False
        if keyed and plain:
            why = f"{where} has both values; of the others nothing is said"
            denied = Judgement("false", "dispute.memory.same", f"{where} is the same in both")
            return [(_CHALLENGER, Judgement("admissible", "dispute.memory.follows", why)), (_DEFENDER, denied)]
        if keyed or plain:
            held, lacks = ("the chip", "what is claimed") if keyed else ("what is claimed", "the chip")
            why = f"{where} is another one: {held} has the bytes that were shown there, and {lacks} others"
            return [(_CHALLENGER, Judgement("false", "dispute.memory.differs", why))]
        return [(_CHALLENGER, forfeited(f"the challenger showed no bytes that {where} has in either"))]


def _require_layers(
    claim: MemoryClaim, said: Equality | Layer, path: tuple[int, ...], keyed: bytes, plain: bytes
) -> None:
    _checked(lambda: descent.require_layer(said.keyed, claim.size, path, keyed, claim.salt))
    _checked(lambda: descent.require_layer(said.plain, claim.size, path, plain))


def _checked(check: Callable[[], _Found]) -> _Found:
    try:
        return check()
    except (ProofError, UsageError) as error:
        raise DisputeError(error.message) from None
