"""The Verifier as a witness: it keeps every chip's log, and vouches only for a log that continues what it has.

A cosignature of this witness says more than C2SP asks for: that it *holds* every entry below the checkpoint. That is
why a chip may drop what was cosigned. Entries are durable here before anything is signed. What contradicts the log that
is held is refused and kept as evidence.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.x509 import Certificate
from sqlalchemy import bindparam, func, insert, select

from verifier.contact import anchors
from verifier.contact.incoming_reports import Incoming, check_entries
from verifier.contact.nonces import Nonces
from verifier.model.fact_codec import anchor
from verifier.model.facts import Anchor, Contact, Held, Report, number
from verifier.registry import Registry
from verifier.store import database
from verifier.store.tables import ContactRow, HeldEntryRow, HeldLogRow, LogKeyRow, RefusedCheckpointRow
from weighbridge.attest import chip_log, tlog
from weighbridge.attest.tlog import KeyType, Note, NoteKey, NoteSigner
from weighbridge.attest.tokens import GENESIS, entry_digest, read_own, verify
from weighbridge.core import merkle, secret_files
from weighbridge.core.errors import NotFoundError, ProofError, TokenError, UsageError, WeighbridgeError
from weighbridge.core.turns import Turns

MAX_EVIDENCE, _EVIDENCE_MS = 100, 3_600_000
"""Refused checkpoints of one chip that are kept, at most, of each hour."""

MAX_TREES = 1024
"""Trees over logs that a witness has in memory; others are recomputed from the entries that it holds."""


_HELD = select(HeldLogRow.size, HeldLogRow.root, HeldLogRow.checkpoint, HeldLogRow.chip_ms, HeldLogRow.read_ms).where(
    HeldLogRow.ueid == bindparam("chip")
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """A checkpoint that contradicted what was held, with both sides' signatures.

    Attributes:
        reason: Identifier of the error.
        checkpoint: The note that was refused.
        token: The head token that came with it.
        held: The cosigned note that it contradicts.
        read_ms: The Verifier's time, in milliseconds since 1970.
    """

    reason: str
    checkpoint: bytes
    token: bytes
    held: bytes
    read_ms: int


class Witness:
    """Keeps logs in the registry's database; safe to use from several threads."""

    def __init__(
        self,
        registry: Registry,
        manufacturer: Certificate,
        signer: NoteSigner | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Opens the witness's part of a registry.

        Args:
            registry: Where the chips are; the logs go into the same file.
            manufacturer: Root certificate that device identities must lead to.
            signer: The key that cosigns; without one, the witness only remembers.
            clock: Seconds since 1970.
        """
        self._registry, self._manufacturer, self._signer, self._clock = registry, manufacturer, signer, clock
        self._lock = threading.Lock()
        self._turns = Turns()  # No chip waits for another's long log.
        self._trees: OrderedDict[bytes, merkle.Tree] = OrderedDict()  # of the logs that were used last
        self._nonces = Nonces(clock)

    @property
    def key(self) -> NoteKey | None:
        """The key that chips must trust to accept cosignatures from here; None if this witness signs nothing."""
        return self._signer.key if self._signer else None

    def now_ms(self) -> int:
        """Milliseconds since 1970 on this Verifier's clock."""
        return int(self._clock() * 1000)

    def held(self, ueid: bytes) -> Held:
        """Returns how far a chip's log is held, with size 0 if none of it is.

        Raises:
            UsageError: The chip is not registered.
        """
        with self._registry.session() as session:
            row = session.execute(_HELD, {"chip": ueid}).one_or_none()
        if row is None:
            self._registry.chip(ueid)
            return Held()
        return Held(**row._mapping)

    def anchors(self, ueid: bytes) -> list[Anchor]:
        """Returns the heads of a chip that are kept to compare its clock, in order."""
        with self._registry.session() as session:
            kept = anchors.rows(session, ueid)
        return [anchor(*row, self._manufacturer) for row in kept]

    def contacts(self, ueid: bytes) -> list[Contact]:
        """Returns when the entries of a chip's log came here, in the order of the log."""
        query = select(ContactRow.size, ContactRow.time_s, ContactRow.chip_ms).where(ContactRow.ueid == ueid)
        with self._registry.session() as session:
            return [Contact(*row) for row in session.execute(query.order_by(ContactRow.size))]

    def heads(self, since_ms: int) -> dict[bytes, tuple[int, bytes]]:
        """Returns size and root of every log that was witnessed at `since_ms` or later, by UEID."""
        with self._registry.session() as session:
            query = select(HeldLogRow.ueid, HeldLogRow.size, HeldLogRow.root).where(HeldLogRow.read_ms >= since_ms)
            return {ueid: (size, root) for ueid, size, root in session.execute(query)}

    def entries(self, ueid: bytes, start: int, end: int) -> list[bytes]:
        """Returns the entries start <= index < end of a log, as far as they are held."""
        with self._registry.session() as session:
            query = select(HeldEntryRow.data).where(
                HeldEntryRow.ueid == ueid, HeldEntryRow.place >= start, HeldEntryRow.place < end
            )
            return list(session.scalars(query.order_by(HeldEntryRow.place)))

    def refused(self, ueid: bytes) -> list[Refused]:
        """Returns the checkpoints of a chip that contradicted what was held, oldest first."""
        with self._registry.session() as session:
            rows = session.scalars(
                select(RefusedCheckpointRow).where(RefusedCheckpointRow.ueid == ueid).order_by(RefusedCheckpointRow.id)
            )
            return [
                Refused(
                    reason=row.reason, checkpoint=row.checkpoint, token=row.token, held=row.held, read_ms=row.read_ms
                )
                for row in rows
            ]

    def nonce(self, ueid: bytes) -> tuple[Held, bytes]:
        """Returns what is held of a chip's log, and a fresh nonce for a report that continues it.

        Nonces that were asked for before may still be used; see `verifier.contact.nonces`.

        Raises:
            UsageError: The chip is not registered.
        """
        held = self.held(ueid)
        return held, self._nonces.give(ueid, held.size)

    def begin(self, ueid: bytes, checkpoint: bytes, token: bytes, proof: Sequence[bytes]) -> Incoming:
        """Begins to take in what a chip reports by itself, over a nonce that it was given.

        All but the entries is verified here, the cheapest first, so that only the chip itself can have an entry kept,
        or use up a nonce of its own.

        Raises:
            TokenError: The token does not verify, is not over a nonce that may be used (`chip.nonce.mismatch`), or as
                `check_history`.
            WeighbridgeError: As `open` and `check_history`.
        """
        self._registry.chip(ueid)
        nonce = read_own(token).nonce or b""
        asked = self._nonces.read(ueid, nonce)
        report = self.open(ueid, checkpoint, token)
        self._nonces.use(ueid, asked)
        with self._turns.of(ueid):
            self.check_history(report, asked.size, proof)
            last = self.entries(ueid, asked.size - 1, asked.size)
        previous = entry_digest(last[0]) if last else GENESIS
        return Incoming(report, asked, proof, previous, self._manufacturer)

    def end(self, incoming: Incoming) -> bytes:
        """Takes in a report of which everything has come.

        Returns:
            The cosigned checkpoint.

        Raises:
            WeighbridgeError: As `take_in`.
        """
        asked = incoming.asked
        times = (asked.time_ms, self.now_ms())
        report, proof, data = incoming.report, incoming.proof, incoming.data
        return self.take_in(report, asked.size, proof, data, verified=True, times=times)

    def receive(self, ueid: bytes, checkpoint: bytes, token: bytes, proof: Sequence[bytes], data: list[bytes]) -> bytes:
        """Takes in a report at once; see `begin`, `Incoming.add` and `end`.

        Returns:
            The cosigned checkpoint.

        Raises:
            WeighbridgeError: As these.
        """
        incoming = self.begin(ueid, checkpoint, token, proof)
        incoming.add(data)
        return self.end(incoming)

    def open(self, ueid: bytes, checkpoint: bytes, token: bytes) -> Report:
        """Verifies a chip's checkpoint and what binds it to the chip, but not what it continues.

        Raises:
            UsageError: The chip is not registered.
            IdentityError: The token's certificates do not lead to the manufacturer.
            TokenError: The token does not verify, or is another chip's (`chip.identity.mismatch`).
            NoteError: The checkpoint is malformed, or not signed by the chip's log key.
        """
        self._registry.chip(ueid)
        head = verify(token, self._manufacturer)
        if head.token.ueid != ueid:
            raise TokenError("Another chip signed the head; report the log of one chip.", code="chip.identity.mismatch")
        opened, note = chip_log.open_checkpoint(checkpoint, head.token)
        return Report(head=head, token=token, checkpoint=opened, note=note)

    def check_history(self, report: Report, old_size: int, proof: Sequence[bytes]) -> None:
        """Checks that a log continues what is held of it; what contradicts it is kept as evidence.

        Args:
            report: As `open` returned it, over a nonce that was made after `old_size` was held.
            old_size: What was held when the chip was asked.
            proof: Proof of consistency from there.

        Raises:
            UsageError: More is held by now; ask the chip again.
            TokenError: The log is shorter than what is held, or than the chip's counter says (`chip.log.rolled_back`).
            ProofError: It does not continue what is held.
        """
        held, checkpoint, head = self.held(report.head.token.ueid), report.checkpoint, report.head.token
        if held.size != old_size:
            raise UsageError("The chip's log was taken in by another call in the meantime; ask the chip again.")
        longest = max(held.size, number(head, "counter"))
        try:
            if checkpoint.size < longest:
                raise TokenError(
                    f"The log has {checkpoint.size} entries, and had {longest}: entries were removed.",
                    code="chip.log.rolled_back",
                )
            merkle.verify_consistency(held.size, checkpoint.size, proof, held.root, checkpoint.root)
        except (TokenError, ProofError) as error:
            self._refuse(report, error, held)
            raise

    def take_in(
        self,
        report: Report,
        old_size: int,
        proof: Sequence[bytes],
        data: Sequence[bytes],
        *,
        verified: bool = False,
        times: tuple[int, int] | None = None,
    ) -> bytes:
        """Takes in a log's continuation if it is one, and vouches for it.

        Args:
            report: As for `check_history`.
            old_size: Likewise.
            proof: Likewise.
            data: Entries from `old_size` on.
            verified: Whether the caller has verified the entries' signatures and chain already.
            times: When the head's nonce was given and when the head was there, in milliseconds since 1970; without
                them its time is not compared with later ones.

        Returns:
            The checkpoint with this witness's cosignature, if it has a key; all entries are durable then.

        Raises:
            TokenError: Entries are missing, altered or moved (`chip.log.*`).
            IdentityError: An entry's certificates do not lead to the manufacturer.
            WeighbridgeError: As `check_history`.
        """
        ueid, checkpoint = report.head.token.ueid, report.checkpoint
        with self._turns.of(ueid):
            self.check_history(report, old_size, proof)
            if len(data) != checkpoint.size - old_size:
                raise TokenError(
                    f"{len(data)} entries came where {checkpoint.size - old_size} were due; report them all.",
                    code="chip.log.incomplete",
                )
            if not verified:
                last = self.entries(ueid, old_size - 1, old_size)
                previous = entry_digest(last[0]) if last else GENESIS
                check_entries(ueid, old_size, previous, data, self._manufacturer)
            tree = merkle.Tree(self._tree(ueid).leaves(0, old_size) if old_size else ())
            for entry in data:
                tree.append(merkle.leaf_hash(entry))
            if tree.root() != checkpoint.root:
                raise TokenError(
                    "The entries are not those under the signed root; report them anew.", code="chip.log.head"
                )
            note, time_s = report.note, int(self._clock())
            if self._signer is not None:
                note = note.with_signature(self._signer.sign(note.text, time_s))
            self._store(report, old_size, data, note.encode(), times, time_s)
            self._keep(ueid, tree)
            return note.encode()

    def compare(self, data: bytes) -> tuple[bool, bytes]:
        """Compares a checkpoint that another Verifier was shown with the log that is held here.

        Args:
            data: The note; the chip's log key must have signed it.

        Returns:
            Whether its tree is a part of that log, and the checkpoint that was cosigned last here.

        Raises:
            NoteError: It is malformed, or no log key that the chip ever had has signed it.
            UsageError: It is of a chip or of a size that is not held here.
        """
        note = tlog.parse_note(data)
        checkpoint = tlog.parse_checkpoint(note.text)
        ueid = next((chip.ueid for chip in self._registry.chips() if tlog.origin(chip.ueid) == checkpoint.origin), None)
        if ueid is None:
            raise NotFoundError(
                "The checkpoint is of no registered chip; register it and inspect it first.",
                resource="chip",
                name=checkpoint.origin,
            )
        with self._registry.session() as session:
            keys = list(session.scalars(select(LogKeyRow.key).where(LogKeyRow.ueid == ueid)))
        self._check_signed(note, [NoteKey(checkpoint.origin, tlog.LOG, key) for key in keys])
        held = self.held(ueid)
        if checkpoint.size > held.size:
            raise UsageError(
                f"The checkpoint is over {checkpoint.size} entries, and {held.size} are held here; "
                "read the chip's log first, then compare."
            )
        with self._turns.of(ueid):
            same = self._tree(ueid).root(checkpoint.size) == checkpoint.root
        return same, held.checkpoint

    @staticmethod
    def _check_signed(note: Note, keys: list[NoteKey]) -> None:
        """Checks that one of these keys signed; keys change with the firmware."""
        ids = {each.id for each in note.signatures}
        for key in [each for each in keys if each.id in ids] or keys[:1]:
            note.verify(key)
            return
        raise UsageError("No log of this chip is held here; inspect it first, then compare.")

    def _tree(self, ueid: bytes) -> merkle.Tree:
        """Returns the tree over what is held; it may be longer if a store failed, so callers name the size."""
        with self._lock:
            tree = self._trees.get(ueid)
        if tree is None:
            tree = merkle.Tree(map(merkle.leaf_hash, self.entries(ueid, 0, self._count(ueid))))
            self._keep(ueid, tree)
        return tree

    def _keep(self, ueid: bytes, tree: merkle.Tree) -> None:
        """Remembers a tree, and forgets the one that was not used for longest: a fleet has more than fit in memory."""
        with self._lock:
            self._trees[ueid] = tree
            self._trees.move_to_end(ueid)
            if len(self._trees) > MAX_TREES:
                self._trees.popitem(last=False)

    def _count(self, ueid: bytes) -> int:
        with self._registry.session() as session:
            return session.scalar(select(func.count()).where(HeldEntryRow.ueid == ueid)) or 0

    def _store(
        self,
        report: Report,
        start: int,
        data: Sequence[bytes],
        note: bytes,
        times: tuple[int, int] | None,
        time_s: int,
    ) -> None:
        token, checkpoint = report.head.token, report.checkpoint
        with self._registry.session.begin() as session:
            if data:
                rows = [{"ueid": token.ueid, "place": start + n, "data": entry} for n, entry in enumerate(data)]
                session.execute(insert(HeldEntryRow), rows)
                contact = {"ueid": token.ueid, "size": checkpoint.size, "time_s": time_s, "chip_ms": token.time_ms}
                session.execute(insert(ContactRow), contact)
            held = {
                "ueid": token.ueid,
                "size": checkpoint.size,
                "root": checkpoint.root,
                "checkpoint": note,
                "chip_ms": token.time_ms,
                "read_ms": self.now_ms(),
            }
            database.put(session, HeldLogRow, held)
            if times is not None:
                anchors.keep(session, token, report.token, *times)
            database.put(session, LogKeyRow, {"ueid": token.ueid, "key": chip_log.log_key(token).public})

    def _refuse(self, report: Report, error: WeighbridgeError, held: Held) -> None:
        """Keeps evidence; a chip that contradicts itself again and again does not fill the disk with it."""
        recent = select(func.count()).where(
            RefusedCheckpointRow.ueid == report.head.token.ueid,
            RefusedCheckpointRow.read_ms > self.now_ms() - _EVIDENCE_MS,
        )
        with self._registry.session.begin() as session:
            if (session.scalar(recent) or 0) >= MAX_EVIDENCE:
                return
            session.add(
                RefusedCheckpointRow(
                    ueid=report.head.token.ueid,
                    reason=error.reason,
                    checkpoint=report.note.encode(),
                    token=report.token,
                    held=held.checkpoint,
                    read_ms=self.now_ms(),
                )
            )


def load_signer(path: Path, prefix: str = "weighbridge/witness/", type: KeyType = tlog.WITNESS) -> NoteSigner:
    """Reads the witness's private key, or makes one (mode 0600) and, beside it with `.pub`, the key for chips.

    Args:
        path: The key file.
        prefix: What the key's name begins with; 16 hex digits of the key follow.
        type: `tlog.LOG` for the key of a log of the Verifier's own.

    Raises:
        UsageError: The file cannot be made, is no such key, or others may read it.
    """
    try:
        seed = secret_files.read_or_make(path, lambda: secrets.token_bytes(tlog.KEY_SIZE))
    except OSError as error:
        raise UsageError(f"Cannot use {path} for the witness's key ({error.strerror}); name another file.") from error
    if len(seed) != tlog.KEY_SIZE:
        raise UsageError(f"{path} holds no witness's key; name the right file.")
    anonymous = NoteSigner("witness", type, seed)
    signer = NoteSigner(f"{prefix}{anonymous.key.public.hex()[:16]}", type, seed)
    secret_files.publish(path.with_name(path.name + ".pub"), f"{signer.key}\n")
    return signer
