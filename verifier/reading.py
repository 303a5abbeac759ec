"""Reads a chip's log: from where the witness is, over a fresh nonce, with the proof that it continues what is held."""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace

from cryptography.x509 import Certificate

from verifier.clients import ChipClient
from verifier.facts import Entry, LogFacts, digest, number
from verifier.registry import Chip
from verifier.witness import Witness
from weighbridge.errors import WeighbridgeError
from weighbridge.identity import Credentials
from weighbridge.tokens import Verified, entry_digest, verify

NONCE_SIZE = 32
_ATTEMPTS = 5
_log = logging.getLogger(__name__)


def read_log(chip: Chip, credentials: Credentials, manufacturer: Certificate, witness: Witness) -> LogFacts:
    """Reads and verifies one chip's log; what the witness holds is not asked for again.

    Where the chip does not prove that its log continues what is held, all of it is read, so that a report can show what
    the chip has instead.

    Args:
        chip: Which one.
        credentials: The Verifier's own.
        manufacturer: Root certificate that device identities must lead to.
        witness: What is held of it.
    """
    for _ in range(_ATTEMPTS):
        facts = _read_once(chip, credentials, manufacturer, witness)
        # A chip that reports by itself may release what the witness took in meanwhile: then begin from there.
        released = isinstance(facts.error, WeighbridgeError) and facts.error.reason == "chip.log.released"
        if not released or witness.held(chip.ueid).size <= facts.held.size:
            break
    return facts


def _read_once(chip: Chip, credentials: Credentials, manufacturer: Certificate, witness: Witness) -> LogFacts:
    nonce, held = secrets.token_bytes(NONCE_SIZE), witness.held(chip.ueid)
    try:
        with ChipClient(chip.address, credentials, chip.ueid) as client:
            note, token = client.checkpoint(nonce)
            head, read_ms = verify(token, manufacturer), witness.now_ms()
            refused = [
                (each.reason, each.checkpoint) for each in witness.refused(chip.ueid) if each.read_ms > held.read_ms
            ]
            facts = LogFacts(chip=chip, nonce=nonce, head=head, held=held, refused=refused, read_ms=read_ms)
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
            entries = [_entry(data, manufacturer) for data in witness.entries(chip.ueid, 0, start)]
            try:
                for data in client.entries(number(head.token, "size"), start):
                    entries.append(_entry(data, manufacturer))
            except WeighbridgeError as error:
                facts = replace(facts, error=error)
            return replace(facts, entries=entries)
    except WeighbridgeError as error:
        return LogFacts(chip=chip, nonce=nonce, head=error, held=held)


def acknowledge(log: LogFacts, credentials: Credentials, witness: Witness) -> None:
    """Has the witness take in a log without findings, and gives the chip the cosignature if it trusts this witness."""
    if log.report is None:
        return
    new = [entry.data for entry in log.entries[log.held.size :]]
    try:
        note = witness.take_in(log.report, log.held.size, log.proof, new, verified=True)
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


def _entry(data: bytes, manufacturer: Certificate) -> Entry:
    verified: Verified | WeighbridgeError
    try:
        verified = verify(data, manufacturer)
    except WeighbridgeError as error:
        verified = error
    return Entry(data=data, digest=entry_digest(data), verified=verified)
