"""Reads a chip's log: from where the witness is, over a fresh nonce, with the proof that it continues what is held."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, replace

from cryptography.x509 import Certificate

from verifier.contact.clients import ChipClient
from verifier.contact.witness import Witness
from verifier.model.fact_codec import entry
from verifier.model.facts import LogFacts, digest, number
from verifier.registry import Chip
from weighbridge.attest.identity import Credentials
from weighbridge.attest.tokens import read_own, verify
from weighbridge.core.errors import UsageError, WeighbridgeError

NONCE_SIZE = 32
TAG_SIZE = 16
_ATTEMPTS = 5
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Contact:
    """One inspection's contact with a chip, which may take several attempts if the Verifier is killed in between.

    Attributes:
        tag: 16 random bytes with which its nonces begin, so that what was refused in an attempt is known as its own.
        since_ms: The Verifier's time at the contact before, in milliseconds since 1970.
    """

    tag: bytes
    since_ms: int


def first_contact(chip: Chip, witness: Witness) -> Contact:
    """Returns a new contact, before anything is asked."""
    return Contact(tag=secrets.token_bytes(TAG_SIZE), since_ms=witness.held(chip.ueid).read_ms)


def read_log(
    chip: Chip, credentials: Credentials, manufacturer: Certificate, witness: Witness, contact: Contact | None = None
) -> LogFacts:
    """Reads and verifies one chip's log; what the witness holds is not asked for again.

    Where the chip does not prove that its log continues what is held, all of it is read, so that a report can show what
    the chip has instead.

    Args:
        chip: Which one.
        credentials: The Verifier's own.
        manufacturer: Root certificate that device identities must lead to.
        witness: What is held of it.
        contact: What an earlier attempt of the same inspection began; a new one by default.
    """
    contact = contact or first_contact(chip, witness)
    for _ in range(_ATTEMPTS):
        facts = _read_once(chip, credentials, manufacturer, witness, contact)
        # The witness may take in meanwhile what a chip reports by itself, and the chip release it: begin anew.
        released = isinstance(facts.error, WeighbridgeError) and facts.error.reason == "chip.log.released"
        overtaken = isinstance(facts.history, UsageError)
        if not (released or overtaken) or witness.held(chip.ueid).size <= facts.held.size:
            break
    return facts


def _read_once(
    chip: Chip, credentials: Credentials, manufacturer: Certificate, witness: Witness, contact: Contact
) -> LogFacts:
    nonce, held = contact.tag + secrets.token_bytes(NONCE_SIZE - TAG_SIZE), witness.held(chip.ueid)
    asked_ms = witness.now_ms()
    try:
        with ChipClient(chip.address, credentials, chip.ueid) as client:
            note, token = client.checkpoint(nonce)
            head, read_ms = verify(token, manufacturer), witness.now_ms()
            refused = _refused(chip, witness, contact)
            facts = LogFacts(
                chip=chip, nonce=nonce, head=head, head_token=token, held=held, refused=refused, asked_ms=asked_ms,
                read_ms=read_ms, anchors=witness.anchors(chip.ueid), contacts=witness.contacts(chip.ueid),
            )  # fmt: skip
            if head.token.kind != "head":
                return facts
            try:
                report = witness.open(chip.ueid, note, token)
                # Of a log that is shorter there is no proof to ask for.
                reachable = report.checkpoint.size >= held.size
                proof = client.consistency_proof(held.size, report.checkpoint.size) if reachable else []
                witness.check_history(report, held.size, proof)
                facts = replace(facts, report=report, proof=proof)
            except WeighbridgeError as error:
                facts = replace(facts, history=error)
            start = 0 if facts.history is not None else held.size
            entries = [entry(data, manufacturer) for data in witness.entries(chip.ueid, 0, start)]
            try:
                for data in client.entries(number(head.token, "size"), start):
                    entries.append(entry(data, manufacturer))
            except WeighbridgeError as error:
                facts = replace(facts, error=error)
            return replace(facts, entries=entries)
    except WeighbridgeError as error:
        return LogFacts(chip=chip, nonce=nonce, head=error, held=held, asked_ms=asked_ms)


def _refused(chip: Chip, witness: Witness, contact: Contact) -> list[tuple[str, bytes]]:
    """Returns what was refused of a chip since the contact before, but not in this one: that is reported anyway."""
    return [
        (each.reason, each.checkpoint)
        for each in witness.refused(chip.ueid)
        if each.read_ms > contact.since_ms and (read_own(each.token).nonce or b"")[:TAG_SIZE] != contact.tag
    ]


def acknowledge(log: LogFacts, credentials: Credentials, witness: Witness) -> None:
    """Has the witness take in a log without findings, and gives the chip the cosignature if it trusts this witness.

    If that was done already, only the cosignature is given again.
    """
    if log.report is None:
        return
    new = [each.data for each in log.entries[log.held.size :]]
    checkpoint, held = log.report.checkpoint, witness.held(log.chip.ueid)
    try:
        if (held.size, held.root) == (checkpoint.size, checkpoint.root) and log.held.size < held.size:
            note = held.checkpoint
        else:
            times = (log.asked_ms, log.read_ms) if log.asked_ms else None
            note = witness.take_in(log.report, log.held.size, log.proof, new, verified=True, times=times)
        if witness.key is not None and trusted_witness(log) == witness.key.public:
            with ChipClient(log.chip.address, credentials, log.chip.ueid) as client:
                client.add_cosignature(note)
    except WeighbridgeError as error:
        # The next contact makes good for it: a chip that got no cosignature only keeps its entries for longer.
        _log.warning("chip %s was not given a cosignature: %s", log.chip.ueid.hex(), error)


def trusted_witness(log: LogFacts) -> bytes:
    """Returns the public key of the witness that the chip trusts since its newest boot; 32 zero bytes if none."""
    tokens = [entry.verified.token for entry in log.entries if not isinstance(entry.verified, WeighbridgeError)]
    return next((digest(token, "witness") for token in reversed(tokens) if token.kind == "boot"), bytes(32))
