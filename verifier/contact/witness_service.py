# ruff: noqa: N802 (gRPC names the methods)
"""WitnessService: chips report their logs to this Verifier, and other Verifiers compare what they were shown."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import grpc

from protos.weighbridge.v1 import witness_pb2, witness_pb2_grpc
from verifier.contact.witness import Witness
from weighbridge.core.errors import TokenError, UsageError
from weighbridge.rpc import endpoints, memory

_SERVICE = "/weighbridge.v1.WitnessService/"
ALLOW = {
    _SERVICE + "GetWitnessed": {"chip", "verifier", "operator"},
    _SERVICE + "AddCheckpoint": {"chip"},
    _SERVICE + "CompareCheckpoint": {"verifier", "operator"},
}
"""Who may call what. A chip may only speak for the UEIDs in its certificate; whose log it is, its head token says."""

MAX_REPORT_BYTES = 48 << 20
"""Entries in one report; a chip's NVRAM holds less."""
MAX_PROOF = 128
_ENTRY_BYTES = 64
"""What an entry takes in memory beside its bytes."""


class WitnessServicer(witness_pb2_grpc.WitnessServiceServicer):
    """Answers from one witness; errors are mapped by `weighbridge.rpc.endpoints`."""

    def __init__(self, witness: Witness) -> None:
        """Serves `witness`."""
        self._witness = witness

    def GetWitnessed(
        self, request: witness_pb2.GetWitnessedRequest, context: grpc.ServicerContext
    ) -> witness_pb2.GetWitnessedResponse:
        """See witness.proto."""
        endpoints.peer_of(context).check_speaks_for(request.ueid)
        held, nonce = self._witness.nonce(request.ueid)
        return witness_pb2.GetWitnessedResponse(size=held.size, checkpoint=held.checkpoint, nonce=nonce)

    def AddCheckpoint(
        self, request_iterator: Iterator[witness_pb2.AddCheckpointRequest], context: grpc.ServicerContext
    ) -> witness_pb2.AddCheckpointResponse:
        """See witness.proto."""
        first = next(request_iterator, None)
        if first is None or not first.ueid or len(first.proof) > MAX_PROOF:
            raise UsageError("A report begins with a checkpoint, its token and a proof; report anew.")
        endpoints.peer_of(context).check_speaks_for(first.ueid)
        incoming = self._witness.begin(first.ueid, first.checkpoint, first.token, list(first.proof))
        total = 0
        for piece in chain([first], request_iterator):
            total += sum(map(len, piece.entries))
            if total > MAX_REPORT_BYTES:
                raise TokenError("The report is larger than a chip's log can be; inspect the chip on site.")
            memory.keep(sum(map(len, piece.entries)) + _ENTRY_BYTES * len(piece.entries))
            incoming.add(piece.entries)
        return witness_pb2.AddCheckpointResponse(checkpoint=self._witness.end(incoming))

    def CompareCheckpoint(
        self, request: witness_pb2.CompareCheckpointRequest, context: grpc.ServicerContext
    ) -> witness_pb2.CompareCheckpointResponse:
        """See witness.proto."""
        consistent, own = self._witness.compare(request.checkpoint)
        return witness_pb2.CompareCheckpointResponse(consistent=consistent, checkpoint=own)
