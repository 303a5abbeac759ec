"""The entries of one report while they arrive: what is kept has verified."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cryptography.x509 import Certificate

from verifier.contact.nonces import Asked
from verifier.model.facts import Report
from weighbridge.attest.tokens import entry_digest, verify
from weighbridge.core.errors import TokenError


class Incoming:
    """A report whose head has verified.

    Attributes:
        report: Its verified head and checkpoint.
        asked: What the nonce says that the head is signed over.
        proof: That the checkpoint continues what was held then.
        data: Entries that came, all verified and in order.
    """

    def __init__(
        self, report: Report, asked: Asked, proof: Sequence[bytes], previous: bytes, manufacturer: Certificate
    ) -> None:
        """Awaits the entries from `asked.size` on; `previous` is the digest of the one before."""
        self.report, self.asked, self.proof = report, asked, proof
        self.data: list[bytes] = []
        self._previous, self._manufacturer = previous, manufacturer

    def add(self, entries: Iterable[bytes]) -> None:
        """Takes the next entries.

        Raises:
            TokenError: There are more than the checkpoint covers (`chip.log.incomplete`), or one is not the chip's
                next (`chip.log.counter`, `chip.log.chain`).
            IdentityError: An entry's certificates do not lead to the manufacturer.
        """
        new = list(entries)
        start = self.asked.size + len(self.data)
        due = self.report.checkpoint.size - start
        if len(new) > due:
            raise TokenError(
                f"{len(new)} entries came where {due} were due; report those under the checkpoint.",
                code="chip.log.incomplete",
            )
        self._previous = check_entries(self.report.head.token.ueid, start, self._previous, new, self._manufacturer)
        self.data += new


def check_entries(ueid: bytes, start: int, previous: bytes, data: Sequence[bytes], manufacturer: Certificate) -> bytes:
    """Checks that entries are those of a chip's log from a place on.

    Args:
        ueid: The chip.
        start: Index of the first of them.
        previous: Digest of the entry before it; zeros if there is none.
        data: The entries.
        manufacturer: Root certificate that device identities must lead to.

    Returns:
        The digest of the last entry; `previous` if there are none.

    Raises:
        TokenError: One does not verify, or is not next (`chip.log.counter`, `chip.log.chain`).
        IdentityError: An entry's certificates do not lead to the manufacturer.
    """
    for index, entry in enumerate(data, start):
        token = verify(entry, manufacturer).token
        if token.kind == "head" or token.index != index:
            raise TokenError(
                f"Entry {index} carries the counter {token.index}: entries were dropped, doubled or moved.",
                code="chip.log.counter",
            )
        if token.previous != previous or token.ueid != ueid:
            raise TokenError(f"Entry {index} does not continue the one before it.", code="chip.log.chain")
        previous = entry_digest(entry)
    return previous
