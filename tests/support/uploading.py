"""Uploads as a client of any make would send them: messages one by one, right or wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from protos.weighbridge.v1 import verifier_pb2
from weighbridge.attest.manifest import Predicate, SigningKey, open_manifest, sign_manifest
from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import WeighbridgeError
from weighbridge.rpc.endpoints import from_rpc_error
from weighbridge.transcript.writer import MANIFEST

CHUNK = 1 << 20
Request = verifier_pb2.UploadTranscriptRequest


def files_of(run: Path) -> dict[str, bytes]:
    """Path to content of a transcript's files, the manifest first."""
    found = {path.relative_to(run).as_posix(): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
    return {MANIFEST: found[MANIFEST], **found}


def header(identifier: str, path: str, size: int, offset: int = 0) -> Request:
    """A header."""
    return Request(file=verifier_pb2.UploadHeader(id=identifier, path=path, size=size, offset=offset))


def end(identifier: str) -> Request:
    """The end of an upload."""
    return Request(end=verifier_pb2.UploadEnd(id=identifier))


def messages(identifier: str, files: dict[str, bytes], *, size: int = CHUNK) -> Iterator[Request]:
    """All messages of a whole upload, the end included; pieces of `size` bytes."""
    for path, content in files.items():
        yield header(identifier, path, len(content))
        yield from (Request(data=content[at : at + size]) for at in range(0, len(content), size))
    yield end(identifier)


def send(stub: Any, requests: Iterable[Request]) -> Any:
    """Makes one call of UploadTranscript; returns its answer."""
    import grpc

    try:
        return stub.UploadTranscript(iter(requests), timeout=60)
    except grpc.RpcError as error:
        raised = from_rpc_error(error)
        raised.details["status_name"] = error.code().name
        raise raised from None


def refused(stub: Any, requests: Iterable[Request]) -> tuple[str, str]:
    """Makes one call that must be refused; returns (status, reason)."""
    try:
        send(stub, requests)
    except WeighbridgeError as error:
        return str(error.details["status_name"]), error.reason
    raise AssertionError("it was not refused")


def resigned(manifest: bytes, files: Sequence[tuple[str, int, str]]) -> tuple[str, bytes]:
    """Another manifest, which lists these files in the place of its own, signed by a new key; with its identifier."""
    opened = open_manifest(manifest)
    own = {name: getattr(opened, name) for name in Predicate.__dataclass_fields__}
    predicate = replace(Predicate(**own), files=tuple(sorted(files)))
    signed = sign_manifest(predicate, SigningKey.generate())
    return bytes_digest(signed).hex(), signed
