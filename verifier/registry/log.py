"""The registry's log: append-only, an RFC 6962 tree over its entries, with checkpoints that the registry signs.

The root covers every chip that was ever registered and everything that was ever said about one. Entries are appended in
the transaction that changes the tables, so log and tables cannot differ after a crash.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from verifier.store.database import Database
from verifier.store.tables import LogEntryRow, LogHeadRow
from weighbridge.attest import tlog
from weighbridge.attest.tlog import Checkpoint, Note, NoteSigner
from weighbridge.core import merkle, secret_files
from weighbridge.core.errors import UsageError

_ORIGIN = "weighbridge/registry/"
_PAGE = 256


class Log:
    """The log in the Verifier's database; safe to use from several threads and processes."""

    def __init__(self, database: Database) -> None:
        """Takes the database, whose tables exist."""
        self._database = database
        self._tree = merkle.Tree()
        self._lock = threading.Lock()

    def begin(self, session: Session) -> bool:
        """Makes the log if there is none yet, within a transaction, and says whether it did."""
        if session.get(LogHeadRow, 1) is not None:
            return False
        session.add(LogHeadRow(id=1, size=0))
        session.flush()
        return True

    def lock(self, session: Session) -> int:
        """Returns the number of entries; no other process appends any until the transaction ends.

        It must be the first thing in the transaction: it then waits its turn instead of failing.
        """
        size: int | None = session.scalar(
            update(LogHeadRow).where(LogHeadRow.id == 1).values(size=LogHeadRow.size).returning(LogHeadRow.size)
        )
        assert size is not None  # `begin` made the row
        return size

    def append(self, session: Session, size: int, entries: Sequence[bytes], digest: bytes | None = None) -> int:
        """Appends entries within a transaction that holds the lock, and returns how many there are then.

        Args:
            session: The transaction.
            size: Entries so far, as `lock` or the last `append` returned it.
            entries: At most 65,535 bytes each.
            digest: Of what the one entry signs, if it is a statement.
        """
        if entries:
            rows = [{"place": size + n, "data": entry, "digest": digest} for n, entry in enumerate(entries)]
            session.execute(insert(LogEntryRow), rows)
            session.execute(update(LogHeadRow).where(LogHeadRow.id == 1).values(size=size + len(entries)))
        return size + len(entries)

    @property
    def size(self) -> int:
        """Number of entries."""
        with self._database.session() as session:
            return session.scalar(select(LogHeadRow.size)) or 0

    def entries(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yields the entries start <= index < end, a few at a time."""
        end = self.size if end is None else end
        for first in range(start, end, _PAGE):
            with self._database.session() as session:
                query = select(LogEntryRow.data).where(
                    LogEntryRow.place >= first, LogEntryRow.place < min(end, first + _PAGE)
                )
                yield from session.scalars(query.order_by(LogEntryRow.place)).all()

    def pick(self, session: Session, indices: Iterable[int]) -> dict[int, bytes]:
        """Returns the entries of these indices."""
        query = select(LogEntryRow.place, LogEntryRow.data).where(LogEntryRow.place.in_(set(indices)))
        return {index: data for index, data in session.execute(query)}

    def index_of(self, session: Session, digest: bytes) -> int | None:
        """Returns where a statement was logged, or None."""
        return session.scalar(select(LogEntryRow.place).where(LogEntryRow.digest == digest))

    def root(self, size: int | None = None) -> bytes:
        """Returns the root (32 bytes) of the tree over the first `size` entries, all of them by default.

        Raises:
            UsageError: There are fewer.
        """
        with self._lock:
            return self._grown().root(size)

    def inclusion_proof(self, index: int, size: int) -> list[bytes]:
        """Returns the proof that an entry is in the tree over the first `size`.

        Raises:
            UsageError: There is no such entry.
        """
        with self._lock:
            return self._grown().inclusion_proof(index, size)

    def checkpoint(self, signer: NoteSigner) -> bytes:
        """Returns the signed checkpoint of the log as it is now."""
        with self._lock:
            tree = self._grown()
            text = Checkpoint(signer.key.name, len(tree), tree.root()).text
        return Note(text, (signer.sign(text),)).encode()

    def _grown(self) -> merkle.Tree:
        """Returns the tree over all entries, of which other processes may have appended some."""
        for entry in self.entries(len(self._tree)):
            self._tree.append(merkle.leaf_hash(entry))
        return self._tree


def load_key(path: Path) -> NoteSigner:
    """Reads the registry's private key, or makes one (mode 0600) and, beside it with `.pub`, the public one.

    Raises:
        UsageError: The file cannot be made, is no such key, or others may read it.
    """
    try:
        seed = secret_files.read_or_make(path, lambda: secrets.token_bytes(tlog.KEY_SIZE))
    except OSError as error:
        raise UsageError(f"Cannot use {path} for the registry's key ({error.strerror}); name another file.") from error
    if len(seed) != tlog.KEY_SIZE:
        raise UsageError(f"{path} holds no registry's key; name the right file.")
    public = NoteSigner("registry", tlog.LOG, seed).key.public
    signer = NoteSigner(f"{_ORIGIN}{public.hex()[:16]}", tlog.LOG, seed)
    secret_files.publish(path.with_name(path.name + ".pub"), f"{signer.key}\n")
    return signer
