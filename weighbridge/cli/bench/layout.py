"""What lies where in the directory of a bench, and how it was made: authority, keys, chips.

bench.json                 how the bench was made (`Settings`)
authority/, manufacturer/  issue the parties' certificates; make the chips and sign their firmware
chips/NAME/                the chip's own directory, its `credentials`, `address` and `socket`
prover/, verifier/         `credentials` and `address`; the Verifier's registry, keys and cache
operator/credentials       for `weighbridge inspect`
runs/                      transcripts, which the Prover's service offers
logs/, background/         what the services print; which processes they are
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from weighbridge.core.errors import UsageError

DEFAULT = Path("weighbridge-bench")
"""Where a bench is by default. A directory `weighbridge` would hide the package from programs beside it."""

HOLD = 512
"""Kernels that an interrupt waits for a safepoint: many operations of a Recorder, and few steps of a small training."""

_ROLES = ("prover", "verifier", "operator")
_FILE = "bench.json"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_RENEW = timedelta(days=10)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a bench is.

    Attributes:
        chips: Names of its chips.
        rate_per_day: Interrupts of a chip per day, on its own clock.
        clock_speed: Seconds of a chip's clock per second.
        forced: Whether a training may ask its chip for a snapshot.
        confidential: Whether chips boot confidentially: they open snapshots for sealed inspections alone.
    """

    chips: tuple[str, ...]
    rate_per_day: float
    clock_speed: float
    forced: bool = False
    confidential: bool = False


@dataclass(frozen=True, slots=True)
class Service:
    """One process of a bench.

    Attributes:
        name: For people: `chip gpu-0`, `prover`, `verifier`.
        command: Words after `weighbridge`, e.g. `serve prover`.
        arguments: Of the command, without its address.
        address_file: Where it writes `host:port` once it serves.
        log: File for everything that it prints.
    """

    name: str
    command: str
    arguments: tuple[str, ...]
    address_file: Path
    log: Path


class Bench:
    """A directory that holds a bench.

    Attributes:
        directory: Its absolute path.
        settings: How it is.
        runs: Directory of the transcripts that its Prover offers.
    """

    def __init__(self, directory: Path, settings: Settings, *, runs: Path | None = None) -> None:
        """Describes a bench; `make` makes it, `opened` reads one."""
        self.directory, self.settings = directory.absolute(), settings
        self.runs = self.directory / "runs" if runs is None else runs.absolute()

    @classmethod
    def opened(cls, directory: Path) -> Bench:
        """Reads how a bench was made.

        Raises:
            UsageError: There is none, or its file is damaged.
        """
        try:
            value = json.loads((directory / _FILE).read_text(encoding="utf-8"))
            settings = Settings(**{**value, "chips": tuple(value["chips"])})
        except OSError:
            raise UsageError(
                f"there is no bench in {directory}; start one with `weighbridge up`, or name another with --dir"
            ) from None
        except (ValueError, TypeError, KeyError):
            raise UsageError(f"{directory / _FILE} is damaged; remove {directory} and start a new bench") from None
        return cls(directory, settings)

    @staticmethod
    def exists(directory: Path) -> bool:
        """Whether a directory holds a bench."""
        return (directory / _FILE).is_file()

    def keep(self) -> None:
        """Writes down how the bench is."""
        self.directory.mkdir(parents=True, exist_ok=True)
        partial = self.directory / f"{_FILE}.partial"
        partial.write_text(json.dumps(asdict(self.settings), indent=1) + "\n", encoding="utf-8")
        partial.replace(self.directory / _FILE)

    def chip(self, name: str) -> Path:
        """Returns the directory of a chip."""
        return self.directory / "chips" / name

    def socket(self, name: str) -> Path:
        """Returns the socket through which a training finds a chip (`firmware_sim.shim.Shim.connect`)."""
        return self.chip(name) / "socket"

    def credentials(self, role: str) -> Path:
        """Returns the directory of a role's credentials."""
        return self.directory / role / "credentials"

    def address(self, role: str) -> str:
        """Returns where the Prover's or the Verifier's service answers.

        Raises:
            UsageError: It has never been started.
        """
        try:
            return (self.directory / role / "address").read_text(encoding="utf-8").strip()
        except OSError:
            raise UsageError(f"the {role} in {self.directory} does not run; type `weighbridge up`") from None

    def ueid(self, name: str) -> bytes:
        """Returns the identity of a chip that was made."""
        from firmware_sim.boot import Nameplate

        return Nameplate.read(self.chip(name)).ueid

    def make(self) -> None:
        """Makes whatever is missing, and renews certificates that end soon; what is there stays as it is."""
        from firmware_sim.boot import SECRET
        from firmware_sim.device import builtin_image, provision
        from weighbridge.attest.firmware_image import FirmwareSigner
        from weighbridge.attest.identity import CertificateAuthority
        from weighbridge.attest.role_authority import RoleAuthority

        for name in ("authority", "manufacturer"):
            if not (self.directory / name / "authority-key.pem").exists():
                CertificateAuthority.create(f"Weighbridge bench: {name}").save(self.directory / name)
        manufacturer = CertificateAuthority.load(self.directory / "manufacturer")
        image = self._image
        if not image.exists():
            signed = FirmwareSigner.of(self.directory / "manufacturer").sign(builtin_image())
            partial = image.with_name(image.name + ".partial")
            partial.write_bytes(signed)
            partial.replace(image)
        self.runs.mkdir(parents=True, exist_ok=True)
        with RoleAuthority.opened(self.directory / "authority") as authority:
            for role in _ROLES:
                _credentials(authority, self.credentials(role), role, "bench", ())
            for name in self.settings.chips:
                if not (self.chip(name) / SECRET).exists():
                    provision(self.chip(name), manufacturer, image=image.read_bytes())
                _credentials(authority, self.chip(name) / "credentials", "chip", name, (self.ueid(name),))

    @property
    def _image(self) -> Path:
        return self.directory / "manufacturer" / "firmware.img"

    def services(self) -> list[Service]:
        """Returns all processes of the bench: chips, Prover, Verifier."""
        settings, verifier = self.settings, self.directory / "verifier"
        forced = ("--allow-forced",) if settings.forced else ()
        confidential = ("--confidential",) if settings.confidential else ()
        chips = [
            self._service(
                f"chip {name}", "chip boot", self.chip(name),
                "--dir", self.chip(name), "--credentials", self.chip(name) / "credentials",
                "--socket", self.socket(name), "--rate", settings.rate_per_day,
                "--clock-speed", settings.clock_speed, "--hold", HOLD, *forced, *confidential,
            )
            for name in settings.chips
        ]  # fmt: skip
        return [
            *chips,
            self._service(
                "prover", "serve prover", self.directory / "prover",
                "--runs", self.runs, "--credentials", self.credentials("prover"),
            ),
            self._service(
                "verifier", "serve verifier", verifier,
                "--db", verifier / "registry.sqlite", "--credentials", self.credentials("verifier"),
                "--manufacturer", self.directory / "manufacturer" / "authority.pem", "--firmware", self._image,
                "--cache", verifier / "cache", "--max-clock-speed", max(1.0, settings.clock_speed), *forced,
            ),
        ]  # fmt: skip

    def _service(self, name: str, command: str, home: Path, *arguments: object) -> Service:
        log = self.directory / "logs" / f"{name.removeprefix('chip ')}.log"
        return Service(name, command, tuple(map(str, arguments)), home / "address", log)


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Returns names of chips if they can be.

    Raises:
        UsageError: One cannot name a chip, or occurs twice.
    """
    for name in names:
        if not _NAME.fullmatch(name) or name in ("prover", "verifier"):
            raise UsageError(f"{name!r:.80} cannot name a chip; use up to 32 lower-case letters, digits and hyphens")
    if len(set(names)) != len(names):
        raise UsageError("two chips have the same name; name each chip once")
    return tuple(names)


def _credentials(authority, directory: Path, role: str, name: str, ueids: tuple[bytes, ...]) -> None:  # type: ignore[no-untyped-def]
    """Issues credentials if there are none; renews them in their last days, and the list of revoked certificates."""
    from weighbridge.attest import role_certificate
    from weighbridge.attest.credential_files import CREDENTIALS, REVOCATIONS, write_files

    if not all((directory / each).exists() for each in CREDENTIALS):
        authority.issue(role, name, ueids=ueids).save(directory)
        return
    pem = (directory / "certificate.pem").read_bytes()
    left = role_certificate.read(pem).expires - datetime.now(UTC)
    if left < timedelta(0):
        authority.issue(role, name, ueids=ueids).save(directory)
    elif left < _RENEW:
        authority.sign_list()
        write_files(directory, {"certificate.pem": authority.renew(pem), REVOCATIONS: authority.revocations})
