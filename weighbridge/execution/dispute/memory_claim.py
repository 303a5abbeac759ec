"""What a claim about a chip's memory is about: a storage of a signed snapshot, and bytes that are named by digest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from weighbridge.attest.tokens import HiddenBody, Token, read_own
from weighbridge.core import merkle
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import DIGEST_SIZE, Leaf, cbor, record_digest, salt_digest
from weighbridge.core.errors import FormatError, ProofError, TokenError, UsageError
from weighbridge.core.memory_map import Held
from weighbridge.execution.dispute.memory_messages import Equality
from weighbridge.transcript.state import state_digest

MAX_ITEMS = 1 << 17
"""Most CBOR items of the state that a claim shows, four for each storage: a referee that reads them takes no message
meanwhile."""

SALT_SIZE = 32


@dataclass(frozen=True, kw_only=True)
class KeyedLeaf:
    """One storage of a snapshot, and that it is one of it.

    Attributes:
        index: Its place among the storages, in ascending order of (bytes, digest).
        size: Bytes.
        digest: Their BLAKE3 digest, keyed with the salt (32 bytes).
        tree: Root of the tree over all storages (32 bytes), from which the token's root follows.
        proof: Inclusion proof of RFC 6962 in it.
    """

    index: int
    size: int
    digest: bytes
    tree: bytes
    proof: list[bytes]

    @classmethod
    def among(cls, leaves: Sequence[Leaf], place: int) -> KeyedLeaf:
        """Returns one of a snapshot's storages with its proof.

        Args:
            leaves: All of them.
            place: Which one, in ascending order.
        """
        ordered = sorted(leaves)
        hashes = [merkle.leaf_hash(cbor([size, digest])) for size, digest in ordered]
        size, digest = ordered[place]
        return cls(
            index=place, size=size, digest=digest, tree=merkle.root(hashes),
            proof=merkle.inclusion_proof(hashes, place),
        )  # fmt: skip

    def to_cbor(self) -> bytes:
        """Returns the leaf as deterministic CBOR."""
        return cbor([self.index, self.size, self.digest, self.tree, self.proof])

    @classmethod
    def from_cbor(cls, data: bytes) -> KeyedLeaf:
        """Reads a leaf.

        Law: `from_cbor(x.to_cbor()) == x`; and where `from_cbor(data)` returns, its `to_cbor()` is `data`.

        Raises:
            FormatError: It is none.
        """
        match decode_cbor(data, max_depth=2, max_items=128):
            case [int(index), int(size), bytes(digest), bytes(tree), list(proof)] if all(
                type(each) is bytes and len(each) == DIGEST_SIZE for each in (digest, tree, *proof)
            ):
                found = cls(index=_natural(index), size=_natural(size), digest=digest, tree=tree, proof=proof)
            case _:
                raise FormatError("A storage of a snapshot is two numbers, two digests and a proof; ask for it again.")
        if found.to_cbor() != data:
            raise FormatError("A storage of a snapshot is not in its one encoding; ask for it again.")
        return found


@dataclass(frozen=True, kw_only=True)
class Source:
    """Bytes that are named by their digest, alone or as a region of a state.

    Attributes:
        kind: `bytes`, or `state` if they are a region of a state.
        digest: Of the bytes, or of the state (32 bytes).
        step: Of a state: the step before which it stood.
        region: Of a state: name of the storage.
        regions: Of a state: what every storage holds.
        rng: Of a state: the counters of its generators.
        size: Of bytes alone: how many.
    """

    kind: Literal["bytes", "state"]
    digest: bytes
    step: int = 0
    region: str = ""
    regions: Mapping[str, Held] | None = None
    rng: Mapping[str, int] | None = None
    size: int = 0

    def held(self) -> Held:
        """Returns size and digest of the bytes."""
        return Held(self.size, self.digest) if self.regions is None else self.regions[self.region]

    def to_cbor(self) -> bytes:
        """Returns the source as deterministic CBOR."""
        if self.regions is None or self.rng is None:
            return cbor([self.kind, self.digest, self.size])
        regions = {name: [each.size, each.content] for name, each in self.regions.items()}
        return cbor([self.kind, self.digest, self.step, self.region, regions, dict(self.rng)])

    @classmethod
    def from_cbor(cls, data: bytes) -> Source:
        """Reads a source; a state that is shown has the digest that it names.

        Law: `from_cbor(x.to_cbor()) == x`; and where `from_cbor(data)` returns, its `to_cbor()` is `data`.

        Raises:
            FormatError: It is none, or shows another state than it names.
        """
        match decode_cbor(data, max_depth=3, max_items=MAX_ITEMS):
            case ["bytes", bytes(digest), int(size)] if len(digest) == DIGEST_SIZE:
                found = cls(kind="bytes", digest=digest, size=_natural(size))
            case ["state", bytes(digest), int(step), str(region), dict(regions), dict(rng)] if region in regions:
                held = {_text(name): _held(pair) for name, pair in regions.items()}
                counters = {_text(name): _natural(at) for name, at in rng.items()}
                found = cls(kind="state", digest=digest, step=_natural(step), region=region, regions=held, rng=counters)
                if state_digest({name: (each.size, each.content) for name, each in held.items()}, rng) != digest:
                    raise FormatError("A claim shows another state than it names; ask for it again.")
            case _:
                raise FormatError("A claim names bytes by their digest, or a region of a state; ask for it again.")
        if found.to_cbor() != data:
            raise FormatError("What a claim is about is not in its one encoding; ask for it again.")
        return found


@dataclass(frozen=True, kw_only=True)
class MemoryClaim:
    """A claim about a chip's memory whose parts belong together.

    Attributes:
        token: The snapshot; who signed it is not checked here.
        salt: Of its boot (32 bytes).
        leaf: The storage.
        source: The bytes.
    """

    token: Token
    salt: bytes
    leaf: KeyedLeaf
    source: Source

    @property
    def size(self) -> int:
        """Bytes of both."""
        return self.leaf.size

    @classmethod
    def read(cls, said: Equality) -> MemoryClaim:
        """Reads a claim, and checks that the storage is one of the snapshot and as large as the bytes.

        Raises:
            FormatError: A part of it is malformed.
            ProofError: Its parts do not belong together.
            UsageError: The snapshot shows no storages, since its boot is confidential or it is no snapshot.
        """
        try:
            token = read_own(said.token)
        except TokenError as error:
            raise FormatError(f"The token of a claim about memory cannot be read: {error.message}") from None
        if token.kind != "snapshot" or isinstance(token.body, HiddenBody):
            raise UsageError(
                "This token shows no storages: it is no snapshot, or that of a confidential boot; name another one."
            )
        leaf, source, body = KeyedLeaf.from_cbor(said.leaf), Source.from_cbor(said.source), token.body
        count = body["leaves"]
        assert isinstance(count, int)
        if len(said.salt) != SALT_SIZE or body["salt_digest"] != salt_digest(said.salt):
            raise ProofError("The salt of a claim about memory is not that of the token; name the one of its boot.")
        if record_digest("snapshot-root/1", [said.salt, count, leaf.tree]) != body["root"]:
            raise ProofError("The storages of a claim about memory are not those of the token; name its own.")
        hashed = merkle.leaf_hash(cbor([leaf.size, leaf.digest]))
        merkle.verify_inclusion(hashed, leaf.index, count, leaf.proof, leaf.tree)
        if leaf.size != source.held().size:
            raise ProofError(
                f"A storage of {leaf.size} bytes cannot hold {source.held().size}; name one of the same size."
            )
        return cls(token=token, salt=said.salt, leaf=leaf, source=source)


def _held(raw: Any) -> Held:
    match raw:
        case [int(size), bytes(content)] if len(content) == DIGEST_SIZE:
            return Held(_natural(size), content)
    raise FormatError("A region of a state is a size and a digest; ask for the claim again.")


def _natural(raw: Any) -> int:
    if type(raw) is not int or not 0 <= raw < 1 << 62:
        raise FormatError("A number in a claim about memory is out of its range; ask for it again.")
    return raw


def _text(raw: Any) -> str:
    if type(raw) is not str:
        raise FormatError("A name in a claim about memory is no text; ask for it again.")
    return raw
