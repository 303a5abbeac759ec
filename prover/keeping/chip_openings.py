"""Asks a chip for what opens its snapshots and tokens, encrypted to a sealed worker, to which alone it is of use."""

from __future__ import annotations

from collections.abc import Sequence

from protos.weighbridge.v1 import chip_pb2, chip_pb2_grpc
from weighbridge.attest.identity import Credentials
from weighbridge.attest.worker_openings import BOXES_LIMIT, Box
from weighbridge.core.errors import ChipError
from weighbridge.rpc import endpoints

_SECONDS = 300.0


def asked(
    address: str,
    credentials: Credentials,
    ueid: bytes,
    evidence: tuple[bytes, bytes],
    *,
    snapshots: Sequence[int],
    tokens: Sequence[int],
) -> list[Box]:
    """Returns a chip's boxes.

    Args:
        address: The chip's `host:port`.
        credentials: A Prover's or an operator's.
        ueid: Which chip.
        evidence: The order, and the worker's attestation.
        snapshots: Places of snapshots in its log.
        tokens: Places of tokens that hide fields.

    Raises:
        ChipError: The chip does not answer, trusts no such worker (`chip.worker`), or sends more than a worker takes.
        WeighbridgeError: The chip refuses for another reason.
    """
    order, attestation = evidence
    request = chip_pb2.OpenToWorkerRequest(order=order, attestation=attestation, snapshots=snapshots, tokens=tokens)
    boxes: list[Box] = []
    data, total = bytearray(), 0
    with endpoints.channel(address, credentials, "chip", unreachable=ChipError) as channel:
        stub = chip_pb2_grpc.ChipServiceStub(channel)  # type: ignore[no-untyped-call]
        messages = endpoints.stream(stub.OpenToWorker, request, deadline_s=_SECONDS, metadata=((endpoints.CHIP, ueid),))
        for message in messages:
            data += message.data
            total += len(message.data)
            if total > BOXES_LIMIT:
                raise ChipError("the chip sends more than a worker takes; ask for fewer snapshots")
            if message.last:
                boxes.append(Box(ueid, "token" if message.token else "snapshot", message.index, bytes(data)))
                data.clear()
    return boxes
