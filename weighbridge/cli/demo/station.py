"""A whole inspection station on the loopback: chips, Prover and Verifier, each a process with a key of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from firmware_sim.device import builtin_image, provision
from weighbridge.attest.firmware_image import FirmwareSigner
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.role_authority import RoleAuthority
from weighbridge.cli.demo.processes import service
from weighbridge.cli.inspect.operator import Operator, connect

_HOLD = 512
"""Kernels that an interrupt waits for a safepoint: many operations of a Recorder, and few steps of a small training."""


@dataclass(frozen=True, slots=True)
class RunningChip:
    """A chip that serves.

    Attributes:
        name: Its name in the demo.
        ueid: Its identity.
        socket: Where a training process on it finds it.
    """

    name: str
    ueid: bytes
    socket: Path


@dataclass(frozen=True, slots=True)
class Station:
    """Everything that runs.

    Attributes:
        chips: In the order of their names as given; all are registered.
        operator: A connection to the Verifier.
    """

    chips: Sequence[RunningChip]
    operator: Operator


@contextmanager
def station(
    directory: Path, *, runs: Path, chips: Sequence[str], rate_per_day: float, clock_speed: float
) -> Iterator[Station]:
    """Sets up a station in a new directory and runs it until the end of the block.

    Args:
        directory: For keys, logs and databases; must not exist.
        runs: Directory whose transcripts the Prover serves.
        chips: Names of the chips.
        rate_per_day: Snapshots per chip and day, on the chips' clock.
        clock_speed: How many times faster than the wall clock the chips' clock runs.

    Raises:
        ProcessError: A process did not come up.
    """
    manufacturer = CertificateAuthority.create("Weighbridge demo chips")
    CertificateAuthority.create("Weighbridge demo").save(directory / "authority")
    manufacturer.save(directory / "manufacturer")
    image = FirmwareSigner.of(directory / "manufacturer").sign(builtin_image())
    (directory / "manufacturer" / "firmware.img").write_bytes(image)
    with RoleAuthority.opened(directory / "authority") as authority:
        for role in ("prover", "verifier", "operator"):
            authority.issue(role, "demo").save(directory / role / "credentials")
    logs = directory / "logs"
    with ExitStack() as stack:
        # Paths of local sockets are limited to some hundred bytes, which a user's directory may exceed.
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weighbridge-")))
        running, addresses = [], []
        for name in chips:
            home = directory / "chips" / name
            ueid = provision(home, manufacturer, image=image)
            with RoleAuthority.opened(directory / "authority") as authority:
                authority.issue("chip", name, ueids=[ueid]).save(home / "credentials")
            arguments = [
                *("--dir", str(home), "--credentials", str(home / "credentials"), "--socket", str(sockets / name)),
                *("--rate", str(rate_per_day), "--clock-speed", str(clock_speed), "--allow-forced"),
                *("--hold", str(_HOLD)),
            ]
            chip = service("chip boot", arguments, address_file=home / "address", log=logs / f"{name}.log")
            addresses.append(stack.enter_context(chip))
            running.append(RunningChip(name, ueid, sockets / name))
        prover = stack.enter_context(
            service(
                "serve prover",
                ["--runs", str(runs), "--credentials", str(directory / "prover" / "credentials")],
                address_file=directory / "prover" / "address",
                log=logs / "prover.log",
            )
        )
        home = directory / "verifier"
        verifier = stack.enter_context(
            service(
                "serve verifier",
                [
                    *("--db", str(home / "registry.sqlite"), "--credentials", str(home / "credentials")),
                    *("--manufacturer", str(directory / "manufacturer" / "authority.pem")),
                    *("--firmware", str(directory / "manufacturer" / "firmware.img")),
                    *("--cache", str(home / "cache"), "--allow-forced"),
                    *("--max-clock-speed", str(max(1.0, clock_speed))),
                ],
                address_file=home / "address",
                log=logs / "verifier.log",
            )
        )
        operator = stack.enter_context(connect(verifier, directory / "operator" / "credentials"))
        for chip_, address in zip(running, addresses, strict=True):
            operator.register(
                ueid=chip_.ueid, chip=address, prover=prover, owner="demo", site=chip_.name, chip_type="simulated"
            )
        yield Station(running, operator)
