"""The Verifier's own log: what it committed to, in an order that it cannot change afterwards.

It is a C2SP transparency log like a chip's (`weighbridge.tlog`, `weighbridge.tiles`), in the Verifier's database. Each
entry is durable together with the checkpoint over it, which the log's key signs and witnesses cosign with their time.
By default the Verifier's own witness key cosigns, so that the time is its own clock's; another party's cosignature says
more, and whoever checks a draw names the keys that it trusts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Mapped, Session, mapped_column, sessionmaker

from verifier.database import Base
from weighbridge import merkle, tiles, tlog
from weighbridge.errors import UsageError
from weighbridge.tlog import Checkpoint, NoteKey, NoteSigner, Proof

PREFIX = "weighbridge/verifier/"
"""The log's origin, which is its key's name, is this and 16 hex digits of the key."""


class _OwnEntryRow(Base):
    __tablename__ = "verifier_log"
    place: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    data: Mapped[bytes]
    checkpoint: Mapped[bytes]


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
            Its place.

        Raises:
            UsageError: It has another size.
        """
        if not 1 <= len(data) <= tiles.MAX_ENTRY_BYTES:
            raise UsageError(f"an entry of the Verifier's log has 1 to {tiles.MAX_ENTRY_BYTES} bytes, not {len(data)}")
        with self._lock:
            with self._session() as session:
                known = session.scalar(select(_OwnEntryRow.place).where(_OwnEntryRow.data == data))
            if known is not None:
                return known
            grown = merkle.Tree(self._tree().leaves(0, len(self._tree())))
            grown.append(merkle.leaf_hash(data))
            text = Checkpoint(self.key.name, len(grown), grown.root()).text
            note = tlog.Note(text, (self._signer.sign(text),))
            for witness in self._witnesses:
                note = note.with_signature(witness.sign(text, int(self._clock())))
            place = len(grown) - 1
            with self._session.begin() as session:
                session.add(_OwnEntryRow(place=place, data=data, checkpoint=note.encode()))
            self._read = grown
            return place

    def entries(self) -> list[bytes]:
        """Returns all entries in order."""
        with self._session() as session:
            return list(session.scalars(select(_OwnEntryRow.data).order_by(_OwnEntryRow.place)))

    def entry(self, place: int) -> bytes:
        """Returns one entry.

        Raises:
            UsageError: There is none at this place.
        """
        return self._row(place).data

    def prove(self, place: int) -> Proof:
        """Returns the proof that an entry is in the log, under the checkpoint that was signed when it was added.

        Raises:
            UsageError: There is no entry at this place.
        """
        note = tlog.parse_note(self._row(place).checkpoint)
        with self._lock:
            hashes = self._tree().inclusion_proof(place, place + 1)
        return Proof(place, tuple(hashes), note)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yields (path, content) of the log as a directory (tlog-tiles), with its newest checkpoint."""
        entries = self.entries()
        yield from tiles.files(entries)
        if entries:
            yield "checkpoint", self._row(len(entries) - 1).checkpoint

    def _row(self, place: int) -> _OwnEntryRow:
        with self._session() as session:
            row = session.get(_OwnEntryRow, place)
            if row is None:
                raise UsageError(f"the Verifier's log has no entry {place}; name one that it has")
            return row

    def _tree(self) -> merkle.Tree:
        if self._read is None:
            self._read = merkle.Tree(map(merkle.leaf_hash, self.entries()))
        return self._read
