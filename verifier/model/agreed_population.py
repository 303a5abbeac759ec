"""The population of a sealed inspection, as both parties agree on it before either knows the nonce of the draw.

It is lines (`device_lines`) of UEIDs and IDevID certificates, as far as the Verifier could learn these. The terms of
the outcome have the digest of these bytes. So a chip that is registered, retired or given other certificates later
changes no draw.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from verifier.model import device_lines, seeded_draw
from weighbridge.core.digests import DIGEST_SIZE, bytes_digest
from weighbridge.core.errors import FormatError, UsageError

HEAD = "weighbridge-agreed-population/1"
LIMIT = 48 << 20
"""So many bytes a population may have: about 480,000 chips with UEIDs of 17 bytes."""


class AgreedPopulationError(FormatError):
    """A population is malformed, or another than was agreed on."""

    code = "sealed.population"


@dataclass(frozen=True)
class AgreedPopulation:
    """Chips that a sealed inspection draws from.

    Attributes:
        chips: By UEID, ascending: the digest of the chip's IDevID certificate (32 bytes; empty if it is not known).
    """

    chips: dict[bytes, bytes]

    @classmethod
    def of(cls, chips: Iterable[tuple[bytes, bytes]]) -> AgreedPopulation:
        """Makes a population of UEIDs and digests in any order.

        Raises:
            UsageError: A chip occurs twice, a UEID or a digest is none, or there are no chips or too many.
        """
        found: dict[bytes, bytes] = {}
        for ueid, certificate in sorted(chips):
            if ueid in found:
                raise UsageError("a chip occurs twice in the population; register each chip once")
            if not 17 <= len(ueid) <= 33 or len(certificate) not in (0, DIGEST_SIZE):
                raise UsageError("a population has UEIDs of 17 to 33 bytes, and digests of their certificates")
            found[ueid] = certificate
        made = cls(found)
        if not found or len(made.text) > LIMIT:
            raise UsageError(f"a population has at least one chip, and at most {LIMIT} bytes")
        return made

    def __len__(self) -> int:
        return len(self.chips)

    @cached_property
    def text(self) -> bytes:
        """The lines."""
        return device_lines.written(HEAD, self.chips)

    @property
    def digest(self) -> bytes:
        """BLAKE3 of the lines, 32 bytes: what the terms of the outcome name."""
        return bytes_digest(self.text)

    def draw(self, samples: int, seed: bytes) -> list[bytes]:
        """Draws UEIDs, in the order drawn; see `verifier.model.seeded_draw.draw`.

        Raises:
            UsageError: There are fewer chips, or the seed is none.
        """
        return seeded_draw.draw(self.chips, samples, seed)


def parse(data: bytes) -> AgreedPopulation:
    """Reads a population; inverse of `AgreedPopulation.text` for all bytes that are accepted.

    Raises:
        AgreedPopulationError: It is none, or chips are doubled or out of order.
    """
    try:
        return AgreedPopulation(device_lines.read(data, HEAD, LIMIT, "population"))
    except FormatError as error:
        raise AgreedPopulationError(error.message) from None
