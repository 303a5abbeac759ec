"""A commitment to the full report behind a record, which its holder may open later, part by part.

Each section of the report is a part, and so is each chip, finding and transcript. A part is hashed with 32 bytes of its
own, which follow from the Prover's salt and the part's place. So neither the commitment nor the parts that were opened
confirm a guess about another one. The tree always has the same number of leaves, so a path says nothing of how many
parts there are.

The salt is the Prover's: it may show what it likes. It cannot show anything else than the worker committed to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from weighbridge.attest.dsse import canonical
from weighbridge.attest.outcome_terms import OutcomeError, mapping
from weighbridge.core import merkle
from weighbridge.core.digests import cbor
from weighbridge.core.errors import ProofError

LEAVES = 1 << 12
PART_LIMIT = 64 << 20
SALT_SIZE = 32
_LISTS = ("chips", "findings", "transcripts")
_MOST = 1024
"""So many entries of a list are parts of their own; what is left is one part."""

_PADDING = "", b""


@dataclass(frozen=True, slots=True)
class Part:
    """One opened part.

    Attributes:
        name: The section, or `SECTION/NUMBER` of an entry; `SECTION/NUMBER-` of all from that on.
        content: Its canonical JSON.
        place: Its place among the parts.
        salt: The 32 bytes that only this part was hashed with.
        path: Hashes of its neighbours in the tree.
    """

    name: str
    content: bytes
    place: int
    salt: bytes
    path: tuple[bytes, ...]

    def to_cbor(self) -> bytes:
        """Returns the one encoding of this part."""
        return cbor(
            {"name": self.name, "content": self.content, "place": self.place, "salt": self.salt, "path": [*self.path]}
        )

    @property
    def value(self) -> Any:
        """What the content says.

        Raises:
            OutcomeError: It is no canonical JSON: a dishonest worker commits to anything.
        """
        try:
            value = json.loads(self.content)
            if canonical(value) == self.content:
                return value
        except (ValueError, RecursionError):
            pass
        raise OutcomeError("the content of this part is no canonical JSON; do not rely on it")

    @classmethod
    def from_cbor(cls, data: bytes) -> Part:
        """Reads a part.

        Law: `from_cbor(p.to_cbor()) == p`; and where `from_cbor(data)` returns, its `to_cbor()` is `data`.

        Raises:
            OutcomeError: The bytes are no part.
        """
        match mapping(data, PART_LIMIT, "a part of a sealed report"):
            case {
                "name": str(name), "content": bytes(content), "place": int(place), "salt": bytes(salt),
                "path": list(path), **rest,
            } if not rest and type(place) is int and all(type(each) is bytes for each in path):  # fmt: skip
                return cls(name, content, place, salt, tuple(path))
        raise OutcomeError("a part of a sealed report has a name, a content, a place, a salt and a path")


class SealedReport:
    """A report and the salt under which it is committed to.

    Attributes:
        commitment: 32 bytes, which go into the record.
        names: The names of its parts.
    """

    def __init__(self, report: Mapping[str, Any], salt: bytes) -> None:
        """Commits to a report.

        Args:
            report: The content of a report.
            salt: 32 random bytes of the Prover's, used for this report only.

        Raises:
            OutcomeError: The salt is no such; or the report has two parts of one name, or is no JSON.
        """
        if len(salt) != SALT_SIZE:
            raise OutcomeError(f"the salt of a sealed report has {SALT_SIZE} bytes")
        self._salt = salt
        try:
            self._parts = list(_parts(report))
        except (ValueError, RecursionError):
            raise OutcomeError("the report has values that JSON has not, such as NaN") from None
        if len(self._parts) > LEAVES:
            raise OutcomeError("the report has more sections than a sealed report has parts")
        leaves = [
            _leaf(self._salted(place), *(self._parts[place] if place < len(self._parts) else _PADDING))
            for place in range(LEAVES)
        ]
        self._tree = merkle.Tree(leaves)
        self.names = [name for name, _ in self._parts]
        if len(set(self.names)) < len(self.names):
            raise OutcomeError("the report has two parts of one name, and either could be opened")
        self.commitment = self._tree.root()

    def open(self, name: str) -> Part:
        """Returns one part.

        Raises:
            OutcomeError: There is none of that name.
        """
        if name not in self.names:
            raise OutcomeError(f"the sealed report has no part {name!r}")
        place = self.names.index(name)
        path = tuple(self._tree.inclusion_proof(place))
        return Part(name, self._parts[place][1], place, self._salted(place), path)

    def _salted(self, place: int) -> bytes:
        return blake3(b"weighbridge/sealed-report/1\x00" + place.to_bytes(4, "big"), key=self._salt).digest()


def verify_part(commitment: bytes, part: Part) -> None:
    """Checks that a part is one of the report that was committed to.

    Raises:
        OutcomeError: It is not.
    """
    try:
        if len(part.salt) != SALT_SIZE or not part.name:
            raise ProofError("another form")
        merkle.verify_inclusion(_leaf(part.salt, part.name, part.content), part.place, LEAVES, part.path, commitment)
    except ProofError:
        raise OutcomeError(
            "this is no part of the report that the record commits to; do not rely on it", code="outcome.part"
        ) from None


def _leaf(salt: bytes, name: str, content: bytes) -> bytes:
    return merkle.leaf_hash(cbor([salt, name, content]))


def _parts(report: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    for name in sorted(report):
        value = report[name]
        if name not in _LISTS or not isinstance(value, list):
            yield name, canonical(value)
            continue
        for number, each in enumerate(value[:_MOST]):
            yield f"{name}/{number}", canonical(each)
        if len(value) > _MOST:
            yield f"{name}/{_MOST}-", canonical(value[_MOST:])
