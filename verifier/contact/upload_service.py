"""The part of the Verifier's service that Provers call: they hand in transcripts themselves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import grpc

from protos.weighbridge.v1 import verifier_pb2
from verifier.contact.upload_receiving import order
from verifier.contact.uploads import Uploads
from weighbridge.attest import role_certificate

_SERVICE = "/weighbridge.v1.VerifierService/"
ALLOW = {_SERVICE + method: {"prover"} for method in ("UploadTranscript", "UploadStatus")}
"""Only Provers hand in transcripts."""

FILES_A_MESSAGE = 1000
"""Files that one message of a status names: with the longest of paths it is small enough to be received."""


class UploadServicer:
    """UploadTranscript and UploadStatus of VerifierService; errors are mapped by `weighbridge.rpc.endpoints`."""

    _uploads: Uploads

    def UploadTranscript(  # noqa: N802 (gRPC names the methods)
        self, request_iterator: Iterator[verifier_pb2.UploadTranscriptRequest], context: grpc.ServicerContext
    ) -> verifier_pb2.UploadTranscriptResponse:
        """Takes in what a call brings of one transcript."""
        certificate = _certificate(context)
        first = next(request_iterator, None)
        identifier = "" if first is None else _named(first)
        if first is None or not identifier:
            raise order("a call begins with a header, or with the end of an upload")
        with self._uploads.receiving(certificate, identifier) as receiving:
            complete = False
            for request in chain([first], request_iterator):
                if complete or _named(request) not in ("", identifier):
                    raise order("a call is about one transcript, and its end is the last message")
                kind = request.WhichOneof("part")
                if kind == "file":
                    receiving.begin(request.file.path, request.file.size, request.file.offset)
                elif kind == "data":
                    receiving.write(request.data)
                else:
                    self._uploads.finish(receiving, certificate)
                    complete = True
            receiving.close()
        return verifier_pb2.UploadTranscriptResponse(received=receiving.received, complete=complete)

    def UploadStatus(  # noqa: N802
        self, request: verifier_pb2.UploadStatusRequest, context: grpc.ServicerContext
    ) -> Iterator[verifier_pb2.UploadStatusResponse]:
        """Says what is there of one transcript that the caller uploads."""
        held = self._uploads.status(_certificate(context), request.id)
        if held is None:
            yield verifier_pb2.UploadStatusResponse(complete=True)
            return
        files = [verifier_pb2.UploadedFile(path=path, held=size) for path, size in sorted(held.items())]
        for start in range(0, max(1, len(files)), FILES_A_MESSAGE):
            yield verifier_pb2.UploadStatusResponse(files=files[start : start + FILES_A_MESSAGE])


def _named(request: verifier_pb2.UploadTranscriptRequest) -> str:
    """Returns the transcript that a message names; bytes name none."""
    kind = request.WhichOneof("part")
    return "" if kind == "data" else str(getattr(request, kind).id)


def _certificate(context: grpc.ServicerContext) -> str:
    """Returns what tells callers apart, also after a renewal; the check of roles saw that there is a certificate."""
    certificates: Any = context.auth_context()["x509_pem_cert"]
    return role_certificate.read(certificates[0]).key
