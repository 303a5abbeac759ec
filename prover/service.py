"""The Prover's gRPC service: says where snapshots came from and hands out transcripts.

`weighbridge serve prover` runs it as a process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from protos.weighbridge.v1 import prover_pb2, prover_pb2_grpc
from prover.keeping.archive import Archive
from prover.keeping.cell_requests import Cells
from prover.keeping.record_requests import Records
from prover.keeping.supplement_requests import AT_ONCE, Progress, Regenerations
from weighbridge.attest.identity import Credentials
from weighbridge.execution.collective_openings import Target
from weighbridge.rpc import endpoints
from weighbridge.rpc.guards import CallLimits
from weighbridge.rpc.metrics import Metrics

_SERVICE = "/weighbridge.v1.ProverService/"
_METHODS = (
    "ListTranscripts", "Explain", "FetchTranscript", "FetchResults", "OpenContributions", "OpenRecords",
    "FetchSupplements",
)  # fmt: skip
ALLOW = {_SERVICE + method: {"verifier"} for method in _METHODS}
"""Only Verifiers may ask a Prover."""

GRACE_SECONDS = 5.0


class ProverService(prover_pb2_grpc.ProverServiceServicer):
    """Answers for the transcripts of one archive; see `protos/weighbridge/v1/prover.proto`."""

    def __init__(self, archive: Archive, device: str = "cpu", regenerations: Regenerations | None = None) -> None:
        """Serves what `archive` holds at the moment of each call, and recomputes results on `device`.

        Args:
            archive: The transcripts.
            device: A torch device.
            regenerations: What makes rounding logs; by default one process at a time.
        """
        self._archive, self._cells, self._records = archive, Cells(archive, device), Records(archive)
        self._regenerations = regenerations or Regenerations(archive)

    def ListTranscripts(  # noqa: N802 (gRPC names the methods)
        self, request: prover_pb2.ListTranscriptsRequest, context: grpc.ServicerContext
    ) -> prover_pb2.ListTranscriptsResponse:
        """Names every declared transcript."""
        return prover_pb2.ListTranscriptsResponse(
            transcripts=[
                prover_pb2.TranscriptSummary(
                    id=declared.id,
                    name=declared.name,
                    steps=declared.steps,
                    manifest_digest=bytes.fromhex(declared.id),
                )
                for declared in self._archive.transcripts()
            ]
        )

    def Explain(  # noqa: N802
        self, request: prover_pb2.ExplainRequest, context: grpc.ServicerContext
    ) -> prover_pb2.ExplainResponse:
        """Looks the snapshot up in the step records of all transcripts."""
        found = self._archive.explain(request.ueid, request.log_index, request.step, request.op, request.head)
        if found is None:
            return prover_pb2.ExplainResponse(explained=False)
        transcript_id, step, op = found
        ranks = self._archive.ranks(transcript_id)
        return prover_pb2.ExplainResponse(explained=True, transcript_id=transcript_id, step=step, op=op, ranks=ranks)

    def FetchTranscript(  # noqa: N802
        self, request: prover_pb2.FetchTranscriptRequest, context: grpc.ServicerContext
    ) -> Iterator[prover_pb2.FetchTranscriptResponse]:
        """Streams every file, manifest first, or what comes after a place."""
        for piece in self._archive.pieces(request.id, request.path, request.offset):
            yield prover_pb2.FetchTranscriptResponse(
                path=piece.path, offset=piece.offset, data=piece.data, last=piece.last
            )

    def FetchResults(  # noqa: N802
        self, request: prover_pb2.FetchResultsRequest, context: grpc.ServicerContext
    ) -> Iterator[prover_pb2.FetchResultsResponse]:
        """Replays the job and streams the results of a cell's collectives."""
        steps = request.begin, request.end
        for piece in self._cells.results(request.id, list(request.ranks), steps, context.is_active):
            yield prover_pb2.FetchResultsResponse(data=piece)

    def OpenContributions(  # noqa: N802
        self, request: prover_pb2.OpenContributionsRequest, context: grpc.ServicerContext
    ) -> Iterator[prover_pb2.OpenContributionsResponse]:
        """Replays the job and streams opened chunks of its collectives."""
        targets = [Target(each.step, each.op, each.out, each.chunk) for each in request.chunks]
        opened = self._cells.openings(request.id, list(request.ranks), targets, context.is_active)
        for place, opening in enumerate(opened):
            for part, piece in enumerate([opening.result, *opening.parts]):
                yield prover_pb2.OpenContributionsResponse(place=place, part=part, data=piece.data, path=piece.proof)

    def OpenRecords(  # noqa: N802
        self, request: prover_pb2.OpenRecordsRequest, context: grpc.ServicerContext
    ) -> Iterator[prover_pb2.OpenRecordsResponse]:
        """Streams those of the records that some batch holds."""
        for each in self._records.open(request.id, list(request.records)):
            yield prover_pb2.OpenRecordsResponse(record=each.record, content=each.content, path=each.proof)

    def FetchSupplements(  # noqa: N802
        self, request: prover_pb2.FetchSupplementsRequest, context: grpc.ServicerContext
    ) -> Iterator[prover_pb2.FetchSupplementsResponse]:
        """Streams the rounding logs of some steps, and makes those that are not there yet."""
        for each in self._regenerations.pieces(request.id, (request.begin, request.end), context.is_active):
            if isinstance(each, Progress):
                progress = prover_pb2.RegenerationProgress(done=each.done, total=each.total)
                yield prover_pb2.FetchSupplementsResponse(progress=progress)
            else:
                piece = prover_pb2.SupplementPiece(step=each.step, offset=each.offset, data=each.data, last=each.last)
                yield prover_pb2.FetchSupplementsResponse(piece=piece)


@contextmanager
def serve(
    runs: str | Path,
    credentials: Credentials,
    address: str = "127.0.0.1:0",
    device: str = "cpu",
    *,
    limits: CallLimits | None = None,
    metrics: Metrics | None = None,
    regenerations: int = AT_ONCE,
    key: Path | None = None,
    trees: bool = False,
) -> Iterator[str]:
    """Serves the transcripts below `runs` until the block ends; yields the address as host:port.

    `limits` is what each caller may do; calls are counted in `metrics`. As many processes as `regenerations` may make
    rounding logs at a time; `key` signs those of recordings that keep no key beside them, with `trees` also the root of
    each step's tree.

    Raises:
        UsageError: `runs` is no directory, or the address cannot be bound.
    """
    archive = Archive(runs)
    making = Regenerations(archive, at_once=regenerations, key=key, trees=trees)
    server, bound = endpoints.server(credentials, allow=ALLOW, address=address, limits=limits, metrics=metrics)
    prover_pb2_grpc.add_ProverServiceServicer_to_server(  # type: ignore[no-untyped-call]
        ProverService(archive, device, making), server
    )
    server.start()
    try:
        yield bound
    finally:
        endpoints.shut_down(server, GRACE_SECONDS).wait()
