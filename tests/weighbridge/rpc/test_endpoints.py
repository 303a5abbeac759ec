# ruff: noqa: N802 (gRPC names the methods)
"""Mutual TLS, roles, deadlines and errors over real sockets."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos.weighbridge.v1 import chip_pb2, chip_pb2_grpc
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.core import errors
from weighbridge.rpc import endpoints

NONCE = b"fresh nonce"
SERVICE = "/weighbridge.v1.ChipService/"
ALLOW = {
    SERVICE + "GetHead": {"verifier", "operator"},
    SERVICE + "GetIdentity": {"verifier"},
    SERVICE + "ListEntries": {"verifier"},
}


class Chip(chip_pb2_grpc.ChipServiceServicer):
    """Answers as the nonce says."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.released = threading.Event()

    def GetHead(self, request: chip_pb2.GetHeadRequest, context: grpc.ServicerContext) -> chip_pb2.GetHeadResponse:
        if request.nonce == b"bad nonce":
            raise errors.ChipError("The log is damaged.", code="chip.log.chain", index=3)
        if request.nonce == b"bug nonce":
            raise ZeroDivisionError("secret detail")
        if request.nonce == b"slow nonce":
            self.released.wait(60)
        if request.nonce == b"forged nonce":
            info = error_details_pb2.ErrorInfo(reason="x\n" * 300, domain="weighbridge", metadata={"message": "m"})
            status = status_pb2.Status(code=code_pb2.ABORTED, message="no")
            status.details.add().Pack(info)
            context.abort_with_status(endpoints.rpc_status.to_status(status))
        return chip_pb2.GetHeadResponse(token=b"token of " + request.nonce)

    def ListEntries(
        self, request: chip_pb2.ListEntriesRequest, context: grpc.ServicerContext
    ) -> Iterator[chip_pb2.ListEntriesResponse]:
        context.add_callback(self.cancelled.set)
        for index in range(request.start, request.end):
            if index == 3:
                raise errors.TokenError("Entry 3 is damaged.")
            yield chip_pb2.ListEntriesResponse(index=index)
        if request.start == 100:
            self.released.wait(60)

    def OpenSnapshot(self, request: object, context: grpc.ServicerContext) -> Iterator[chip_pb2.OpenSnapshotResponse]:
        yield chip_pb2.OpenSnapshotResponse(salt=bytes(32))


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    return CertificateAuthority.create("Station")


@pytest.fixture(scope="module")
def verifier(authority: CertificateAuthority) -> Credentials:
    return authority.issue_role("verifier", "v")


@pytest.fixture(scope="module")
def chip() -> Chip:
    return Chip()


@pytest.fixture(scope="module")
def address(authority: CertificateAuthority, chip: Chip) -> Iterator[str]:
    server, address = endpoints.server(authority.issue_role("chip", "c"), allow=ALLOW)
    chip_pb2_grpc.add_ChipServiceServicer_to_server(chip, server)
    server.start()
    yield address
    server.stop(None).wait()


def head(
    address: str, credentials: Credentials, nonce: bytes = NONCE, *, role: str = "chip", **options: float
) -> bytes:
    with endpoints.channel(address, credentials, role) as channel:
        stub = chip_pb2_grpc.ChipServiceStub(channel)
        return endpoints.call(stub.GetHead, chip_pb2.GetHeadRequest(nonce=nonce), **options).token


def test_allowed_roles_are_served(address: str, authority: CertificateAuthority, verifier: Credentials) -> None:
    assert head(address, verifier) == b"token of " + NONCE
    assert head(address, authority.issue_role("operator", "o")) == b"token of " + NONCE


@pytest.mark.parametrize("role", ["prover", "chip"])
def test_other_roles_are_refused(address: str, authority: CertificateAuthority, role: str) -> None:
    with pytest.raises(errors.IdentityError) as caught:
        head(address, authority.issue_role(role, "someone"))
    assert caught.value.reason == "identity.role"
    assert caught.value.details == {"role": role, "name": "someone"}


def test_methods_outside_the_table_are_refused(address: str, verifier: Credentials) -> None:
    with endpoints.channel(address, verifier, "chip") as channel:
        stub = chip_pb2_grpc.ChipServiceStub(channel)
        with pytest.raises(errors.IdentityError):
            list(endpoints.stream(stub.OpenSnapshot, chip_pb2.OpenSnapshotRequest()))


def test_foreign_authority_is_refused(address: str, verifier: Credentials) -> None:
    foreign = CertificateAuthority.create("Station").issue_role("verifier", "v")
    with pytest.raises(errors.ChipError):
        head(address, foreign)
    mixed = replace(verifier, certificate=foreign.certificate, key=foreign.key)
    with pytest.raises(errors.ChipError):
        head(address, mixed)


def test_no_certificate_is_refused(address: str, verifier: Credentials) -> None:
    secure = grpc.ssl_channel_credentials(root_certificates=verifier.authority)
    options = [("grpc.ssl_target_name_override", "localhost")]
    with grpc.secure_channel(address, secure, options=options) as channel, pytest.raises(errors.ChipError):
        endpoints.call(
            chip_pb2_grpc.ChipServiceStub(channel).GetHead, chip_pb2.GetHeadRequest(nonce=NONCE), deadline_s=5
        )


def test_server_must_have_the_role(address: str, verifier: Credentials) -> None:
    with pytest.raises(errors.ChipError):
        head(address, verifier, role="prover", deadline_s=5)


def test_an_address_names_no_socket_of_this_machine(
    verifier: Credentials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registered address such as `unix:7` looks like host:port; gRPC by itself takes it for a path."""
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as here:
        here.bind("7")
        here.listen()
        here.settimeout(0.2)
        for address in ("unix:7", "ipv4:1", "xds:1", "fd:3"):
            with pytest.raises(errors.ChipError) as caught:
                head(address, verifier, deadline_s=5)
            assert caught.value.reason == "chip.unreachable"
        with pytest.raises(TimeoutError):
            here.accept()


def test_what_is_no_such_service_gets_a_handshake_and_no_request(verifier: Credentials) -> None:
    """An address of another service, on the Verifier's machine or in its cloud, makes the Verifier ask it nothing."""
    got: list[bytes] = []

    def take(listener: socket.socket) -> None:
        with listener.accept()[0] as peer:
            got.append(peer.recv(1 << 16))
            peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n{}")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=take, args=(listener,))
        thread.start()
        with pytest.raises(errors.ChipError):
            head(f"127.0.0.1:{listener.getsockname()[1]}", verifier, deadline_s=0.3)
        thread.join(10)
    assert got[0][:2] == b"\x16\x03"  # TLS, the client's greeting
    assert NONCE not in got[0]
    assert b"GetHead" not in got[0]


def test_nobody_there(verifier: Credentials) -> None:
    with pytest.raises(errors.ChipError) as caught:
        head("127.0.0.1:1", verifier)
    assert caught.value.reason == "chip.unreachable"


def test_our_errors_arrive_with_class_code_and_details(address: str, verifier: Credentials) -> None:
    with pytest.raises(errors.ChipError, match="The log is damaged") as caught:
        head(address, verifier, b"bad nonce")
    assert caught.value.reason == "chip.log.chain"
    assert caught.value.details == {"index": "3"}


def test_faults_tell_the_client_nothing(address: str, verifier: Credentials) -> None:
    with pytest.raises(endpoints.RpcError, match="INTERNAL") as caught:
        head(address, verifier, b"bug nonce")
    assert "secret" not in str(caught.value)


def test_forged_error_details_are_ignored(address: str, verifier: Credentials) -> None:
    with pytest.raises(endpoints.RpcError, match="ABORTED"):
        head(address, verifier, b"forged nonce")


def test_deadline(address: str, verifier: Credentials, chip: Chip) -> None:
    chip.released.clear()
    started = time.monotonic()
    with pytest.raises(errors.ChipError, match="Deadline"):
        head(address, verifier, b"slow nonce", deadline_s=0.3)
    assert time.monotonic() - started < 30, "the chip takes a minute"
    chip.released.set()


def test_streams_deliver_until_the_error(address: str, verifier: Credentials) -> None:
    with endpoints.channel(address, verifier, "chip") as channel:
        stub = chip_pb2_grpc.ChipServiceStub(channel)
        entries = endpoints.stream(stub.ListEntries, chip_pb2.ListEntriesRequest(start=0, end=9))
        assert [next(entries).index for _ in range(3)] == [0, 1, 2]
        with pytest.raises(errors.TokenError):
            next(entries)


def test_a_stream_that_nobody_reads_on_is_cancelled(address: str, verifier: Credentials, chip: Chip) -> None:
    chip.cancelled.clear()
    chip.released.clear()
    with endpoints.channel(address, verifier, "chip") as channel:
        stub = chip_pb2_grpc.ChipServiceStub(channel)
        entries = endpoints.stream(stub.ListEntries, chip_pb2.ListEntriesRequest(start=100, end=101))
        assert next(entries).index == 100
        entries.close()  # type: ignore[attr-defined]
        assert chip.cancelled.wait(30), "the chip goes on for a minute"
    chip.released.set()


def test_health_and_reflection(address: str, authority: CertificateAuthority) -> None:
    with endpoints.channel(address, authority.issue_role("prover", "p"), "chip") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "weighbridge.v1.ChipService"):
            answer = endpoints.call(health.Check, health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (listing,) = stub.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=5
        )
        assert "weighbridge.v1.ChipService" in {service.name for service in listing.list_services_response.service}


def test_a_taken_port_is_a_usage_error(address: str, authority: CertificateAuthority) -> None:
    with pytest.raises(errors.UsageError):
        endpoints.server(authority.issue_role("chip", "c"), allow=ALLOW, address=address)
