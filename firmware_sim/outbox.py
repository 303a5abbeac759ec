"""What a chip owes its Verifier: checkpoints and cosignatures, what waits to be reported, what may be released.

This is the part of the firmware between the store (`nvlog`) and what reports (`witness_client`). It has no lock and no
thread; the firmware calls it under its own.
"""

from __future__ import annotations

from collections import deque

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from firmware_sim.nvlog import NonVolatileLog, rolled_back
from firmware_sim.reporting_policy import Reporting
from weighbridge.attest import tlog
from weighbridge.core.errors import ChipError, UsageError, WeighbridgeError

MOST_CONTACTS = 4096
"""Cosignatures of this boot whose times are known; a workload asks for that of its newest events."""


def log_seed(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Derives the seed of the log key (Ed25519) from the attestation key: it belongs to the same device and firmware.

    HKDF (RFC 5869) keeps the two apart: a signature by one says nothing about the other.
    """
    secret = key.private_numbers().private_value.to_bytes(48)
    return HKDF(algorithm=hashes.SHA384(), length=32, salt=None, info=b"weighbridge log key/1").derive(secret)


class Outbox:
    """The log of one chip as its Verifier sees it.

    Attributes:
        log: The store.
        signer: The log key.
        cosigned_size: Entries that the trusted witness holds.
        newest_snapshot: One more than the index of the newest snapshot; 0 if there is none.
        newest_prompt: The same of the newest event whose time at the witness counts.
        newest_boot: One more than the index of this boot's entry; 0 if it is not logged yet.
    """

    def __init__(self, log: NonVolatileLog, ueid: bytes, key: ec.EllipticCurvePrivateKey, reporting: Reporting) -> None:
        """Takes over a log.

        Args:
            log: The store.
            ueid: The chip's.
            key: Its attestation key.
            reporting: How it reports.
        """
        self.log, self._reporting = log, reporting
        self.signer = tlog.NoteSigner(tlog.origin(ueid), tlog.LOG, log_seed(key))
        self.newest_snapshot = self.newest_prompt = self.newest_boot = 0
        self._contacts = deque[tuple[int, int, int]](maxlen=MOST_CONTACTS)
        try:
            self.cosigned_size = self._check(log.cosigned)[0] if log.cosigned else 0
        except WeighbridgeError:
            # The chip trusts another witness since, or its log lacks entries: what is not cosigned is only kept longer.
            self.cosigned_size = 0

    def checkpoint(self) -> bytes:
        """Returns the signed checkpoint of the whole log, with the witness's cosignature if there is one for it."""
        size = len(self.log)
        text = tlog.Checkpoint(self.signer.key.name, size, self.log.tree.root()).text
        own = self.signer.sign(text)
        if size and self.cosigned_size == size:
            others = [each for each in tlog.parse_note(self.log.cosigned).signatures if each.name != own.name]
            return tlog.Note(text, (own, *others)).encode()
        return tlog.Note(text, (own,)).encode()

    def take_in(self, data: bytes) -> bool:
        """Keeps a cosigned checkpoint if it is newer than the one before; returns whether it was.

        Raises:
            NoteError: It is malformed, or the trusted witness did not sign it (`chip.note.signature`).
            ChipError: It is of another log or history (`chip.log.fork`), or cannot be made durable.
            UsageError: This chip trusts no witness.
        """
        size, time_s = self._check(data)
        if size <= self.cosigned_size:
            return False
        self.log.keep_cosigned(data)
        self._contacts.append((self.cosigned_size, size, time_s))
        self.cosigned_size = size
        return True

    def make_room(self) -> None:
        """Releases what the witness holds once the NVRAM is half full."""
        if self.log.is_half_full:
            self.log.release(self.cosigned_size)

    @property
    def is_due(self) -> bool:
        """Whether there is something to report: this boot, what should not wait (see below), or a half-full NVRAM.

        A snapshot that a workload waits for should not, nor an event whose time at the witness counts.

        Once the witness has seen a boot, it can compare the chip's clock with its own from there on.
        """
        if self.log.missing or self.cosigned_size == len(self.log):
            return False
        return (
            self.cosigned_size < max(self.newest_boot, self.newest_prompt) or self._must_wait or self.log.is_half_full
        )

    def obstacle(self, *, booted: bool) -> ChipError | None:
        """Returns why the workload may not go on, None if it may.

        Args:
            booted: Whether this boot's entry is in the log.
        """
        if self.log.missing:
            return rolled_back(self.log.missing)
        if not booted or not self.log.has_room:
            return self.log.no_room()
        if self._must_wait:
            return ChipError(
                "The witness has not acknowledged the newest snapshot; it is kept, and no kernel may run before.",
                code="chip.witness.silent",
            )
        return None

    @property
    def _must_wait(self) -> bool:
        return self._reporting.mode == "wait" and self.cosigned_size < self.newest_snapshot

    def witnessed(self, index: int) -> int | None:
        """Returns when the witness first cosigned an entry, in seconds since 1970 on its clock; None if not known.

        That is so before the cosignature is here, and of entries that were cosigned before this boot.
        """
        return next((time_s for before, size, time_s in self._contacts if before <= index < size), None)

    def _check(self, data: bytes) -> tuple[int, int]:
        """Returns size and time of a checkpoint of this log that the trusted witness has cosigned."""
        if self._reporting.witness is None:
            raise UsageError("This chip trusts no witness; start it with the key of one.")
        note = tlog.parse_note(data)
        checkpoint = tlog.parse_checkpoint(note.text)
        times = note.verify(self._reporting.witness)
        if checkpoint.origin != self.signer.key.name or checkpoint.size > len(self.log):
            raise ChipError("The cosigned checkpoint is of another log, or of a longer one.", code="chip.log.fork")
        if checkpoint.root != self.log.tree.root(checkpoint.size):
            raise ChipError("The cosigned checkpoint is of another history of this chip.", code="chip.log.fork")
        return checkpoint.size, min(times)
