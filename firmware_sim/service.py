# ruff: noqa: N802 (gRPC names the methods)
"""ChipService: a chip's identity and log for Verifiers and operators, over mutual TLS."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from firmware_sim.firmware import Firmware
from protos.weighbridge.v1 import chip_pb2, chip_pb2_grpc
from weighbridge.core.digests import Leaf

_SERVICE = "/weighbridge.v1.ChipService/"
ALLOW = {
    _SERVICE + "GetIdentity": {"verifier", "operator"},
    _SERVICE + "GetHead": {"verifier", "operator"},
    _SERVICE + "GetCheckpoint": {"verifier", "operator"},
    _SERVICE + "GetConsistencyProof": {"verifier", "operator"},
    _SERVICE + "GetInclusionProof": {"verifier", "operator"},
    _SERVICE + "AddCosignature": {"verifier"},
    _SERVICE + "ListEntries": {"verifier", "operator"},
    _SERVICE + "OpenSnapshot": {"verifier"},
    _SERVICE + "OpenToWorker": {"prover", "operator"},
}
"""Who may call what. Leaves say something about memory, so only a Verifier may see them, and in a confidential boot not
even a Verifier. What is opened to a worker may be carried there by the Prover's side, and a Verifier is refused."""

LEAVES_PER_MESSAGE = 4096
BYTES_PER_MESSAGE = 1 << 20


class ChipServicer(chip_pb2_grpc.ChipServiceServicer):
    """Answers from one firmware; errors are mapped by `weighbridge.rpc.endpoints`."""

    def __init__(self, firmware: Firmware) -> None:
        """Serves `firmware`."""
        self._firmware = firmware

    def _chosen(self, context: grpc.ServicerContext) -> Firmware:
        """Returns whom a call is for: here there is only one; see `fleet`."""
        return self._firmware

    def GetIdentity(
        self, request: chip_pb2.GetIdentityRequest, context: grpc.ServicerContext
    ) -> chip_pb2.GetIdentityResponse:
        """See chip.proto."""
        firmware = self._chosen(context)
        device = firmware.device
        return chip_pb2.GetIdentityResponse(
            ueid=device.ueid,
            certificate_chain=device.chain,
            firmware_version=device.tcb.version,
            firmware_digest=device.tcb.measurement,
            token=firmware.head(request.nonce),
            firmware_svn=device.tcb.svn,
            mode=device.tcb.mode,
            hwmodel=device.tcb.model,
        )

    def GetHead(self, request: chip_pb2.GetHeadRequest, context: grpc.ServicerContext) -> chip_pb2.GetHeadResponse:
        """See chip.proto."""
        return chip_pb2.GetHeadResponse(token=self._chosen(context).head(request.nonce))

    def GetCheckpoint(
        self, request: chip_pb2.GetCheckpointRequest, context: grpc.ServicerContext
    ) -> chip_pb2.GetCheckpointResponse:
        """See chip.proto."""
        firmware = self._chosen(context)
        checkpoint, token, _ = firmware.checkpoint(request.nonce)
        return chip_pb2.GetCheckpointResponse(checkpoint=checkpoint, token=token, cosigned=firmware.cosigned)

    def GetConsistencyProof(
        self, request: chip_pb2.GetConsistencyProofRequest, context: grpc.ServicerContext
    ) -> chip_pb2.GetConsistencyProofResponse:
        """See chip.proto."""
        hashes = self._chosen(context).consistency_proof(request.old_size, request.size)
        return chip_pb2.GetConsistencyProofResponse(hashes=hashes)

    def GetInclusionProof(
        self, request: chip_pb2.GetInclusionProofRequest, context: grpc.ServicerContext
    ) -> chip_pb2.GetInclusionProofResponse:
        """See chip.proto."""
        hashes = self._chosen(context).inclusion_proof(request.index, request.size)
        return chip_pb2.GetInclusionProofResponse(hashes=hashes)

    def AddCosignature(
        self, request: chip_pb2.AddCosignatureRequest, context: grpc.ServicerContext
    ) -> chip_pb2.AddCosignatureResponse:
        """See chip.proto."""
        return chip_pb2.AddCosignatureResponse(first=self._chosen(context).add_cosignature(request.checkpoint))

    def ListEntries(
        self, request: chip_pb2.ListEntriesRequest, context: grpc.ServicerContext
    ) -> Iterator[chip_pb2.ListEntriesResponse]:
        """See chip.proto."""
        for index, token in self._chosen(context).entries(request.start, request.end):
            yield chip_pb2.ListEntriesResponse(index=index, token=token)

    def OpenSnapshot(
        self, request: chip_pb2.OpenSnapshotRequest, context: grpc.ServicerContext
    ) -> Iterator[chip_pb2.OpenSnapshotResponse]:
        """See chip.proto."""
        salt, leaves, weights = self._chosen(context).open_snapshot(request.index)
        yield chip_pb2.OpenSnapshotResponse(salt=salt)
        for start in range(0, len(leaves), LEAVES_PER_MESSAGE):
            yield chip_pb2.OpenSnapshotResponse(leaves=_leaves(leaves[start : start + LEAVES_PER_MESSAGE]))
        for start in range(0, len(weights), LEAVES_PER_MESSAGE):
            yield chip_pb2.OpenSnapshotResponse(weights=_leaves(weights[start : start + LEAVES_PER_MESSAGE]))

    def OpenToWorker(
        self, request: chip_pb2.OpenToWorkerRequest, context: grpc.ServicerContext
    ) -> Iterator[chip_pb2.OpenToWorkerResponse]:
        """See chip.proto."""
        boxes = self._chosen(context).open_to_worker(
            request.order, request.attestation, request.snapshots, request.tokens
        )
        for box in boxes:
            pieces = range(0, len(box.data), BYTES_PER_MESSAGE)
            for start in pieces:
                piece = box.data[start : start + BYTES_PER_MESSAGE]
                yield chip_pb2.OpenToWorkerResponse(
                    token=box.kind == "token", index=box.index, data=piece, last=start == pieces[-1]
                )


def _leaves(piece: list[Leaf]) -> list[chip_pb2.Leaf]:
    return [chip_pb2.Leaf(bytes=size, digest=digest) for size, digest in piece]
