"""What says whose a sealed worker's keys are: the two sides of it, whatever stands behind them.

One side is on the site's machine: it knows which image it started, and states that, with the worker's keys, for one
order. The other is with the parties: it checks such a statement by what they trust, and returns what it says. Nothing
else of the protocol reads a statement. `weighbridge.attest.sealed_attestation` has both for a launcher whose key an
authority certifies; docs/enclaves.md says what quotes of hardware would put in its place, field by field.
"""

from __future__ import annotations

from typing import Protocol

from weighbridge.attest.sealed_attestation import Attested
from weighbridge.attest.sealed_order import Order
from weighbridge.attest.sealed_starts import Start


class Quoter(Protocol):
    """States what a worker is, on the machine that started it."""

    def quote(
        self, order: Order, start: Start, *, measurement: bytes, worker: bytes, signer: bytes, isolation: list[str]
    ) -> bytes:
        """Returns the statement, at most `ATTESTATION_LIMIT` bytes.

        Args:
            order: The worker's job.
            start: Its line in the log of starts.
            measurement: Of the image as it was started (48 bytes). Hardware that measures by itself compares it.
            worker: The worker's public key of the channel.
            signer: Its key that signs the outcome.
            isolation: What it is confined by.
        """
        ...


class QuoteVerifier(Protocol):
    """Checks such statements, for a party or for a chip."""

    def verify(self, data: bytes, order: Order) -> Attested:
        """Returns what a statement says.

        Args:
            data: The statement; hostile.
            order: The job that this party agreed to; its measurement is the one that has to run.

        Raises:
            SealedWorkerError: It is malformed, altered, of another order or image, or not of what this side trusts
                (`sealed.attestation`).
        """
        ...
