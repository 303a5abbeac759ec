"""The Verifier's gRPC service: keeps the registry, runs inspections in the background, hands out reports.

Run as a process: `python -m verifier.service --db F --credentials DIR --manufacturer F --firmware F --cache DIR
--address-file F`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from cryptography.x509 import Certificate

from protos.weighbridge.v1 import verifier_pb2, verifier_pb2_grpc, witness_pb2_grpc
from verifier import witness_service
from verifier.cache import Cache
from verifier.facts import Plan
from verifier.firmware import FirmwarePolicy
from verifier.inspection import Inspection, InspectionStoppedError
from verifier.registry import FINISHED, Chip, Registry
from verifier.sampling import draw, fresh_seed
from verifier.witness import Witness, load_signer
from weighbridge import rpc
from weighbridge.errors import UsageError, WeighbridgeError
from weighbridge.identity import Credentials, load_certificate

_SERVICE = "/weighbridge.v1.VerifierService/"
_METHODS = ("RegisterChip", "ListChips", "StartInspection", "WatchInspection", "GetReport")
ALLOW = {_SERVICE + method: {"operator"} for method in _METHODS}
"""Only operators may use a Verifier."""

WITNESS_KEY = ".witness-key"
"""What the file with the witness's key is called behind the registry's name; `.pub` beside it is what chips need."""

CHUNK = 1 << 20
GRACE_SECONDS = 5.0
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Progress:
    """What an inspection in progress has said so far; watchers wait for more."""

    lines: list[verifier_pb2.WatchInspectionResponse] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def say(self, stage: str, done: int, total: int, message: str) -> None:
        with self.changed:
            self.lines.append(
                verifier_pb2.WatchInspectionResponse(stage=stage, done=done, total=total, message=message)
            )
            self.changed.notify_all()


class VerifierService(verifier_pb2_grpc.VerifierServiceServicer):
    """One Verifier; see `protos/weighbridge/v1/verifier.proto`. Inspections run one after another."""

    def __init__(
        self,
        *,
        registry: Registry,
        cache: Cache,
        credentials: Credentials,
        manufacturer: Certificate,
        firmware: FirmwarePolicy,
        witness: Witness,
    ) -> None:
        """Takes over a registry; what a former process left unfinished in it has failed.

        Args:
            registry: Chips and inspections.
            cache: Fetched transcripts.
            credentials: The Verifier's own.
            manufacturer: Root certificate of device identities.
            firmware: Which firmware chips may run.
            witness: Who holds chips' logs.
        """
        self._witness = witness
        self._registry, self._cache = registry, cache
        self._credentials, self._manufacturer, self._firmware = credentials, manufacturer, firmware
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inspection")
        self._progress: dict[str, _Progress] = {}
        self._stopping = threading.Event()
        if left := registry.fail_unfinished():
            _log.warning("%d inspections of a former process did not finish; start them again", left)

    def stop(self) -> None:
        """Ends the inspection in progress at its next unit of work, drops waiting ones, and lets watchers go."""
        self._stopping.set()
        for progress in list(self._progress.values()):
            with progress.changed:
                progress.changed.notify_all()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._registry.fail_unfinished()

    def RegisterChip(  # noqa: N802 (gRPC names the methods)
        self, request: verifier_pb2.RegisterChipRequest, context: grpc.ServicerContext
    ) -> verifier_pb2.RegisterChipResponse:
        """Adds or changes a chip."""
        self._registry.register(
            Chip(
                ueid=request.ueid,
                address=request.chip_address,
                prover_address=request.prover_address,
                owner=request.owner,
                site=request.site,
                chip_type=request.chip_type,
            )
        )
        return verifier_pb2.RegisterChipResponse()

    def ListChips(  # noqa: N802
        self, request: verifier_pb2.ListChipsRequest, context: grpc.ServicerContext
    ) -> verifier_pb2.ListChipsResponse:
        """Returns the registry."""
        return verifier_pb2.ListChipsResponse(
            chips=[
                verifier_pb2.RegisteredChip(
                    ueid=chip.ueid,
                    chip_address=chip.address,
                    prover_address=chip.prover_address,
                    owner=chip.owner,
                    site=chip.site,
                    chip_type=chip.chip_type,
                )
                for chip in self._registry.chips()
            ]
        )

    def StartInspection(  # noqa: N802
        self, request: verifier_pb2.StartInspectionRequest, context: grpc.ServicerContext
    ) -> verifier_pb2.StartInspectionResponse:
        """Draws the chips, records plan and draw, and queues the inspection."""
        plan = Plan(
            samples=request.samples,
            seed=request.seed or fresh_seed(),
            flops_threshold=request.flops_threshold,
            chip_flops_per_day=request.chip_flops_per_day,
            period_days=request.period_days,
            snapshot_rate_per_day=request.snapshot_rate_per_day,
            replay_device=request.replay_device or "cpu",
            replay_env=dict(request.replay_env),
        )
        chips = draw([chip.ueid for chip in self._registry.chips()], plan.samples, plan.seed)
        identifier = secrets.token_hex(8)
        self._registry.start_inspection(identifier, seed=plan.seed, plan=plan.to_json(), chips=chips)
        progress = self._progress[identifier] = _Progress()
        progress.say("draw", len(chips), len(chips), f"drew {len(chips)} chips with seed {plan.seed.hex()}")
        self._pool.submit(self._run, identifier, plan, progress)
        return verifier_pb2.StartInspectionResponse(inspection_id=identifier)

    def _run(self, identifier: str, plan: Plan, progress: _Progress) -> None:
        """Runs one inspection to its end; whatever happens, its stage says so."""
        stages: list[str] = []

        def say(stage: str, done: int, total: int, message: str) -> None:
            if self._stopping.is_set():
                raise InspectionStoppedError("the Verifier is shutting down; start the inspection again")
            if stages[-1:] != [stage]:
                stages.append(stage)
                self._registry.set_stage(identifier, stage)
            progress.say(stage, done, total, message)

        try:
            inspection = Inspection(
                identifier=identifier,
                plan=plan,
                registry=self._registry,
                cache=self._cache,
                credentials=self._credentials,
                manufacturer=self._manufacturer,
                firmware=self._firmware,
                progress=say,
                witness=self._witness,
            )
            report = inspection.run()
            self._registry.set_stage(identifier, "done", report)
            progress.say("done", 1, 1, f"{len(report['findings'])} findings; the report is ready")
        except Exception as error:
            # An inspection must never vanish silently, and what it raised may not take the service down.
            message = str(error)
            if not isinstance(error, WeighbridgeError | InspectionStoppedError):
                _log.exception("inspection %s failed", identifier)
                message = "internal fault; see the Verifier's log"
            self._registry.set_stage(identifier, "failed")
            progress.say("failed", 0, 0, message)

    def WatchInspection(  # noqa: N802
        self, request: verifier_pb2.WatchInspectionRequest, context: grpc.ServicerContext
    ) -> Iterator[verifier_pb2.WatchInspectionResponse]:
        """Streams what the inspection said from its beginning, until it ends or the watcher goes."""
        record = self._registry.inspection(request.inspection_id)
        progress = self._progress.get(record.id)
        if progress is None:  # it ran in a former process
            yield verifier_pb2.WatchInspectionResponse(stage=record.stage, message="it ended before this process began")
            return
        place = 0
        while context.is_active() and not self._stopping.is_set():
            with progress.changed:
                if place == len(progress.lines):
                    progress.changed.wait(timeout=1.0)
                fresh = progress.lines[place:]
            yield from fresh
            place += len(fresh)
            if fresh and fresh[-1].stage in FINISHED:
                return

    def GetReport(  # noqa: N802
        self, request: verifier_pb2.GetReportRequest, context: grpc.ServicerContext
    ) -> Iterator[verifier_pb2.GetReportResponse]:
        """Streams the report as JSON."""
        record = self._registry.inspection(request.inspection_id)
        if record.report is None:
            raise UsageError(f"the inspection is {record.stage} and has no report; watch it until it is done")
        data = json.dumps(record.report, sort_keys=True, indent=1).encode()
        for start in range(0, len(data), CHUNK):
            yield verifier_pb2.GetReportResponse(data=data[start : start + CHUNK])


@contextmanager
def serve(
    *,
    db: Path,
    cache: Path,
    credentials: Credentials,
    manufacturer: Certificate,
    firmware: FirmwarePolicy,
    address: str = "127.0.0.1:0",
) -> Iterator[str]:
    """Serves one Verifier until the block ends; yields the address as host:port.

    Args:
        db: The registry's SQLite file; the witness's key lies beside it, and is made if there is none.
        cache: Directory for fetched transcripts.
        credentials: The Verifier's own.
        manufacturer: Root certificate of device identities.
        firmware: Which firmware chips may run.
        address: Where to listen.

    Raises:
        UsageError: The registry cannot be opened, or the address cannot be bound.
    """
    server, bound = rpc.server(credentials, allow={**ALLOW, **witness_service.ALLOW}, address=address)
    registry = Registry(db)
    witness = Witness(registry, manufacturer, load_signer(db.with_name(db.name + WITNESS_KEY)))
    service = VerifierService(
        registry=registry, cache=Cache(cache), credentials=credentials, manufacturer=manufacturer, firmware=firmware,
        witness=witness,
    )  # fmt: skip
    witness_pb2_grpc.add_WitnessServiceServicer_to_server(  # type: ignore[no-untyped-call]
        witness_service.WitnessServicer(witness), server
    )
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    server.start()
    try:
        yield bound
    finally:
        stopped = server.stop(GRACE_SECONDS)
        service.stop()
        stopped.wait()
        registry.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the service until SIGTERM or SIGINT; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m verifier.service", description="Run a Verifier.")
    parser.add_argument("--db", required=True, type=Path, help="the registry's SQLite file; created if missing")
    parser.add_argument("--credentials", required=True, type=Path, help="directory of the Verifier's role certificate")
    parser.add_argument("--manufacturer", required=True, type=Path, help="PEM file of the chip manufacturer's root")
    parser.add_argument(
        "--firmware", required=True, type=Path, action="append", help="firmware image that chips may run; repeatable"
    )
    parser.add_argument(
        "--minimal-svn", type=int, default=0, help="lowest security version number that is still trusted"
    )
    parser.add_argument("--cache", required=True, type=Path, help="directory for fetched transcripts")
    parser.add_argument("--address", default="127.0.0.1:0", help="host:port to listen at; port 0 picks a free one")
    parser.add_argument("--address-file", type=Path, help="write the address here once the service answers")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        credentials = Credentials.load(options.credentials)
        manufacturer = load_certificate(_read(options.manufacturer))
        with serve(
            db=options.db,
            cache=options.cache,
            credentials=credentials,
            manufacturer=manufacturer,
            firmware=FirmwarePolicy.of(options.firmware, manufacturer, minimal_svn=options.minimal_svn),
            address=options.address,
        ) as bound:
            if options.address_file is not None:
                _write_address(options.address_file, bound)
            stop.wait()
    except WeighbridgeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror}); name the right file") from None


def _write_address(path: Path, address: str) -> None:
    """Writes the address so that a reader sees all of it or nothing."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(address)
    os.replace(partial, path)


if __name__ == "__main__":
    sys.exit(main())
