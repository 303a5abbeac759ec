"""Thousands of simulated chips in one process, on one address: `weighbridge chip fleet --dir DIR --count N ...`.

Each chip has its own secret, key, log, counter and clock, in `DIR/<UEID in hex>`; what they share is the process and
the port. A caller names the chip that it wants in the call's metadata (`weighbridge.rpc.endpoints.CHIP`). A chip
boots at
the first call for it, and then takes interrupts; no workload runs on any of them. For tests of registries, sampling
and Verifiers at the size of a data centre.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from secrets import SystemRandom
from types import TracebackType
from typing import Self

import grpc

from firmware_sim.boot import FLASH, IDEVID
from firmware_sim.device import boot, builtin_image, provision
from firmware_sim.firmware import DEFAULT_HOLD, Firmware
from firmware_sim.link import Interrupts
from firmware_sim.nvlog import NonVolatileLog, write_durably
from firmware_sim.reporting_policy import Reporting, witness_key
from firmware_sim.service import ALLOW, ChipServicer
from protos.weighbridge.v1 import chip_pb2_grpc
from weighbridge.attest.firmware_image import FirmwareSigner
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.attest.tlog import NoteKey
from weighbridge.core import secret_files
from weighbridge.core.errors import NotFoundError, UsageError, WeighbridgeError
from weighbridge.rpc import endpoints
from weighbridge.rpc.guards import CallLimits
from weighbridge.rpc.serving import AskedToStop

SPARE_FILES = 256
"""Open files of a process that has no chip: sockets, libraries, standard streams."""

FILES_PER_CHIP = 2
GRACE_SECONDS = 1.0
_UNFINISHED = "new-"
"""How the directory of a chip is called while it is made."""

_log = logging.getLogger(__name__)


class Fleet:
    """The chips of one directory.

    Attributes:
        ueids: Their identities, sorted.
    """

    def __init__(
        self,
        directory: Path,
        *,
        rate_per_day: float = 0.0,
        clock_speed: float = 1.0,
        witness: NoteKey | None = None,
        confidential: bool = False,
    ) -> None:
        """Finds the chips; none is booted yet.

        Args:
            directory: As `provision_fleet` made it.
            rate_per_day: Mean interrupts per day of each chip's clock; 0 for none.
            clock_speed: Seconds of the chips per second of the host.
            witness: The witness that the chips trust, if any; they keep their logs until it reads them.
            confidential: Whether they boot confidentially: their tokens hide fields, and no Verifier gets a snapshot.

        Raises:
            UsageError: There is no chip, or more than this process may have files open for.
        """
        if not (rate_per_day >= 0 and clock_speed > 0):
            raise UsageError("The rate must not be negative, and the clock must run forwards.")
        self._start = partial(
            Firmware,
            rate_per_day=rate_per_day,
            clock_speed=clock_speed,
            hold=DEFAULT_HOLD,
            reporting=Reporting(witness=witness),
            confidential=confidential,
        )
        self._slots = {ueid: _Slot(directory / ueid.hex()) for ueid in chips_in(directory)}
        if not self._slots:
            raise UsageError(f"{directory} holds no chips; provision some with --count.")
        self.ueids = sorted(self._slots)
        _allow_open_files(SPARE_FILES + FILES_PER_CHIP * len(self.ueids))
        self._random = SystemRandom()
        # Interrupts of all chips together are a Poisson process, too, with each of them as likely as any other.
        self._interrupts = Interrupts(rate_per_day * len(self.ueids), clock_speed, self._interrupt)

    def __enter__(self) -> Self:
        self._interrupts.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._interrupts.stop()
        for slot in self._slots.values():
            with slot.lock:
                if slot.log is not None:
                    slot.log.close()

    @property
    def booted(self) -> int:
        """How many chips are on."""
        return sum(slot.firmware is not None for slot in self._slots.values())

    def firmware(self, ueid: bytes) -> Firmware:
        """Returns a chip's firmware; boots the chip if it is off.

        Raises:
            NotFoundError: No such chip is in this fleet.
            ChipError: It does not boot.
        """
        slot = self._slots.get(ueid)
        if slot is None:
            name = ueid.hex()[:80]
            raise NotFoundError(f"Chip {name} is not in this fleet; correct its address.", resource="chip", name=name)
        with slot.lock:
            if slot.firmware is None:
                device = boot(slot.directory)
                log = NonVolatileLog(slot.directory)
                try:
                    slot.firmware = self._start(slot.directory, device, log)
                except BaseException:
                    log.close()
                    raise
                slot.log = log
            return slot.firmware

    def _interrupt(self) -> None:
        """Interrupts one of the chips: if it is on, it logs that there was no workload to look at."""
        firmware = self._slots[self._random.choice(self.ueids)].firmware
        if firmware is None:
            return
        try:
            firmware.interrupt_idle()
        except WeighbridgeError as error:
            _log.warning("an interrupt could not be logged: %s", error)


class _Slot:
    """One chip, on or off."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lock = threading.Lock()
        self.firmware: Firmware | None = None
        self.log: NonVolatileLog | None = None


def chips_in(directory: Path) -> Iterator[bytes]:
    """Yields the UEIDs of the chips in a fleet's directory."""
    for path in directory.iterdir() if directory.is_dir() else ():
        if not path.name.startswith(_UNFINISHED) and (path / IDEVID).exists():
            yield bytes.fromhex(path.name)


def provision_fleet(
    directory: Path, count: int, manufacturer: CertificateAuthority, image: bytes | None = None
) -> None:
    """Makes as many chips as are missing to `count`.

    Args:
        directory: Of the fleet; created if it does not exist.
        count: How many chips there shall be.
        manufacturer: Who makes them.
        image: Signed firmware image that they are delivered with; the built-in firmware by default.

    Raises:
        WeighbridgeError: They cannot be made.
    """
    directory.mkdir(parents=True, exist_ok=True)
    delivered = directory / FLASH
    if image is not None or not delivered.exists():
        write_durably(delivered, image or FirmwareSigner.issue(manufacturer).sign(builtin_image()))
    data = delivered.read_bytes()

    def make(number: int) -> None:
        work = directory / f"{_UNFINISHED}{number}"
        shutil.rmtree(work, ignore_errors=True)
        ueid = provision(work, manufacturer, image=data)
        # One file for all: a chip that takes another image replaces its own name, and no other's.
        (work / FLASH).unlink()
        os.link(delivered, work / FLASH)
        work.rename(directory / ueid.hex())

    missing = count - sum(1 for _ in chips_in(directory))
    with ThreadPoolExecutor(max_workers=16) as pool:  # They wait for the disk most of the time.
        for _ in pool.map(make, range(missing)):
            pass


def _allow_open_files(number: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if number <= soft or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and number > hard:
        raise UsageError(
            f"These chips need {number} open files and this process may have {hard}; raise `ulimit -Hn` or serve fewer."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))


class FleetServicer(ChipServicer):
    """ChipService of the chip that the caller names."""

    def __init__(self, fleet: Fleet) -> None:
        """Serves `fleet`."""
        self._fleet = fleet

    def _chosen(self, context: grpc.ServicerContext) -> Firmware:
        named = [value for key, value in context.invocation_metadata() if key == endpoints.CHIP]
        if len(named) != 1 or not isinstance(named[0], bytes):
            raise UsageError(f"A fleet answers here; name one chip by its UEID in the metadata `{endpoints.CHIP}`.")
        return self._fleet.firmware(named[0])


def parser() -> argparse.ArgumentParser:
    """Returns the command line of a fleet's process."""
    result = argparse.ArgumentParser(
        prog="weighbridge chip fleet", description="Serve many simulated chips on one address."
    )
    result.add_argument("--dir", type=Path, required=True, help="the fleet's own directory, one subdirectory a chip")
    result.add_argument("--count", type=int, default=0, help="provision chips until there are so many")
    result.add_argument("--manufacturer", type=Path, help="authority that provisions missing chips")
    result.add_argument("--image", type=Path, help="signed firmware image that missing chips are delivered with")
    result.add_argument("--rate", type=float, default=0.0, help="mean interrupts per day of each chip's clock")
    result.add_argument("--clock-speed", type=float, default=1.0, help="seconds of the chips per second of the host")
    result.add_argument(
        "--confidential", action="store_true", help="boot chips confidentially: for sealed inspections alone"
    )
    result.add_argument("--witness-key", type=Path, help="file with the verifier key of the witness that is trusted")
    result.add_argument("--credentials", type=Path, required=True, help="directory with the role certificate")
    result.add_argument("--address", default="127.0.0.1:0", help="where to serve Verifiers")
    result.add_argument("--address-file", type=Path, required=True, help="where to write the address once it serves")
    return result


Ready = Callable[[Fleet, str], None]
"""Called once the fleet serves, with it and its address."""


def until_stopped(options: argparse.Namespace, ready: Ready = lambda *_: None) -> None:
    """Serves a fleet as this process until SIGTERM or SIGINT.

    Raises:
        WeighbridgeError: It cannot start.
    """
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    secret_files.keep_to_owner()
    stop = AskedToStop()
    if options.count:
        if options.manufacturer is None:
            raise UsageError("Chips are made by a manufacturer; pass --manufacturer.")
        image = None if options.image is None else _read(options.image)
        provision_fleet(options.dir, options.count, CertificateAuthority.load(options.manufacturer), image)
    with Fleet(
        options.dir,
        rate_per_day=options.rate,
        clock_speed=options.clock_speed,
        witness=witness_key(options.witness_key),
        confidential=options.confidential,
    ) as fleet:
        limits = CallLimits(rate_per_s=100_000, burst=100_000)  # One caller may ask all of them.
        server, address = endpoints.server(
            Credentials.load(options.credentials), allow=ALLOW, address=options.address, limits=limits
        )
        chip_pb2_grpc.add_ChipServiceServicer_to_server(FleetServicer(fleet), server)  # type: ignore[no-untyped-call]
        server.start()
        write_durably(options.address_file, address.encode())
        ready(fleet, address)
        stop.wait()
        endpoints.shut_down(server, GRACE_SECONDS).wait()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}; name a signed firmware image.") from error
