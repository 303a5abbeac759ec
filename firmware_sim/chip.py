"""The chip as a process: `weighbridge chip boot --dir DIR ...`.

It boots the device in DIR, serves the shim on a Unix socket and Verifiers over mutual TLS, and interrupts at random
moments until it gets SIGTERM or SIGINT. Exit codes: 0 asked to stop, 2 it could not start (one line says why).
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from firmware_sim import device
from firmware_sim.firmware import DEFAULT_HOLD, Firmware
from firmware_sim.link import Interrupts, Link
from firmware_sim.nvlog import DEFAULT_CAPACITY, NonVolatileLog, write_durably
from firmware_sim.reporting_policy import DEFAULT_PATIENCE_S, Reporting, witness_key
from firmware_sim.service import ALLOW, ChipServicer
from firmware_sim.witness_client import Reporter
from protos.weighbridge.v1 import chip_pb2_grpc
from weighbridge.attest.certificates import load_certificate
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.attest.sealed_attestation import LauncherVerifier
from weighbridge.attest.sealed_channel import KEY_SIZE
from weighbridge.attest.tcb import MEASUREMENT_SIZE
from weighbridge.attest.worker_openings import Trusted
from weighbridge.core import secret_files
from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.rpc import endpoints
from weighbridge.rpc.serving import AskedToStop

GRACE_SECONDS = 1.0


def parser() -> argparse.ArgumentParser:
    """Returns the command line of the chip process."""
    result = argparse.ArgumentParser(prog="weighbridge chip boot", description="Run one simulated chip.")
    result.add_argument("--dir", type=Path, required=True, help="the chip's own directory")
    result.add_argument("--manufacturer", type=Path, help="authority that provisions the device if DIR holds none yet")
    result.add_argument("--image", type=Path, help="firmware image to start, and to keep if it starts")
    result.add_argument("--rate", type=float, required=True, help="mean interrupts per day of the chip's clock")
    result.add_argument("--clock-speed", type=float, default=1.0, help="seconds of the chip per second of the host")
    result.add_argument(
        "--oscillator", type=float, default=1.0, help="share of its speed at which the board drives the chip's clock"
    )
    result.add_argument(
        "--hold", type=int, default=DEFAULT_HOLD, help="kernels that an interrupt waits for a safepoint"
    )
    result.add_argument("--credentials", type=Path, required=True, help="directory with the role certificate")
    result.add_argument("--address", default="127.0.0.1:0", help="where to serve Verifiers")
    result.add_argument("--address-file", type=Path, required=True, help="where to write the address once it serves")
    result.add_argument("--socket", type=Path, required=True, help="Unix socket for the shim")
    result.add_argument("--allow-forced", action="store_true", help="let the workload ask for an interrupt")
    result.add_argument(
        "--confidential",
        action="store_true",
        help="open the snapshots of this boot on this machine alone, for sealed workers, and to no Verifier",
    )
    result.add_argument(
        "--worker-authority", type=Path, help="with --confidential: PEM of the authority that vouches for workers"
    )
    result.add_argument("--worker-prover", default="", help="public key of sealed jobs of the Prover, in hex")
    result.add_argument(
        "--worker-image", action="append", default=[], help="measurement of an image that may run, in hex; repeatable"
    )
    result.add_argument("--nvram", type=int, default=DEFAULT_CAPACITY, help="bytes of memory for the log")
    result.add_argument(
        "--report", choices=("log", "wait"), default="log", help="keep the log, or wait for the witness"
    )
    result.add_argument("--witness", help="host:port of the Verifier to report to; without it, Verifiers come and read")
    result.add_argument("--witness-key", type=Path, help="file with the verifier key of the witness that is trusted")
    result.add_argument(
        "--patience", type=float, default=DEFAULT_PATIENCE_S, help="seconds after which a waiting workload is told so"
    )
    return result


Ready = Callable[[Firmware, str], None]
"""Called once the chip serves, with its firmware and its address."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the chip and returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        until_stopped(options)
    except WeighbridgeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def until_stopped(options: argparse.Namespace, ready: Ready = lambda *_: None) -> None:
    """Runs the chip as this process until SIGTERM or SIGINT.

    Raises:
        WeighbridgeError: It cannot start.
    """
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    secret_files.keep_to_owner()
    stop = AskedToStop()
    run(options, stop, ready)


def run(options: argparse.Namespace, stop: AskedToStop, ready: Ready) -> None:
    """Boots, serves until it is asked to stop, and shuts down."""
    if not (options.rate >= 0 and options.clock_speed > 0 and options.oscillator > 0 and options.hold >= 0):
        raise UsageError("The rate and the hold must not be negative, and the clock must run forwards.")
    if options.manufacturer is not None and not (options.dir / "secret.bin").exists():
        device.provision(options.dir, CertificateAuthority.load(options.manufacturer))
    booted = device.boot(options.dir, options.image)
    credentials = Credentials.load(options.credentials)
    reporting = Reporting(mode=options.report, witness=witness_key(options.witness_key), patience_s=options.patience)
    with NonVolatileLog(options.dir, capacity=options.nvram) as log:
        firmware = Firmware(
            options.dir,
            booted,
            log,
            rate_per_day=options.rate,
            clock_speed=options.clock_speed,
            hold=options.hold,
            forced=options.allow_forced,
            oscillator=options.oscillator,
            reporting=reporting,
            confidential=options.confidential,
            workers=_workers(options),
        )
        reporter = Reporter(firmware, options.witness, credentials) if options.witness else None
        link = Link(options.socket, firmware)
        interrupts = Interrupts(options.rate, options.clock_speed * options.oscillator, link.interrupt)
        server, address = endpoints.server(credentials, allow=ALLOW, address=options.address)
        chip_pb2_grpc.add_ChipServiceServicer_to_server(ChipServicer(firmware), server)  # type: ignore[no-untyped-call]
        server.start()
        threading.Thread(target=link.serve, name="link", daemon=True).start()
        interrupts.start()
        if reporter is not None:
            reporter.start()
        write_durably(options.address_file, address.encode())
        ready(firmware, address)
        stop.wait()
        interrupts.stop()
        if reporter is not None:
            reporter.stop()
        endpoints.shut_down(server, GRACE_SECONDS).wait()


def _workers(options: argparse.Namespace) -> Trusted | None:
    """Returns which workers the chip opens to; None if it is told of none.

    Raises:
        UsageError: Something about them is missing or none.
    """
    given = (options.worker_authority, options.worker_prover, options.worker_image)
    if not any(given):
        return None
    if not all(given):
        raise UsageError("Workers are named by --worker-authority, --worker-prover and --worker-image; give all three.")
    try:
        prover, images = bytes.fromhex(options.worker_prover), frozenset(map(bytes.fromhex, options.worker_image))
        root = load_certificate(options.worker_authority.read_bytes())
    except ValueError:
        raise UsageError("--worker-prover and --worker-image are given in hex.") from None
    except OSError as error:
        raise UsageError(f"Cannot read {options.worker_authority}: {error.strerror}; name a PEM file.") from None
    if len(prover) != KEY_SIZE or any(len(each) != MEASUREMENT_SIZE for each in images):
        raise UsageError(f"A key has {KEY_SIZE} bytes and a measurement {MEASUREMENT_SIZE}; correct what is given.")
    named = bytes_digest(root.public_bytes(Encoding.DER))
    return Trusted(workers=LauncherVerifier(root), authority=named, prover=prover, images=images)


if __name__ == "__main__":
    sys.exit(main())
