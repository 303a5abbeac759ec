"""The Verifier's own log: what it committed to, in an order that it cannot change afterwards.

It is a C2SP transparency log like a chip's (`weighbridge.attest.tlog`, `weighbridge.attest.tiles`), in the Verifier's
database. Each
entry is durable together with the checkpoint over it, which the log's key signs and witnesses cosign with their time.
By default the Verifier's own witness key cosigns, so that the time is its own clock's; another party's cosignature says
more. A reader who checks a draw names the keys to trust.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from verifier.store.tables import OwnLogEntryRow
from weighbridge.attest import tiles, tlog
from weighbridge.attest.tlog import Checkpoint, NoteKey, NoteSigner, Proof
from weighbridge.core import merkle
from weighbridge.core.errors import UsageError

PREFIX = "weighbridge/verifier/"
"""The log's origin, which is its key's name, is this and 16 hex digits of the key."""


class OwnLog:
    """An append-only log in the Verifier's database; safe to use from several threads of one process."""

    def __init__(
        self,
        session: sessionmaker[Session],
        signer: NoteSigner,
        witnesses: Sequence[NoteSigner] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Opens the log.

        Args:
            session: Makes sessions on the Verifier's database.
            signer: The log's key, of type `tlog.LOG`; its name is the log's origin.
            witnesses: Keys of type `tlog.WITNESS` that cosign each checkpoint.
            clock: Seconds since 1970.
        """
        self._session, self._signer, self._witnesses, self._clock = session, signer, witnesses, clock
        self._lock = threading.Lock()
        self._read: merkle.Tree | None = None

    @property
    def key(self) -> NoteKey:
        """The key that signs the log's checkpoints."""
        return self._signer.key

    def append(self, data: bytes) -> int:
        """Adds an entry, which is durable when this returns; one that is there already is not added again.

        Args:
            data: 1 to 65,535 bytes.

        Returns:
            Its index.

        Raises:
            UsageError: It has another size.
        """
        if not 1 <= len(data) <= tiles.MAX_ENTRY_BYTES:
            raise UsageError(f"an entry of the Verifier's log has 1 to {tiles.MAX_ENTRY_BYTES} bytes, not {len(data)}")
        with self._lock:
            with self._session() as session:
                known = session.scalar(select(OwnLogEntryRow.place).where(OwnLogEntryRow.data == data))
            if known is not None:
                return known
            grown = merkle.Tree(self._tree().leaves(0, len(self._tree())))
            grown.append(merkle.leaf_hash(data))
            text = Checkpoint(self.key.name, len(grown), grown.root()).text
            note = tlog.Note(text, (self._signer.sign(text),))
            for witness in self._witnesses:
                note = note.with_signature(witness.sign(text, int(self._clock())))
            index = len(grown) - 1
            with self._session.begin() as session:
                session.add(OwnLogEntryRow(place=index, data=data, checkpoint=note.encode()))
            self._read = grown
            return index

    def entries(self) -> list[bytes]:
        """Returns all entries in order."""
        with self._session() as session:
            return list(session.scalars(select(OwnLogEntryRow.data).order_by(OwnLogEntryRow.place)))

    def entry(self, index: int) -> bytes:
        """Returns one entry.

        Raises:
            UsageError: There is none with this index.
        """
        return self._row(index).data

    def prove(self, index: int) -> Proof:
        """Returns the proof that an entry is in the log, under the checkpoint that was signed when it was added.

        Raises:
            UsageError: There is no entry with this index.
        """
        note = tlog.parse_note(self._row(index).checkpoint)
        with self._lock:
            hashes = self._tree().inclusion_proof(index, index + 1)
        return Proof(index, tuple(hashes), note)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yields (path, content) of the log as a directory (tlog-tiles), with its newest checkpoint."""
        entries = self.entries()
        yield from tiles.files(entries)
        if entries:
            yield "checkpoint", self._row(len(entries) - 1).checkpoint

    def _row(self, index: int) -> OwnLogEntryRow:
        with self._session() as session:
            row = session.get(OwnLogEntryRow, index)
            if row is None:
                raise UsageError(f"the Verifier's log has no entry {index}; name one that it has")
            return row

    def _tree(self) -> merkle.Tree:
        if self._read is None:
            self._read = merkle.Tree(map(merkle.leaf_hash, self.entries()))
        return self._read
