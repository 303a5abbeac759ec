"""The population of a sealed inspection, as both parties agree on it before either knows the nonce of the draw.

Lines, as the populations of other draws have: a first one that names the format; for each chip its UEID in hex, a tab,
and the BLAKE3 of its IDevID certificate, or `-` where the Verifier could not learn that. UEIDs ascend. The terms of the
outcome have the digest of these bytes. So a chip that is registered, retired or given other certificates later changes
no draw.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from verifier.model import seeded_draw
from weighbridge.core.digests import DIGEST_SIZE, bytes_digest
from weighbridge.core.errors import FormatError, UsageError

HEAD = "weighbridge-agreed-population/1"
LIMIT = 48 << 20
"""So many bytes a population may have: about 480,000 chips with UEIDs of 17 bytes."""
_UNKNOWN = "-"
_LINE = re.compile(rf"((?:[0-9a-f]{{2}}){{17,33}})\t([0-9a-f]{{{2 * DIGEST_SIZE}}}|{_UNKNOWN})")


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
        lines = (f"{ueid.hex()}\t{digest.hex() or _UNKNOWN}\n" for ueid, digest in self.chips.items())
        return (f"{HEAD}\n" + "".join(lines)).encode()

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
    head, _, rest = data.partition(b"\n")
    if head != HEAD.encode() or not rest.endswith(b"\n") or len(data) > LIMIT:
        raise AgreedPopulationError(f"This is no population of at most {LIMIT} bytes; take it as the Verifier made it.")
    chips: dict[bytes, bytes] = {}
    last = b""
    for number, line in enumerate(rest[:-1].split(b"\n"), 2):
        match = _LINE.fullmatch(line.decode("ascii", "replace"))
        if match is None:
            raise AgreedPopulationError(f"Line {number} of the population is no UEID and digest with a tab between.")
        ueid = bytes.fromhex(match[1])
        if ueid <= last:
            raise AgreedPopulationError(f"Line {number} of the population is doubled or out of order.")
        chips[ueid] = b"" if match[2] == _UNKNOWN else bytes.fromhex(match[2])
        last = ueid
    return AgreedPopulation(chips)
