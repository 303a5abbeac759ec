"""What opens the snapshots of a chip, and the tokens of its confidential boots, as it lies on the chip's disk.

A snapshot of a *confidential boot* is opened on the chip's own machine alone, to the holder of that machine, whose
memory it was; or, in a boot that is told which workers to trust, to such workers alone, encrypted. No Verifier gets it
over the network. That stays with the snapshot: a later boot without the option does not open what was taken under it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from firmware_sim.counter import write_durably
from firmware_sim.snapshot_report import LEAF_SIZE, Report, pack_leaves, unpack_leaves
from weighbridge.attest import hidden_fields
from weighbridge.attest.tokens import HiddenBody, Token, shown
from weighbridge.core.digests import Leaf, snapshot_root
from weighbridge.core.errors import ChipError, NotFoundError, TokenError

SALT_SIZE = 32
Audience = Literal["verifiers", "machine", "workers"]
"""Whom a chip opens to: any Verifier, the holder of its own machine, or attested workers alone."""

_MARKS: Mapping[Audience, bytes] = {"verifiers": b"", "machine": b"confidential", "workers": b"confidential+"}
"""How the file of a snapshot ends. Leaves have a multiple of 40 bytes, so none ends so by chance."""
_MAY_READ: Mapping[Audience, frozenset[Audience]] = {
    "verifiers": frozenset({"verifiers"}),
    "machine": frozenset({"verifiers", "machine"}),
    "workers": frozenset({"verifiers", "machine", "workers"}),
}
"""By who asks: what was kept for whom."""

Opened = tuple[bytes, list[Leaf], list[Leaf]]
"""Salt, leaves, and those of the weights region."""


class Openings:
    """The files behind the snapshots and the hidden fields of one chip."""

    def __init__(self, directory: Path) -> None:
        """Keeps them below the chip's directory."""
        self._directory, self._tokens = directory / "snapshots", directory / "tokens"
        self._directory.mkdir(exist_ok=True)

    def keep_hidden(self, index: int, opening: bytes, audience: Audience) -> None:
        """Makes durable what opens the hidden fields of what is to become entry `index`."""
        self._tokens.mkdir(exist_ok=True)
        write_durably(self._hidden(index, audience), opening)

    def hidden(self, index: int, asker: Audience) -> bytes:
        """Returns what opens the hidden fields of an entry; empty if it hides none, or if that is gone.

        Raises:
            ChipError: It is for workers alone, and another asks (`chip.confidential`).
        """
        for audience in ("machine", "workers"):
            path = self._hidden(index, audience)
            if path.is_file():
                if audience not in _MAY_READ[asker]:
                    raise _workers_alone(f"Entry {index}")
                return path.read_bytes()
        return b""

    def whole(self, token: Token) -> Token:
        """Returns a token of this chip's log with the fields that it hides.

        Raises:
            ChipError: What opens them is gone or damaged (`chip.log.damaged`).
        """
        if not isinstance(token.work, HiddenBody):
            return token
        try:
            return hidden_fields.reveal(token, self.hidden(token.index, "workers"))
        except TokenError as error:
            raise ChipError(f"{error.message}; restore it from a copy", code="chip.log.damaged") from error

    def keep(self, index: int, salt: bytes, report: Report, audience: Audience) -> None:
        """Makes durable what opens the snapshot that is to become entry `index`."""
        data = salt + pack_leaves(report.leaves) + pack_leaves(report.weights)
        write_durably(self._path(index), data + _MARKS[audience])

    def read(self, token: Token, asker: Audience) -> Opened:
        """Returns what opens a snapshot.

        Args:
            token: The entry that is to be opened.
            asker: Who asks.

        Raises:
            NotFoundError: The entry is no snapshot.
            ChipError: It was taken in a confidential boot, and not kept for this asker (`chip.confidential`); or the
                leaves are missing or damaged (`chip.snapshot.leaves`), or what the entry hides is (`chip.log.damaged`).
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
        if kept_for == "workers" and asker != "workers":
            raise _workers_alone(f"Snapshot {index}")
        if kept_for not in _MAY_READ[asker]:
            raise ChipError(
                f"Snapshot {index} was taken in a confidential boot: this chip opens it to no Verifier, and on its "
                "own machine for sealed workers; run a sealed inspection.",
                code="chip.confidential",
            )
        body = shown(self.whole(token))
        end = SALT_SIZE + LEAF_SIZE * int(body["leaves"])
        kept = data.removesuffix(_MARKS[kept_for])
        salt, leaves, weights = kept[:SALT_SIZE], unpack_leaves(kept[SALT_SIZE:end]), unpack_leaves(kept[end:])
        if (snapshot_root(leaves, salt), snapshot_root(weights, salt)) != (body["root"], body["weights_root"]):
            raise ChipError(f"The leaves of snapshot {index} are damaged.", code="chip.snapshot.leaves")
        return salt, leaves, weights

    def _hidden(self, index: int, audience: Audience) -> Path:
        return self._tokens / f"{index:08d}.{'worker' if audience == 'workers' else 'cbor'}"

    def _path(self, index: int) -> Path:
        return self._directory / f"{index:08d}.bin"


def _audience(data: bytes) -> Audience:
    """Returns whom a file was kept for, by its length; of a damaged one, whose leaves do not fit, any."""
    left = (len(data) - SALT_SIZE) % LEAF_SIZE
    return next((audience for audience, mark in _MARKS.items() if len(mark) == left), "verifiers")


def _workers_alone(what: str) -> ChipError:
    return ChipError(
        f"{what} was made in a boot that opens to attested workers alone; give the chip the order and the attestation "
        "of one (`weighbridge site session --chip`).",
        code="chip.confidential",
    )
