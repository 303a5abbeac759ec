"""Which firmware a Verifier trusts: reference values, taken from the images that the manufacturer published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.x509 import Certificate

from weighbridge.attest.firmware_image import read_image
from weighbridge.core.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """What the manufacturer says about one firmware.

    Attributes:
        version: Its version.
        svn: Its security version number.
        hwmodel: The hardware model that it is for.
    """

    version: str
    svn: int
    hwmodel: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FirmwarePolicy:
    """Which firmware a chip may run.

    Attributes:
        allowed: Measurement (SHA-384, 48 bytes) of each firmware that may run, with what is known about it.
        minimal_svn: The lowest security version number that is still trusted in what was not witnessed before.
    """

    allowed: Mapping[bytes, Reference] = field(default_factory=dict)
    minimal_svn: int = 0

    @classmethod
    def of(cls, paths: Iterable[Path], manufacturer: Certificate, *, minimal_svn: int = 0) -> FirmwarePolicy:
        """Allows the firmware of image files.

        Args:
            paths: Image files; their payloads are not kept.
            manufacturer: Root certificate that they must be signed under.
            minimal_svn: As in the attributes.

        Raises:
            UsageError: A file is unreadable, or the minimal SVN would refuse every image.
            ChipError: A file is no image that the manufacturer signed (`chip.image.*`).
        """
        allowed = {}
        for path in paths:
            try:
                data = path.read_bytes()
            except OSError as error:
                raise UsageError(f"cannot read {path} ({error.strerror}); name the right firmware image") from None
            image = read_image(data, manufacturer)
            allowed[image.measurement] = Reference(version=image.version, svn=image.svn, hwmodel=image.hwmodel)
        if allowed and max(reference.svn for reference in allowed.values()) < minimal_svn:
            raise UsageError(f"no firmware image has the security version number {minimal_svn}; name a newer image")
        return cls(allowed=allowed, minimal_svn=minimal_svn)

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data: everything that a judgement of firmware depends on."""
        return {
            "minimal_svn": self.minimal_svn,
            "allowed": [
                {"measurement": measurement.hex(), "version": known.version, "svn": known.svn, "model": known.hwmodel}
                for measurement, known in sorted(self.allowed.items())
            ],
        }
