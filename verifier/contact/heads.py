"""Which heads of chips' logs are witnessed when a draw is closed: those held from before, and those asked for.

A head is what a chip signed: the size of its log and the root over it. Of chips that reported, or were inspected,
within the last monitoring period the witness holds one. All others are asked: each signs a head over a fresh nonce and
proves that it continues what is held. Nothing of their entries is read. Who does not answer in time has no head.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from concurrent.futures import TimeoutError as Late

from cryptography.x509 import Certificate

from verifier.contact.clients import ChipClient
from verifier.contact.log_reading import NONCE_SIZE
from verifier.contact.witness import Witness
from verifier.model.strata import Heads
from verifier.registry import Chip
from weighbridge.attest.identity import Credentials
from weighbridge.core.errors import TokenError, WeighbridgeError

WORKERS = 16
SECONDS_A_CHIP = 0.02
"""How long asking takes for each chip, with all workers at work and chips that answer."""
_log = logging.getLogger(__name__)


def ask(
    chips: Sequence[Chip],
    *,
    credentials: Credentials,
    manufacturer: Certificate,
    witness: Witness,
    until_ms: int,
    progress: Callable[[int], None],
) -> Heads:
    """Asks chips for their heads until a time comes.

    Args:
        chips: Whom to ask.
        credentials: The Verifier's own.
        manufacturer: Root certificate that device identities must lead to.
        witness: What is held of their logs.
        until_ms: When to stop, in milliseconds since 1970 by the witness's clock. Calls that are under way then are not
            waited for.
        progress: Told how many have answered or failed. What it raises ends the asking.

    Returns:
        Size and root of each log whose chip answered, by UEID.
    """

    def one(chip: Chip) -> tuple[bytes, tuple[int, bytes]] | None:
        if witness.now_ms() >= until_ms:
            return None
        try:
            return chip.ueid, _head(chip, credentials, manufacturer, witness)
        except WeighbridgeError as error:
            _log.info("chip %s showed no head: %s", chip.ueid.hex(), error)
            return None

    found: dict[bytes, tuple[int, bytes]] = {}
    pool = ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="heads")
    try:
        pending = [pool.submit(one, chip) for chip in chips]
        seconds = max(0.0, (until_ms - witness.now_ms()) / 1000)
        for done, future in enumerate(as_completed(pending, timeout=seconds), 1):
            answer = future.result()
            if answer is not None:
                found[answer[0]] = answer[1]
            progress(done)
    except Late:
        pass
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return found


def _head(chip: Chip, credentials: Credentials, manufacturer: Certificate, witness: Witness) -> tuple[int, bytes]:
    nonce, held = secrets.token_bytes(NONCE_SIZE), witness.held(chip.ueid)
    with ChipClient(chip.address, credentials, chip.ueid) as client:
        note, token = client.checkpoint(nonce)
        report = witness.open(chip.ueid, note, token)
        if report.head.token.nonce != nonce:
            raise TokenError("the head is not signed over the nonce that was sent", code="chip.nonce.mismatch")
        # Of a log that is shorter there is no proof to ask for; the witness keeps it as evidence.
        reachable = report.checkpoint.size >= held.size
        proof = client.consistency_proof(held.size, report.checkpoint.size) if reachable else []
        witness.check_history(report, held.size, proof)
    return report.checkpoint.size, report.checkpoint.root
