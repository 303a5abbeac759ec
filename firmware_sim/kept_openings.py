"""What opens the snapshots of a chip, and the tokens of its confidential boots, as it lies on the chip's disk.

A snapshot of a *confidential boot* is opened on the chip's own machine alone, to the holder of that machine, whose
memory it was; or, in a boot that is told which workers to trust, to such workers alone, encrypted. No Verifier gets it
over the network. That stays with the snapshot: a later boot without the option does not open what was taken under it,
and one that is told of other workers does not open it to these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from firmware_sim.counter import write_durably
from firmware_sim.snapshot_report import LEAF_SIZE, Report, pack_leaves, unpack_leaves
from weighbridge.attest import hidden_fields, worker_openings
from weighbridge.attest.tokens import HiddenBody, Token, shown
from weighbridge.core.digests import DIGEST_SIZE, Leaf, bytes_digest, snapshot_root
from weighbridge.core.errors import ChipError, NotFoundError, TokenError

SALT_SIZE = 32
Audience = Literal["verifiers", "machine", "workers"]
"""Whom a chip opens to: any Verifier, the holder of its own machine, or attested workers alone."""

_MARKS: Mapping[Audience, bytes] = {"verifiers": b"", "machine": b"confidential", "workers": b"workers"}
"""How the file of a snapshot ends; for workers, the digest of what names them comes before. Leaves have a multiple of
40 bytes, so none ends so by chance."""
_ENDS: Mapping[int, Audience] = {0: "verifiers", 12: "machine", DIGEST_SIZE + 7: "workers"}
_MAY_READ: Mapping[Audience, frozenset[Audience]] = {
    "verifiers": frozenset({"verifiers"}),
    "machine": frozenset({"verifiers", "machine"}),
    "workers": frozenset({"verifiers", "machine", "workers"}),
}
"""By who asks: what was kept for whom."""

Permitted = Callable[[bytes], bool]
"""Whether a worker is one of those that something was kept for, given what names these."""
Opened = tuple[bytes, list[Leaf], list[Leaf]]
"""Salt, leaves, and those of the weights region."""


def no_worker(kept: bytes) -> bool:
    """What is said of an asker that is no worker."""
    return False


class Openings:
    """The files behind the snapshots and the hidden fields of one chip."""

    def __init__(self, directory: Path) -> None:
        """Keeps them below the chip's directory."""
        self._directory, self._tokens = directory / "snapshots", directory / "tokens"
        self._workers, self._named = directory / "workers", b""
        self._directory.mkdir(exist_ok=True)

    def name_workers(self, named: bytes) -> None:
        """Makes durable whom this boot opens to alone; what is kept from here on is kept for these."""
        self._workers.mkdir(exist_ok=True)
        self._named = bytes_digest(named)
        write_durably(self._workers / self._named.hex(), named)

    def keep_hidden(self, index: int, opening: bytes, audience: Audience) -> None:
        """Makes durable what opens the hidden fields of what is to become entry `index`."""
        self._tokens.mkdir(exist_ok=True)
        write_durably(self._hidden(index, audience), (self._named if audience == "workers" else b"") + opening)

    def hidden(self, index: int, asker: Audience, permitted: Permitted = no_worker) -> bytes:
        """Returns what opens the hidden fields of an entry; empty if it hides none, or if that is gone.

        Args:
            index: The entry.
            asker: Who asks.
            permitted: Of a worker: whether it is one of those that something was kept for.

        Raises:
            ChipError: It is for workers alone, and another asks (`chip.confidential`), or other workers
                (`chip.worker`).
        """
        found, named = self._hidden_fields(index)
        if named is not None:
            self._require(f"Entry {index}", named, asker, permitted)
        return found

    def _hidden_fields(self, index: int) -> tuple[bytes, bytes | None]:
        """What opens the hidden fields of an entry, and the digest of whom it was kept for, if for workers alone."""
        path = self._hidden(index, "machine")
        if path.is_file():
            return path.read_bytes(), None
        path = self._hidden(index, "workers")
        if path.is_file():
            data = path.read_bytes()
            return data[DIGEST_SIZE:], data[:DIGEST_SIZE]
        return b"", None

    def _require(self, what: str, named: bytes, asker: Audience, permitted: Permitted) -> None:
        if asker != "workers":
            raise _workers_alone(what)
        path = self._workers / named.hex()
        kept = path.read_bytes() if path.is_file() else b""
        if bytes_digest(kept) != named or not permitted(kept):
            raise worker_openings.refused(f"{what.lower()} was made in a boot that opens to other workers")

    def whole(self, token: Token) -> Token:
        """Returns a token of this chip's log with the fields that it hides.

        Raises:
            ChipError: What opens them is gone or damaged (`chip.log.damaged`).
        """
        if not isinstance(token.work, HiddenBody):
            return token
        try:
            return hidden_fields.reveal(token, self._hidden_fields(token.index)[0])
        except TokenError as error:
            raise ChipError(f"{error.message}; restore it from a copy", code="chip.log.damaged") from error

    def keep(self, index: int, salt: bytes, report: Report, audience: Audience) -> None:
        """Makes durable what opens the snapshot that is to become entry `index`."""
        data = salt + pack_leaves(report.leaves) + pack_leaves(report.weights)
        named = self._named if audience == "workers" else b""
        write_durably(self._path(index), data + named + _MARKS[audience])

    def read(self, token: Token, asker: Audience, permitted: Permitted = no_worker) -> Opened:
        """Returns what opens a snapshot.

        Args:
            token: The entry that is to be opened.
            asker: Who asks.
            permitted: As for `hidden`.

        Raises:
            NotFoundError: The entry is no snapshot.
            ChipError: It was taken in a confidential boot, and not kept for this asker (`chip.confidential`) or for
                this worker (`chip.worker`); or the leaves are missing or damaged (`chip.snapshot.leaves`), or what the
                entry hides is (`chip.log.damaged`).
        """
        index = token.index
        if token.kind != "snapshot":
            raise NotFoundError(
                f"Entry {index} is no snapshot; list the entries and choose one of kind snapshot.",
                resource="snapshot",
                name=str(index),
            )
        try:
            data = self._path(index).read_bytes()
        except OSError as error:
            raise ChipError(f"The leaves of snapshot {index} are gone.", code="chip.snapshot.leaves") from error
        kept_for = _audience(data)
        kept = data.removesuffix(_MARKS[kept_for])
        if kept_for == "workers":
            self._require(f"Snapshot {index}", kept[-DIGEST_SIZE:], asker, permitted)
            kept = kept[:-DIGEST_SIZE]
        if kept_for not in _MAY_READ[asker]:
            raise ChipError(
                f"Snapshot {index} was taken in a confidential boot: this chip opens it to no Verifier, and on its "
                "own machine for sealed workers; run a sealed inspection.",
                code="chip.confidential",
            )
        body = shown(self.whole(token))
        end = SALT_SIZE + LEAF_SIZE * int(body["leaves"])
        salt, leaves, weights = kept[:SALT_SIZE], unpack_leaves(kept[SALT_SIZE:end]), unpack_leaves(kept[end:])
        if (snapshot_root(leaves, salt), snapshot_root(weights, salt)) != (body["root"], body["weights_root"]):
            raise ChipError(f"The leaves of snapshot {index} are damaged.", code="chip.snapshot.leaves")
        return salt, leaves, weights

    def _hidden(self, index: int, audience: Audience) -> Path:
        return self._tokens / f"{index:08d}.{'worker' if audience == 'workers' else 'cbor'}"

    def _path(self, index: int) -> Path:
        return self._directory / f"{index:08d}.bin"


def _audience(data: bytes) -> Audience:
    """Returns whom a file was kept for, by its length and its end; of a damaged one, whose leaves do not fit, any."""
    found = _ENDS.get((len(data) - SALT_SIZE) % LEAF_SIZE, "verifiers")
    return found if data.endswith(_MARKS[found]) else "verifiers"


def _workers_alone(what: str) -> ChipError:
    return ChipError(
        f"{what} was made in a boot that opens to attested workers alone; give the chip the order and the attestation "
        "of one (`weighbridge site session --chip`).",
        code="chip.confidential",
    )
