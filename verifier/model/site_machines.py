"""The machines of which one is drawn to run a sealed worker, and others to be taken away and examined.

Whether a machine is what its certificate says, only an examination shows, and an examined machine is not used again. So
both parties agree on a list of more machines than they need, each with a certificate of the authority that vouches for
launchers. A seed that neither chose draws which of them runs the worker and which are examined. A party that tampered
with some does not know which, and is found out with a chance that `Odds` states.

The list is lines (`device_lines`) of launchers' UEIDs and certificates, and certificates of two machines differ. The
terms of the outcome have the digest of these bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import comb

from verifier.model import device_lines, seeded_draw
from weighbridge.core.digests import bytes_digest, record_digest
from weighbridge.core.errors import FormatError, UsageError

HEAD = "weighbridge-site-machines/1"
LIMIT = 1 << 20
"""So many bytes a list may have: about 9,000 machines."""


class SiteMachinesError(FormatError):
    """A list of machines is malformed, or the worker runs on another machine than was drawn."""

    code = "sealed.machine"


@dataclass(frozen=True, slots=True)
class Choice:
    """What a seed drew.

    Attributes:
        used: UEID of the machine that runs the worker.
        examined: UEIDs of those that are examined, in the order drawn.
    """

    used: bytes
    examined: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Odds:
    """What follows for a party that tampered with some of the machines; both are exact.

    Attributes:
        used: The chance that one of these runs the worker.
        missed: The chance that one of these runs the worker and none of the others is examined.
    """

    used: Fraction
    missed: Fraction


@dataclass(frozen=True)
class SiteMachines:
    """Machines that can run a worker.

    Attributes:
        certificates: By UEID, ascending: the digest of the launcher's certificate (32 bytes).
    """

    certificates: dict[bytes, bytes]

    @classmethod
    def of(cls, machines: list[tuple[bytes, bytes]]) -> SiteMachines:
        """Makes a list of UEIDs and digests in any order.

        Raises:
            UsageError: A machine occurs twice, or there are none, or too many.
        """
        made = cls(dict(sorted(machines)))
        if not len(machines) == len(made.certificates) == len(set(made.certificates.values())):
            raise UsageError("a machine is named twice; give each certificate once")
        if not machines or len(made.text) > LIMIT:
            raise UsageError(f"a list of machines has at least one, and at most {LIMIT} bytes")
        return made

    @cached_property
    def text(self) -> bytes:
        """The lines."""
        return device_lines.written(HEAD, self.certificates)

    @property
    def digest(self) -> bytes:
        """BLAKE3 of the lines, 32 bytes: what the terms of the outcome name."""
        return bytes_digest(self.text)

    def choose(self, seed: bytes, examined: int) -> Choice:
        """Draws the machine that is used, and then those that are examined.

        Args:
            seed: That of the inspection's draw, which no party chose.
            examined: How many are examined.

        Raises:
            UsageError: There are fewer machines than that and one more.
        """
        if not 0 <= examined < len(self.certificates):
            raise UsageError(
                f"{len(self.certificates)} machines are not enough to use one and examine {examined}; list more"
            )
        drawn = seeded_draw.draw(self.certificates, examined + 1, record_digest("sealed-machines/1", seed))
        return Choice(drawn[0], tuple(drawn[1:]))

    def require(self, choice: Choice, ueid: bytes, certificate: bytes) -> None:
        """Checks that a worker runs on the machine that was drawn.

        Args:
            choice: What was drawn.
            ueid: Of the launcher that vouches for the worker.
            certificate: Digest of that launcher's certificate.

        Raises:
            SiteMachinesError: It runs on another.
        """
        if (ueid, certificate) != (choice.used, self.certificates[choice.used]):
            raise SiteMachinesError(
                f"the worker runs on machine {ueid.hex()}, and {choice.used.hex()} was drawn; send it nothing"
            )

    def odds(self, examined: int, tampered: int) -> Odds:
        """Returns the odds of a party that tampered with so many of the machines before the draw.

        Raises:
            UsageError: There are fewer machines.
        """
        machines = len(self.certificates)
        if not 0 <= tampered <= machines or not 0 <= examined < machines:
            raise UsageError("a party tampers with at most all machines, and one is not examined")
        used = Fraction(tampered, machines)
        return Odds(used, used * Fraction(comb(machines - tampered, examined), comb(machines - 1, examined)))


def parse(data: bytes) -> SiteMachines:
    """Reads a list; inverse of `SiteMachines.text` for all bytes that are accepted.

    Raises:
        SiteMachinesError: It is none, or machines are doubled or out of order.
    """
    try:
        found = device_lines.read(data, HEAD, LIMIT, "list of machines")
    except FormatError as error:
        raise SiteMachinesError(error.message) from None
    if b"" in found.values() or len(set(found.values())) < len(found):
        raise SiteMachinesError("Each machine has a certificate of its own; take the list as it was agreed on.")
    return SiteMachines(found)
