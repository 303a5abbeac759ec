"""What opens the snapshots of a chip, as it lies on the chip's disk, and to whom a chip shows it.

A snapshot of a *confidential boot* is opened on the chip's own machine alone, to the holder of that machine, whose
memory it was. No Verifier gets it over the network. That stays with the snapshot: a later boot without the option does
not open what was taken under it.
"""

from __future__ import annotations

from pathlib import Path

from firmware_sim.counter import write_durably
from firmware_sim.snapshot_report import LEAF_SIZE, Report, pack_leaves, unpack_leaves
from weighbridge.attest.tokens import Token
from weighbridge.core.digests import Leaf, snapshot_root
from weighbridge.core.errors import ChipError, NotFoundError

SALT_SIZE = 32
_CONFIDENTIAL = b"confidential"
"""How the file of a confidential snapshot ends. Leaves have a multiple of 40 bytes, so none ends so by chance."""

Opened = tuple[bytes, list[Leaf], list[Leaf]]
"""Salt, leaves, and those of the weights region."""


class Openings:
    """The files behind the snapshots of one chip."""

    def __init__(self, directory: Path) -> None:
        """Keeps them below the chip's directory."""
        self._directory = directory / "snapshots"
        self._directory.mkdir(exist_ok=True)

    def keep(self, index: int, salt: bytes, report: Report, *, confidential: bool) -> None:
        """Makes durable what opens the snapshot that is to become entry `index`."""
        data = salt + pack_leaves(report.leaves) + pack_leaves(report.weights)
        write_durably(self._path(index), data + (_CONFIDENTIAL if confidential else b""))

    def read(self, token: Token, *, local: bool) -> Opened:
        """Returns what opens a snapshot.

        Args:
            token: The entry that is to be opened.
            local: Whether the asker holds the chip's own machine.

        Raises:
            NotFoundError: The entry is no snapshot.
            ChipError: It is of a confidential boot, and the asker is not on its machine (`chip.confidential`); or the
                leaves are missing or damaged (`chip.snapshot.leaves`).
        """
        index, body = token.index, token.body
        if "root" not in body:
            raise NotFoundError(
                f"Entry {index} is no snapshot; list the entries and choose one of kind snapshot.",
                resource="snapshot",
                name=str(index),
            )
        try:
            data = self._path(index).read_bytes()
        except OSError as error:
            raise ChipError(f"The leaves of snapshot {index} are gone.", code="chip.snapshot.leaves") from error
        confidential = (len(data) - SALT_SIZE) % LEAF_SIZE == len(_CONFIDENTIAL)
        if confidential and not local:
            raise ChipError(
                f"Snapshot {index} was taken in a confidential boot: this chip opens it to no Verifier, and on its "
                "own machine for sealed workers; run a sealed inspection.",
                code="chip.confidential",
            )
        end = SALT_SIZE + LEAF_SIZE * int(body["leaves"])
        kept = data.removesuffix(_CONFIDENTIAL) if confidential else data
        salt, leaves, weights = kept[:SALT_SIZE], unpack_leaves(kept[SALT_SIZE:end]), unpack_leaves(kept[end:])
        if (snapshot_root(leaves, salt), snapshot_root(weights, salt)) != (body["root"], body["weights_root"]):
            raise ChipError(f"The leaves of snapshot {index} are damaged.", code="chip.snapshot.leaves")
        return salt, leaves, weights

    def _path(self, index: int) -> Path:
        return self._directory / f"{index:08d}.bin"
