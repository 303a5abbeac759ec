"""The Verifier's gRPC service: keeps the registry, runs inspections in the background, hands out reports.

`weighbridge serve verifier` runs it as a process.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from cryptography.x509 import Certificate

from protos.weighbridge.v1 import verifier_pb2, verifier_pb2_grpc, witness_pb2_grpc
from verifier import units
from verifier.contact import upload_service, witness_service
from verifier.contact.uploaded_explanations import Uploaded
from verifier.contact.uploads import Quota, Uploads
from verifier.contact.witness import Witness, load_signer
from verifier.draw import own_log
from verifier.draw.chip_selection import Sampler
from verifier.draw.own_log import OwnLog
from verifier.draw.procedure import Drawing
from verifier.draw.rolling_periods import Draws
from verifier.farm.local_farm import Farm, LocalFarm
from verifier.inspection import Inspection, InspectionStoppedError
from verifier.model.facts import Plan
from verifier.model.reference_values import FirmwarePolicy
from verifier.model.seeded_draw import draw
from verifier.model.segments import Secret
from verifier.plan_requests import plan_of
from verifier.registry import FINISHED, Chip, InspectionLine, Registry
from verifier.report import signing, summary
from verifier.report.regime import Regime
from verifier.store.cache import Cache, FetchLimits
from verifier.store.cache_room import Budget, StorageError
from verifier.store.database import database_files
from verifier.store.exclusive_lock import claim
from verifier.store.sealing import DRAW_KEY, WITNESS_KEY, Sealing
from verifier.units import Journal
from weighbridge.attest import tlog
from weighbridge.attest.beacon import FileBeacon, LocalBeacon
from weighbridge.attest.identity import Credentials
from weighbridge.attest.manifest import SigningKey
from weighbridge.core import secret_files
from weighbridge.core.errors import OwnCredentialsError, UsageError, WeighbridgeError
from weighbridge.execution.transcript_facts import QUESTIONS
from weighbridge.execution.worker_process import Limits
from weighbridge.rpc import endpoints
from weighbridge.rpc.guards import CallLimits
from weighbridge.rpc.metrics import Metrics

_SERVICE = "/weighbridge.v1.VerifierService/"
_METHODS = (
    "RegisterChip",
    "ListChips",
    "ListInspections",
    "StartInspection",
    "WatchInspection",
    "GetReport",
    "GetDraw",
)
ALLOW = {**{_SERVICE + method: {"operator"} for method in _METHODS}, **upload_service.ALLOW}
"""Only operators may use a Verifier; Provers may hand in transcripts."""

LOG_KEY, BEACON_KEY = ".log-key", ".beacon-key"
"""What the files with the keys of the Verifier's own log and beacon are called; they lie beside the witness's."""

MAX_ATTEMPTS = 10
"""How often an inspection is taken up again without having got any further: it may be what kills the Verifier."""

LISTED = 100
"""How many inspections a list has if its reader does not say."""

CHUNK = 1 << 20
GRACE_SECONDS = 5.0
_log = logging.getLogger(__name__)


class VerifierService(upload_service.UploadServicer, verifier_pb2_grpc.VerifierServiceServicer):
    """One Verifier; see `protos/weighbridge/v1/verifier.proto`.

    Inspections run one after another. What they have done is durable, so what a former process left unfinished goes on
    where it was. An inspection whose Verifier ended again and again without getting any further is given up.
    """

    def __init__(
        self,
        *,
        registry: Registry,
        cache: Cache,
        credentials: Credentials,
        manufacturer: Certificate,
        firmware: FirmwarePolicy,
        witness: Witness,
        sampler: Sampler,
        report_key: SigningKey,
        regime: Regime | None = None,
        farm: Farm | None = None,
        limits: Limits | None = None,
        secret: Secret | None = None,
        metrics: Metrics | None = None,
        uploads: Uploads | None = None,
    ) -> None:
        """Takes over a registry, and goes on with what a former process left unfinished in it.

        Args:
            registry: Chips and inspections.
            cache: Fetched transcripts.
            credentials: The Verifier's own.
            manufacturer: Root certificate of device identities.
            firmware: Which firmware chips may run.
            witness: Who holds chips' logs.
            sampler: Draws chips where no seed is given.
            report_key: Signs reports.
            regime: Rules, policy and benchmarks; by default no rules.
            farm: Where replays run; by default one after the other on this machine.
            limits: Of each replay.
            secret: Criteria that choose segments; every plan commits to them, and every report opens them.
            metrics: Where inspections and findings are counted.
            uploads: Transcripts that Provers hand in; by default with the default quota.
        """
        self._uploads = uploads or Uploads(cache)
        self._metrics = metrics or Metrics()
        self._secret = secret
        self._report_key, self._regime = report_key, regime
        self._farm, self._limits = farm or LocalFarm(), limits or Limits()
        self._witness, self._sampler = witness, sampler
        self._registry, self._cache = registry, cache
        self._credentials, self._manufacturer, self._firmware = credentials, manufacturer, firmware
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inspection")
        self._journals: dict[str, Journal] = {}
        self._stopping = threading.Event()
        unfinished = units.unfinished(registry.session)
        cache.room.release(*(each for each in cache.room.held() if each not in unfinished))
        for identifier in unfinished:
            self._resume(identifier)

    def stop(self) -> None:
        """Ends the inspection in progress, lets watchers go; what is unfinished goes on in the next process."""
        self._stopping.set()
        for journal in list(self._journals.values()):
            journal.wake()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _resume(self, identifier: str) -> None:
        """Queues an inspection of a former process."""
        journal = self._journal(identifier)
        attempts = units.begin_attempt(self._registry.session, identifier)
        if attempts > MAX_ATTEMPTS:
            message = f"the Verifier ended {attempts - 1} times without getting any further; see its log"
            _log.error("inspection %s is given up: %s", identifier, message)
            self._end(identifier, journal, "failed", message)
            return
        done = units.count(self._registry.session, identifier)
        journal.say("resume", done, 0, f"a new process goes on with the inspection; {done} units of work are done")
        self._pool.submit(self._run, identifier, journal)

    def _journal(self, identifier: str) -> Journal:
        if identifier not in self._journals:
            self._journals[identifier] = Journal(self._registry.session, identifier)
        return self._journals[identifier]

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
                name=request.name,
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
                    name=chip.name,
                )
                for chip in self._registry.chips()
            ]
        )

    def ListInspections(  # noqa: N802
        self, request: verifier_pb2.ListInspectionsRequest, context: grpc.ServicerContext
    ) -> verifier_pb2.ListInspectionsResponse:
        """Returns the inspections, the newest first."""
        found = self._registry.inspections(prefix=request.prefix, limit=request.limit or LISTED)
        return verifier_pb2.ListInspectionsResponse(inspections=[self._listed(each) for each in found])

    def _listed(self, line: InspectionLine) -> verifier_pb2.ListedInspection:
        said = line.summary
        if said is None and line.stage == "done":  # a report from before there were summaries
            report = self._registry.inspection(line.id).report
            with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):  # not of a form that we know
                said = None if report is None else summary.of(report)
        return verifier_pb2.ListedInspection(
            inspection_id=line.id, created_at=line.created_at, stage=line.stage, samples=line.samples, **(said or {})
        )

    def StartInspection(  # noqa: N802
        self, request: verifier_pb2.StartInspectionRequest, context: grpc.ServicerContext
    ) -> verifier_pb2.StartInspectionResponse:
        """Draws the chips, records plan and draw, and queues the inspection."""
        plan = plan_of(request, commitment=self._secret.commitment() if self._secret else "")
        self._farm.check(plan.replay_device)
        chips: list[bytes] = []
        if plan.seed:
            chips = draw([chip.ueid for chip in self._registry.chips()], plan.samples, plan.seed)
        else:
            self._sampler.check(plan)
        identifier = secrets.token_hex(8)
        self._registry.start_inspection(identifier, seed=plan.seed, plan=plan.to_json(), chips=chips)
        journal = self._journal(identifier)
        if plan.seed:
            journal.say("draw", len(chips), len(chips), f"drew {len(chips)} chips with seed {plan.seed.hex()}")
        self._pool.submit(self._run, identifier, journal)
        return verifier_pb2.StartInspectionResponse(inspection_id=identifier)

    def _run(self, identifier: str, journal: Journal) -> None:
        """Runs one inspection to its end; whatever happens, its stage says so."""
        stages: list[str] = []
        begun = time.monotonic()
        self._cache.room.hold(identifier)

        def say(stage: str, done: int, total: int, message: str, *, transient: bool = False) -> None:
            if self._stopping.is_set():
                raise InspectionStoppedError("the Verifier is shutting down; the inspection goes on when it is back")
            nonlocal begun
            if stages[-1:] != [stage]:
                self._metrics.stage(stage, stages[-1] if stages else None, time.monotonic() - begun)
                begun = time.monotonic()
                stages.append(stage)
                self._registry.set_stage(identifier, stage)
            journal.say(stage, done, total, message, transient=transient)

        try:
            plan, sampled = Plan.from_json(self._registry.inspection(identifier).plan), None
            if not plan.seed:
                plan, sampled = self._sampler.draw(identifier, plan, say, partial(say, transient=True))
            inspection = Inspection(
                identifier=identifier,
                plan=plan,
                sampled=sampled,
                registry=self._registry,
                cache=self._cache,
                credentials=self._credentials,
                manufacturer=self._manufacturer,
                firmware=self._firmware,
                progress=say,
                witness=self._witness,
                limits=self._limits,
                farm=self._farm,
                transient=partial(journal.say, transient=True),
                cancelled=self._stopping.is_set,
                regime=self._regime,
                secret=self._secret,
                uploaded=Uploaded(self._uploads, self._cache),
                beacon=self._sampler.beacon,
            )
            report = inspection.run()
            self._end(identifier, journal, "done", f"{len(report['findings'])} findings; the report is ready", report)
        except InspectionStoppedError as stopped:
            journal.flush()
            _log.warning("inspection %s: %s", identifier, stopped)
        except Exception as error:
            # An inspection must never vanish silently, and what it raised may not take the service down.
            message = str(error)
            if not isinstance(error, (WeighbridgeError, StorageError, OwnCredentialsError)):
                _log.exception("inspection %s failed", identifier)
                message = "internal fault; see the Verifier's log"
            self._end(identifier, journal, "failed", message)

    def _end(
        self, identifier: str, journal: Journal, stage: str, message: str, report: Mapping[str, Any] | None = None
    ) -> None:
        """Records how an inspection ended, before operators are told."""
        self._registry.set_stage(identifier, stage, report, None if report is None else summary.of(report))
        self._cache.room.release(identifier)
        self._metrics.stage(stage)
        self._metrics.findings(report["findings"] if report else ())
        journal.say(stage, int(report is not None), int(report is not None), message)
        self._journals.pop(identifier, None)  # who watches has it; for others it is in the database

    def WatchInspection(  # noqa: N802
        self, request: verifier_pb2.WatchInspectionRequest, context: grpc.ServicerContext
    ) -> Iterator[verifier_pb2.WatchInspectionResponse]:
        """Streams what the inspection said from its beginning, until it ends or the watcher goes."""
        record = self._registry.inspection(request.inspection_id)
        ended = record.stage in FINISHED
        journal = self._journals.get(record.id) or Journal(self._registry.session, record.id)
        place, version = request.after, 0
        while context.is_active() and not self._stopping.is_set():
            lines, transient, version = journal.after(place, version, timeout=0 if ended else 1.0)
            place += len(lines)
            for line, brief in [*((line, False) for line in lines), *((line, True) for line in transient)]:
                yield verifier_pb2.WatchInspectionResponse(
                    stage=line.stage, done=line.done, total=line.total, message=line.message, passing=brief
                )
            if lines and lines[-1].stage in FINISHED:
                return
            if ended:  # a kill came between the end and its line
                yield verifier_pb2.WatchInspectionResponse(stage=record.stage, message="the inspection has ended")
                return

    def GetReport(  # noqa: N802
        self, request: verifier_pb2.GetReportRequest, context: grpc.ServicerContext
    ) -> Iterator[verifier_pb2.GetReportResponse]:
        """Streams the signed report."""
        record = self._registry.inspection(request.inspection_id)
        if record.report is None:
            raise UsageError(f"the inspection is {record.stage} and has no report; watch it until it is done")
        data = signing.sign(dict(record.report), self._report_key)
        for start in range(0, len(data), CHUNK):
            yield verifier_pb2.GetReportResponse(data=data[start : start + CHUNK])

    def GetDraw(  # noqa: N802
        self, request: verifier_pb2.GetDrawRequest, context: grpc.ServicerContext
    ) -> Iterator[verifier_pb2.GetDrawResponse]:
        """Streams the record of a draw, and the Verifier's log."""
        record = self._registry.inspection(request.inspection_id)
        for path, data in self._sampler.files(record.id):
            for start in range(0, max(1, len(data)), CHUNK):
                yield verifier_pb2.GetDrawResponse(path=path, data=data[start : start + CHUNK])


@contextmanager
def serve(
    *,
    db: str,
    cache: Path,
    credentials: Credentials,
    manufacturer: Certificate,
    firmware: FirmwarePolicy,
    address: str = "127.0.0.1:0",
    witness_key: Path | None = None,
    beacon: Path | None = None,
    regime: Regime | None = None,
    farm: Farm | None = None,
    limits: Limits | None = None,
    secret: Secret | None = None,
    call_limits: CallLimits | None = None,
    metrics: Metrics | None = None,
    quota: Quota | None = None,
    budget: Budget | None = None,
) -> Iterator[str]:
    """Serves one Verifier until the block ends; yields the address as host:port.

    Args:
        db: The registry's SQLite file, or a database's URL.
        cache: Directory for fetched transcripts.
        credentials: The Verifier's own.
        manufacturer: Root certificate of device identities.
        firmware: Which firmware chips may run.
        address: Where to listen.
        witness_key: File with the witness's key, made if there is none; by default beside the SQLite file. The keys of
            the Verifier's own log, beacon and draws lie beside it.
        beacon: Directory of a beacon whose values are brought by file; by default the Verifier has one of its own.
        regime: Rules, policy and benchmarks.
        farm: Where replays run.
        limits: Of each replay.
        call_limits: Of each caller.
        metrics: Where calls, inspections and findings are counted.
        secret: Criteria that choose segments to replay.
        quota: What each Prover may upload and keep here.
        budget: What the cache may take of the disk; one transcript may take half of it.

    Raises:
        UsageError: The registry cannot be opened, another Verifier uses it, others may read a secret, or the address
            cannot be bound.
    """
    if witness_key is None:
        if "://" in db:
            raise UsageError(
                "a database behind a URL has no file beside which the witness's key lies; name --witness-key"
            )
        witness_key = Path(db + WITNESS_KEY)
    secret_files.require_private(*database_files(db))
    registry = Registry(db)
    try:
        with claim(registry.database):
            allow = {**ALLOW, **witness_service.ALLOW}
            server, bound = endpoints.server(
                credentials, allow=allow, address=address, limits=call_limits, metrics=metrics
            )
            fetched = FetchLimits()
            if budget is not None and budget.total is not None:
                fetched = FetchLimits(total=min(fetched.total, max(1, budget.total // 2)))
            kept = Cache(cache, fetched, questions=limits or QUESTIONS, budget=budget)
            signer = load_signer(witness_key)
            witness = Witness(registry, manufacturer, signer)
            keys = str(witness_key).removesuffix(WITNESS_KEY)
            log = OwnLog(registry.session, load_signer(Path(keys + LOG_KEY), own_log.PREFIX, tlog.LOG), [signer])
            drawing = Drawing(
                registry=registry, witness=witness, log=log, witnesses=(signer.key,),
                beacon=FileBeacon(beacon) if beacon else LocalBeacon.load(Path(keys + BEACON_KEY)),
                credentials=credentials, manufacturer=manufacturer, sealing=Sealing.load(Path(keys + DRAW_KEY)),
            )  # fmt: skip
            sampler = Sampler(drawing=drawing, draws=Draws(registry.session), log=log, registry=registry, cache=kept)
            service = VerifierService(
                registry=registry, cache=kept, credentials=credentials, manufacturer=manufacturer,
                firmware=firmware, witness=witness, sampler=sampler, farm=farm, limits=limits, metrics=metrics,
                report_key=signing.load_key(Path(keys + signing.KEY)), regime=regime,
                secret=secret, uploads=Uploads(kept, quota),
            )  # fmt: skip
            witness_pb2_grpc.add_WitnessServiceServicer_to_server(  # type: ignore[no-untyped-call]
                witness_service.WitnessServicer(witness), server
            )
            verifier_pb2_grpc.add_VerifierServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
            server.start()
            try:
                yield bound
            finally:
                stopped = endpoints.shut_down(server, GRACE_SECONDS)
                service.stop()
                stopped.wait()
    finally:
        registry.close()
