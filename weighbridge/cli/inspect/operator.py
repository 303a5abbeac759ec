"""A client of VerifierService: what an operator can ask of a Verifier, without gRPC in sight."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protos.weighbridge.v1 import verifier_pb2, verifier_pb2_grpc
from verifier.report.signing import open_report
from weighbridge.attest.identity import Credentials
from weighbridge.cli import _shortened as shortened
from weighbridge.core.errors import FormatError, UsageError, WeighbridgeError
from weighbridge.rpc import endpoints

_MAX_REPORT = 256 << 20
_MAX_DRAW = 4 << 30
_MAX_DRAW_FILES = 100_000
_DRAW_PATH = re.compile(
    r"draw\.json|population\.tsv|heads\.tsv|log/checkpoint|log/tile/[0-9a-z]+(/x?[0-9]{3})+(\.p/[0-9]+)?"
)
_HEX = re.compile(r"[0-9a-f]{1,64}")
_CANDIDATES = 20
_WATCH_S = 24 * 3600.0
_RETRY_S = 0.5
_ENDS = ("done", "failed")


class VerifierUnreachableError(WeighbridgeError):
    """No Verifier answers at the address."""

    code = "rpc.verifier.unreachable"


@dataclass(frozen=True, slots=True)
class Update:
    """Progress of an inspection: a stage's word, units done and in all (0: not known), one sentence.

    A transient line says how far a unit is; the Verifier does not keep it.
    """

    stage: str
    done: int
    total: int
    message: str
    transient: bool = False


class Operator:
    """An open connection to a Verifier; get one from `connect`."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    def _call(self, method: Any, request: Any) -> Any:
        return endpoints.call(method, request, unreachable=VerifierUnreachableError)

    def register(
        self, *, ueid: bytes, chip: str, prover: str, owner: str = "", site: str = "", chip_type: str = "",
        name: str = "",
    ) -> None:  # fmt: skip
        """Registers a chip: its identity, the addresses of its service and of its Prover's, its place and name."""
        request = verifier_pb2.RegisterChipRequest(
            ueid=ueid, chip_address=chip, prover_address=prover, owner=owner, site=site, chip_type=chip_type,
            name=name,
        )  # fmt: skip
        self._call(self._stub.RegisterChip, request)

    def chips(self) -> list[dict[str, str]]:
        """Returns the registry, one dictionary of texts a chip."""
        response = self._call(self._stub.ListChips, verifier_pb2.ListChipsRequest())
        return [
            {
                "name": chip.name,
                "ueid": chip.ueid.hex(),
                "chip_address": chip.chip_address,
                "prover_address": chip.prover_address,
                "owner": chip.owner,
                "site": chip.site,
                "chip_type": chip.chip_type,
            }
            for chip in response.chips
        ]

    def inspections(self, prefix: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """Returns inspections, the newest first.

        Args:
            prefix: Only those whose identifiers begin with these hexadecimal digits.
            limit: At most so many, up to 1000.
        """
        request = verifier_pb2.ListInspectionsRequest(prefix=prefix, limit=limit)
        response = self._call(self._stub.ListInspections, request)
        return [
            {
                "inspection": each.inspection_id,
                "created_at": each.created_at,
                "stage": each.stage,
                "verdict": each.verdict or None,
                "p": each.p if each.HasField("p") else None,
                "samples": each.samples,
                "snapshots": each.snapshots,
                "explained": each.explained,
                "violations": each.violations,
                "warnings": each.warnings,
            }
            for each in response.inspections
        ]

    def whole(self, inspection: str) -> str:
        """Returns the whole identifier of an inspection of which the first digits are given; of the newest if none are.

        Raises:
            UsageError: No inspection's begins so, or several do; the message lists them.
        """
        if not inspection:
            newest = self.inspections(limit=1)
            if not newest:
                raise UsageError("there is no inspection yet; start one with `weighbridge inspect start`")
            return str(newest[0]["inspection"])
        if not _HEX.fullmatch(inspection):
            raise UsageError(f"there is no inspection {inspection!r:.100}; `weighbridge inspect list` lists them")
        found = [each["inspection"] for each in self.inspections(inspection, _CANDIDATES)]
        return shortened.resolve(inspection, found, "inspection", "`weighbridge inspect list` lists them")

    def start(
        self,
        *,
        samples: int,
        seed: bytes,
        flops_threshold: float,
        chip_flops_per_day: float,
        period_days: float,
        snapshot_rate_per_day: float,
        replay_device: str = "cpu",
        replay_env: Mapping[str, str] | None = None,
        sharded: str = "",
        chunks: int = 0,
        strata_by: Sequence[str] = (),
        allocation: str = "",
        type_flops_per_day: Mapping[str, float] | None = None,
        cutoff_s: float | None = None,
        **further: Any,
    ) -> str:
        """Starts an inspection and returns its identifier (see the fields of StartInspectionRequest)."""
        request = verifier_pb2.StartInspectionRequest(
            samples=samples,
            seed=seed,
            flops_threshold=flops_threshold,
            chip_flops_per_day=chip_flops_per_day,
            period_days=period_days,
            snapshot_rate_per_day=snapshot_rate_per_day,
            replay_device=replay_device,
            replay_env=dict(replay_env or {}),
            sharded=sharded,
            chunks=chunks,
            strata_by=strata_by,
            allocation=allocation,
            type_flops_per_day=dict(type_flops_per_day or {}),
            cutoff_s=cutoff_s,
            **further,
        )
        return str(self._call(self._stub.StartInspection, request).inspection_id)

    def draw(self, inspection: str) -> list[tuple[str, bytes]]:
        """Returns (path, content) of the files of an inspection's draw.

        Raises:
            FormatError: What arrived is not a record of a draw.
        """
        files: dict[str, bytearray] = {}
        size = 0
        request = verifier_pb2.GetDrawRequest(inspection_id=inspection)
        for piece in endpoints.stream(self._stub.GetDraw, request, unreachable=VerifierUnreachableError):
            if not _DRAW_PATH.fullmatch(piece.path):
                raise FormatError(f"the Verifier sent a file named {piece.path!r:.100}; a draw has none of that name")
            files.setdefault(piece.path, bytearray()).extend(piece.data)
            size += len(piece.data)
            if size > _MAX_DRAW or len(files) > _MAX_DRAW_FILES:
                raise FormatError(f"the draw is larger than {_MAX_DRAW} bytes; copy it from the Verifier's machine")
        return [(path, bytes(data)) for path, data in files.items()]

    def watch(self, inspection: str, *, patience_s: float = 60.0) -> Iterator[Update]:
        """Yields the progress of an inspection from its beginning until its report is ready or it failed.

        A Verifier that is stopped or killed goes on with the inspection when it is back, and so does this.

        Args:
            inspection: Its identifier.
            patience_s: How long to wait for a Verifier that does not answer, once it has answered.

        Raises:
            VerifierUnreachableError: It does not come back.
        """
        seen, answered = 0, -math.inf
        while True:
            request = verifier_pb2.WatchInspectionRequest(inspection_id=inspection, after=seen)
            stream = endpoints.stream(
                self._stub.WatchInspection, request, deadline_s=_WATCH_S, unreachable=VerifierUnreachableError
            )
            try:
                for update in stream:
                    answered = time.monotonic()
                    seen += not update.passing
                    yield Update(update.stage, update.done, update.total, update.message, update.passing)
                    if update.stage in _ENDS:
                        return
                gone: WeighbridgeError = VerifierUnreachableError("the Verifier stopped; start it, then watch again")
            except VerifierUnreachableError as error:
                gone = error
            if time.monotonic() - answered > patience_s:
                raise gone
            time.sleep(_RETRY_S)

    def report(self, inspection: str) -> dict[str, Any]:
        """Returns the content of the report of a finished inspection.

        Raises:
            DocumentError: What arrived is not a signed report.
        """
        return open_report(self.signed_report(inspection)).report

    def signed_report(self, inspection: str) -> bytes:
        """Returns the signed report of a finished inspection as it came.

        Raises:
            FormatError: It is too large.
        """
        request = verifier_pb2.GetReportRequest(inspection_id=inspection)
        data = bytearray()
        for piece in endpoints.stream(self._stub.GetReport, request, unreachable=VerifierUnreachableError):
            data += piece.data
            if len(data) > _MAX_REPORT:
                raise FormatError(f"the report is larger than {_MAX_REPORT} bytes; read it in the Verifier's database")
        return bytes(data)


@contextmanager
def connect(address: str, credentials: Path) -> Iterator[Operator]:
    """Connects to the Verifier at `address` with the operator's credentials in a directory.

    Raises:
        IdentityError: The credentials are unreadable.
    """
    with endpoints.channel(
        address, Credentials.load(credentials), "verifier", unreachable=VerifierUnreachableError
    ) as channel:
        yield Operator(verifier_pb2_grpc.VerifierServiceStub(channel))  # type: ignore[no-untyped-call]
