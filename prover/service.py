"""The Prover's gRPC service: says where snapshots came from and hands out transcripts.

Run as a process: `python -m prover.service --runs DIR --credentials DIR --address-file F`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc

from protos.weighbridge.v1 import prover_pb2, prover_pb2_grpc
from prover.archive import Archive
from prover.cells import Cells
from prover.records import Records
from weighbridge import rpc
from weighbridge.errors import WeighbridgeError
from weighbridge.identity import Credentials
from weighbridge.openings import Target

_SERVICE = "/weighbridge.v1.ProverService/"
_METHODS = ("ListTranscripts", "Explain", "FetchTranscript", "FetchResults", "OpenContributions", "OpenRecords")
ALLOW = {_SERVICE + method: {"verifier"} for method in _METHODS}
"""Only Verifiers may ask a Prover."""

GRACE_SECONDS = 5.0


class ProverService(prover_pb2_grpc.ProverServiceServicer):
    """Answers for the transcripts of one archive; see `protos/weighbridge/v1/prover.proto`."""

    def __init__(self, archive: Archive, device: str = "cpu") -> None:
        """Serves what `archive` holds at the moment of each call; what is made again is made on `device`."""
        self._archive, self._cells, self._records = archive, Cells(archive, device), Records(archive)

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
        """Streams every file, manifest first."""
        for piece in self._archive.pieces(request.id):
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


@contextmanager
def serve(
    runs: str | Path, credentials: Credentials, address: str = "127.0.0.1:0", device: str = "cpu"
) -> Iterator[str]:
    """Serves the transcripts below `runs` until the block ends; yields the address as host:port.

    Raises:
        UsageError: `runs` is no directory, or the address cannot be bound.
    """
    server, bound = rpc.server(credentials, allow=ALLOW, address=address)
    prover_pb2_grpc.add_ProverServiceServicer_to_server(  # type: ignore[no-untyped-call]
        ProverService(Archive(runs), device), server
    )
    server.start()
    try:
        yield bound
    finally:
        rpc.shut_down(server, GRACE_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the service until SIGTERM or SIGINT; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m prover.service", description="Serve transcripts to Verifiers.")
    parser.add_argument("--runs", required=True, type=Path, help="directory that holds the transcripts")
    parser.add_argument("--credentials", required=True, type=Path, help="directory of the Prover's role certificate")
    parser.add_argument("--address", default="127.0.0.1:0", help="host:port to listen at; port 0 picks a free one")
    parser.add_argument("--address-file", type=Path, help="write the address here once the service answers")
    parser.add_argument("--device", default="cpu", help="torch device that jobs are replayed on when a Verifier asks")
    options = parser.parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with serve(options.runs, Credentials.load(options.credentials), options.address, options.device) as bound:
            if options.address_file is not None:
                write_address(options.address_file, bound)
            stop.wait()
    except WeighbridgeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def write_address(path: Path, address: str) -> None:
    """Writes an address so that a reader sees all of it or nothing."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(address)
    os.replace(partial, path)


if __name__ == "__main__":
    sys.exit(main())
