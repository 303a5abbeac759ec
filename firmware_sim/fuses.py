"""A chip's fuses: what the manufacturer burns in, and what can afterwards only grow.

They hold the manufacturer's root certificate, which the boot ROM trusts, the lowest security version number that may
still start, and whether the chip was unlocked for debugging. Nothing here goes back: the number only rises, and an
unlocked chip stays unlocked. `fuses.cbor` in the chip's directory stands for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from firmware_sim.counter import write_durably
from weighbridge.attest.certificates import MAX_CERTIFICATE_BYTES, load_der
from weighbridge.attest.tcb import SVN_END, Mode
from weighbridge.attest.tokens import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import ChipError, FormatError, IdentityError

_FILE = "fuses.cbor"
_MODES: tuple[Mode, ...] = ("production", "debug")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fuses:
    """The fuses of one chip as they are now.

    Attributes:
        root: The manufacturer's root certificate.
        minimal_svn: The lowest security version number that starts, 0 to 2^31 - 1.
        mode: `debug` once the chip was unlocked.
    """

    root: x509.Certificate
    minimal_svn: int = 0
    mode: Mode = "production"

    def raised(self, svn: int) -> Fuses:
        """Returns the fuses after firmware with `svn` started: the minimal SVN never goes down."""
        return replace(self, minimal_svn=max(self.minimal_svn, svn))

    def unlocked(self) -> Fuses:
        """Returns the fuses of a chip that starts any firmware from now on."""
        return replace(self, mode="debug")

    def encode(self) -> bytes:
        """Returns the fuses as deterministic CBOR; `decode` reads them back."""
        root = self.root.public_bytes(serialization.Encoding.DER)
        return cbor({"root": root, "minimal_svn": self.minimal_svn, "mode": self.mode})

    @classmethod
    def decode(cls, data: bytes) -> Fuses:
        """Inverse of `encode`: Fuses.decode(d).encode() == d for every d that is accepted.

        Raises:
            ChipError: The bytes are no fuses (`chip.device`).
        """
        try:
            said = decode_cbor(data, max_bytes=MAX_CERTIFICATE_BYTES + 256)
            fuses = cls(root=load_der(said["root"]), minimal_svn=said["minimal_svn"], mode=said["mode"])
            good = type(fuses.minimal_svn) is int and 0 <= fuses.minimal_svn < SVN_END and fuses.mode in _MODES
        except (FormatError, IdentityError, KeyError, TypeError) as error:
            raise _damaged() from error
        if not good or fuses.encode() != data:
            raise _damaged()
        return fuses

    def burn(self, directory: Path) -> None:
        """Makes the fuses durable in a chip's directory."""
        write_durably(directory / _FILE, self.encode())

    @classmethod
    def read(cls, directory: Path) -> Fuses:
        """Reads what `burn` wrote.

        Raises:
            ChipError: The directory holds no readable fuses (`chip.device`).
        """
        try:
            return cls.decode((directory / _FILE).read_bytes())
        except OSError as error:
            raise ChipError(f"{directory} holds no fuses; provision a chip first.", code="chip.device") from error


def _damaged() -> ChipError:
    return ChipError("The chip's fuses are unreadable; provision another chip.", code="chip.device")
