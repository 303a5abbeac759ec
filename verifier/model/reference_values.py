"""Which firmware a Verifier trusts, and with which options: its reference values.

Measurements are taken from the images that the manufacturer published. Options are set where a chip is started, so no
measurement covers them: each boot entry states them, signed, and the Verifier has limits of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cryptography.x509 import Certificate

from weighbridge.attest.firmware_image import read_image
from weighbridge.core.errors import UsageError

CLOCK_TOLERANCE = 0.01
"""How much slower than the Verifier's clock a chip's may run: far more than a quartz does."""


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
class ChipLimits:
    """With which options a chip may be started; the firmware's defaults are within the defaults.

    Attributes:
        hold: The most kernels that an interrupt may wait for a safepoint.
        clock_speed: The most seconds of the chip's clock per second; the least is 1. Only simulated chips run faster.
        forced: Whether the workload may ask for interrupts, as tests and demonstrations do.
        clock_slack_s: Seconds that a chip's clock may lose on the Verifier's, besides a small share of the time that
            went by; for clocks that are set now and then.
        unproven_share: The most of the period that no two contacts of one boot need enclose, from 0 to 1. A chip that
            shows less of it does not count as verified. 1 asks for no contacts.
    """

    hold: int = 4096
    clock_speed: float = 1.0
    forced: bool = False
    clock_slack_s: float = 60.0
    unproven_share: float = 1.0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: A field is out of range.
        """
        if not (self.hold >= 0 and 1 <= self.clock_speed < math.inf and 0 <= self.clock_slack_s < math.inf):
            raise UsageError("chips may hold at least 0 kernels, and their clock may run at least as fast as any other")
        if not 0 <= self.unproven_share <= 1:
            raise UsageError(f"the share of unproven time lies from 0 to 1; {self.unproven_share} is none")

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data with every field."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class FirmwarePolicy:
    """Which firmware a chip may run, and with which options.

    Attributes:
        allowed: Measurement (SHA-384, 48 bytes) of each firmware that may run, with what is known about it.
        minimal_svn: The lowest security version number that is still trusted in what was not witnessed before.
        limits: The options with which it may be started.
    """

    allowed: Mapping[bytes, Reference] = field(default_factory=dict)
    minimal_svn: int = 0
    limits: ChipLimits = field(default_factory=ChipLimits)

    @classmethod
    def of(
        cls,
        paths: Iterable[Path],
        manufacturer: Certificate,
        *,
        minimal_svn: int = 0,
        limits: ChipLimits | None = None,
    ) -> FirmwarePolicy:
        """Allows the firmware of image files.

        Args:
            paths: Image files; their payloads are not kept.
            manufacturer: Root certificate that they must be signed under.
            minimal_svn: As in the attributes.
            limits: Likewise; by default what the firmware's defaults are within.

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
        return cls(allowed=allowed, minimal_svn=minimal_svn, limits=limits or ChipLimits())

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data: everything that a judgement of firmware depends on."""
        return {
            "minimal_svn": self.minimal_svn,
            "limits": self.limits.to_json(),
            "allowed": [
                {"measurement": measurement.hex(), "version": known.version, "svn": known.svn, "model": known.hwmodel}
                for measurement, known in sorted(self.allowed.items())
            ],
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> FirmwarePolicy:
        """Inverse of `to_json`.

        Raises:
            UsageError: It is not what `to_json` gives.
        """
        try:
            allowed = {
                bytes.fromhex(each["measurement"]): Reference(
                    version=each["version"], svn=each["svn"], hwmodel=each["model"]
                )
                for each in raw["allowed"]
            }
            return cls(allowed=allowed, minimal_svn=raw["minimal_svn"], limits=ChipLimits(**raw["limits"]))
        except (TypeError, ValueError, KeyError) as error:
            raise UsageError(f"this is no policy for firmware ({error})") from None
