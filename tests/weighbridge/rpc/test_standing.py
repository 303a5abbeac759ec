# ruff: noqa: N802 (gRPC names the methods)
"""Renewal and revocation while a server runs: over real sockets, also on connections that stand."""

from __future__ import annotations

import datetime
import logging
import queue
import re
import shutil
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from hypothesis import given
from hypothesis import strategies as st

from protos.weighbridge.v1 import chip_pb2, chip_pb2_grpc, witness_pb2, witness_pb2_grpc
from weighbridge.attest import certificates, credential_files, identity, peers, revocation
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.attest.revocation import RevocationListError
from weighbridge.attest.role_authority import RoleAuthority
from weighbridge.core.errors import IdentityError, OwnCredentialsError
from weighbridge.rpc import endpoints
from weighbridge.rpc.own_credentials import SEEN, OwnCredentials, note_seen, put_list, seen

HEAD = "/weighbridge.v1.ChipService/GetHead"
LIST = "/weighbridge.v1.ChipService/ListEntries"
ADD = "/weighbridge.v1.WitnessService/AddCheckpoint"
DAY = datetime.timedelta(days=1)


class Chip(chip_pb2_grpc.ChipServiceServicer, witness_pb2_grpc.WitnessServiceServicer):
    """Its log goes on when it is told to; it keeps what it is sent."""

    def __init__(self) -> None:
        self.next: tuple[queue.SimpleQueue[int], ...] = (queue.SimpleQueue(), queue.SimpleQueue())
        self.closed, self.kept = threading.Event(), list[bytes]()

    def GetHead(self, request: chip_pb2.GetHeadRequest, context: grpc.ServicerContext) -> chip_pb2.GetHeadResponse:
        return chip_pb2.GetHeadResponse(token=b"token")

    def ListEntries(
        self, request: chip_pb2.ListEntriesRequest, context: grpc.ServicerContext
    ) -> Iterator[chip_pb2.ListEntriesResponse]:
        try:
            while True:
                yield chip_pb2.ListEntriesResponse(index=self.next[request.start].get(timeout=10))
        finally:
            self.closed.set()

    def AddCheckpoint(self, request_iterator: Iterator[Any], context: grpc.ServicerContext) -> Any:
        for piece in request_iterator:
            self.kept.append(piece.checkpoint)
        return witness_pb2.AddCheckpointResponse()


class Site:
    """An authority, a server's directory, and the server over it."""

    def __init__(self, root: Path) -> None:
        self.ca, self.chip, self.path = root / "ca", root / "chip", root
        CertificateAuthority.create("Station").save(self.ca)
        self.issue("chip", "c").save(self.chip)
        self.alice, self.bob = self.issue("operator", "alice"), self.issue("operator", "bob")
        self.servicer = Chip()

    def issue(self, role: str, name: str, lifetime: datetime.timedelta = 30 * DAY) -> Credentials:
        with RoleAuthority.opened(self.ca) as authority:
            return authority.issue(role, name, lifetime=lifetime)

    def revoke(self, name: str) -> None:
        """At the authority; no service knows yet."""
        with RoleAuthority.opened(self.ca) as authority:
            authority.revoke_name("operator", name)

    @property
    def list(self) -> bytes:
        return (self.ca / credential_files.REVOCATIONS).read_bytes()

    @contextmanager
    def served(self) -> Iterator[str]:
        allow = {method: {"operator"} for method in (HEAD, LIST, ADD)}
        server, address = endpoints.server(Credentials.load(self.chip), allow=allow)
        chip_pb2_grpc.add_ChipServiceServicer_to_server(self.servicer, server)  # type: ignore[no-untyped-call]
        witness_pb2_grpc.add_WitnessServiceServicer_to_server(self.servicer, server)  # type: ignore[no-untyped-call]
        server.start()
        try:
            yield address
        finally:
            server.stop(None).wait()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@contextmanager
def stubs(address: str, credentials: Credentials) -> Iterator[tuple[Any, Any]]:
    with endpoints.channel(address, credentials, "chip") as channel:
        yield chip_pb2_grpc.ChipServiceStub(channel), witness_pb2_grpc.WitnessServiceStub(channel)  # type: ignore[no-untyped-call]


def head(stub: Any) -> bytes:
    return bytes(endpoints.call(stub.GetHead, chip_pb2.GetHeadRequest(nonce=b"fresh nonce"), deadline_s=10).token)


def refusal(stub: Any) -> str:
    with pytest.raises(IdentityError) as caught:
        head(stub)
    return caught.value.reason


def shown(address: str, caller: Credentials, path: Path) -> int:
    """The serial number of the certificate that a server shows to a new connection."""
    caller.save(path)
    context = ssl.create_default_context(cadata=caller.authority.decode())
    context.load_cert_chain(path / "certificate.pem", path / "key.pem")
    context.set_alpn_protocols(["h2"])
    host, port = address.split(":")
    raw = socket.create_connection((host, int(port)), timeout=10)
    with context.wrap_socket(raw, server_hostname=peers.role_domain("chip")) as wrapped:
        return int(str(wrapped.getpeercert()["serialNumber"]), 16)  # type: ignore[index]


def test_a_revoked_certificate_is_refused_on_a_standing_connection_at_once(site: Site) -> None:
    with site.served() as address, stubs(address, site.alice) as (alice, _), stubs(address, site.bob) as (bob, _):
        assert head(alice) == head(bob) == b"token"
        site.revoke("alice")
        assert head(alice) == b"token"  # nobody has told the service
        put_list(site.chip, site.list)
        assert refusal(alice) == "identity.revoked"
        assert head(bob) == b"token"
        with stubs(address, site.alice) as (again, _):
            assert refusal(again) == "identity.revoked"
        with stubs(address, site.issue("operator", "alice")) as (fresh, _):
            assert head(fresh) == b"token"  # credentials with another key


def test_an_open_stream_brings_a_revoked_caller_nothing_more(site: Site) -> None:
    with site.served() as address, ExitStack() as stack:
        entries = []
        for number, credentials in enumerate((site.alice, site.bob)):
            stub, _ = stack.enter_context(stubs(address, credentials))
            entries.append(stub.ListEntries(chip_pb2.ListEntriesRequest(start=number, end=9), timeout=20))
            site.servicer.next[number].put(1)
            assert next(entries[number]).index == 1
        site.revoke("alice")
        put_list(site.chip, site.list)
        for number in range(2):
            site.servicer.next[number].put(2)
        assert next(entries[1]).index == 2
        with pytest.raises(grpc.RpcError) as caught:
            next(entries[0])
        assert endpoints.from_rpc_error(caught.value).reason == "identity.revoked"
        assert site.servicer.closed.wait(10)  # the method that streamed was told to end
        entries[1].cancel()
        site.servicer.next[1].put(3)


def test_no_caller_is_admitted_by_the_old_list_while_a_new_one_is_read(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = OwnCredentials(Credentials.load(site.chip))
    own.admit(site.alice.certificate)
    site.revoke("alice")
    put_list(site.chip, site.list)
    reading, go_on, load = threading.Event(), threading.Event(), Credentials.load

    def slowly(directory: Path) -> Credentials:
        reading.set()
        assert go_on.wait(10)
        return load(directory)

    monkeypatch.setattr(Credentials, "load", slowly)
    with ThreadPoolExecutor(2) as pool:
        bob = pool.submit(own.admit, site.bob.certificate)
        assert reading.wait(10)
        alice = pool.submit(own.admit, site.alice.certificate)
        assert not wait([alice], timeout=0.2).done
        go_on.set()
        bob.result(10)
        with pytest.raises(IdentityError, match="revoked"):
            alice.result(10)


def test_what_a_revoked_caller_goes_on_sending_is_not_taken(site: Site) -> None:
    told = threading.Event()
    piece = witness_pb2.AddCheckpointRequest(ueid=bytes(17), checkpoint=b"c" * 100, token=b"t")

    def pieces() -> Iterator[Any]:
        yield piece
        told.wait(10)
        yield piece

    with site.served() as address, stubs(address, site.alice) as (_, witness):
        sending = witness.AddCheckpoint.future(pieces(), timeout=20)
        while not site.servicer.kept:
            time.sleep(0.005)
        site.revoke("alice")
        put_list(site.chip, site.list)
        told.set()
        with pytest.raises(grpc.RpcError) as caught:
            sending.result()
        assert endpoints.from_rpc_error(caught.value).reason == "identity.revoked"
        assert len(site.servicer.kept) == 1


def test_a_certificate_that_expires_is_refused_on_its_standing_connection(site: Site) -> None:
    brief = site.issue("operator", "brief", lifetime=datetime.timedelta(seconds=2))
    with site.served() as address, stubs(address, brief) as (stub, _), stubs(address, site.bob) as (bob, _):
        assert head(stub) == b"token"
        time.sleep(2)
        assert refusal(stub) == "identity.expired"
        assert head(bob) == b"token"


def test_a_renewed_certificate_of_a_server_is_shown_without_a_restart(site: Site) -> None:
    with site.served() as address, stubs(address, site.alice) as (standing, _):
        assert head(standing) == b"token"
        first = shown(address, site.alice, site.path / "caller")
        with RoleAuthority.opened(site.ca) as authority:
            renewed = authority.renew((site.chip / "certificate.pem").read_bytes())
        credential_files.write_files(site.chip, {"certificate.pem": renewed})
        second = shown(address, site.alice, site.path / "caller")
        assert first != second == certificates.load_certificate(renewed).serial_number
        assert head(standing) == b"token"
        with stubs(address, site.bob) as (fresh, _):
            assert head(fresh) == b"token"


def test_a_caller_uses_its_renewed_certificate_without_a_restart(site: Site) -> None:
    site.issue("operator", "brief", lifetime=datetime.timedelta(seconds=2)).save(site.path / "brief")
    held = Credentials.load(site.path / "brief")
    with RoleAuthority.opened(site.ca) as authority:
        renewed = authority.renew(held.certificate)
    with site.served() as address:
        credential_files.write_files(site.path / "brief", {"certificate.pem": renewed})
        time.sleep(2)
        with stubs(address, held) as (stub, _):
            assert head(stub) == b"token"


def test_a_server_does_not_take_a_certificate_that_would_be_of_no_use(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with site.served() as address:
        first = shown(address, site.alice, site.path / "caller")
        for bad in (site.issue("chip", "c").certificate, b"nonsense"):  # of another key
            credential_files.write_files(site.chip, {"certificate.pem": bad})
            caplog.clear()
            assert shown(address, site.alice, site.path / "caller") == first
            assert "a changed certificate is not taken" in caplog.text
            with stubs(address, site.bob) as (stub, _):
                assert head(stub) == b"token"


def test_callers_know_that_their_own_certificate_has_expired(site: Site, tmp_path: Path) -> None:
    with site.served() as address:
        site.issue("operator", "late", lifetime=-DAY / 48).save(tmp_path / "late")
        with pytest.raises(IdentityError, match=r"operator late expired at .* UTC, in .*identity issue --role op"):
            Credentials.load(tmp_path / "late")
        site.issue("operator", "brief", lifetime=datetime.timedelta(seconds=1)).save(tmp_path / "brief")
        held = Credentials.load(tmp_path / "brief")
        time.sleep(1)
        with pytest.raises(OwnCredentialsError, match="operator brief expired"), stubs(address, held):
            pass
    site.issue("chip", "late", lifetime=-DAY / 48).save(site.path / "old chip")
    with pytest.raises(IdentityError, match="chip late expired"):
        endpoints.server(Credentials.load(site.path / "old chip"), allow={})


def lists(site: Site) -> dict[str, bytes]:
    """Lists on which no service may rely, by what is wrong with them."""
    root = CertificateAuthority.load(site.ca)
    ended = revocation.signed(root.certificate, root.key, {}, above=1 << 40, lifetime=datetime.timedelta(seconds=0))
    return {
        "ended": ended,
        "not signed by": CertificateAuthority.create("Station").revocations,
        "This is no list": site.list[:-100],
        "There is no list": b"",
    }


def test_without_a_list_to_rely_on_nobody_is_served_until_there_is_one(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    good = site.list
    with site.served() as address, stubs(address, site.bob) as (bob, _):
        for why, bad in lists(site).items():
            credential_files.write_files(site.chip, {credential_files.REVOCATIONS: bad})
            with pytest.raises(IdentityError, match=why) as caught:
                head(bob)
            assert caught.value.reason == "identity.revocations"
            with pytest.raises(IdentityError, match=why):
                OwnCredentials(Credentials.load(site.chip))  # nor does it start with that
            if why == "ended":
                (site.chip / SEEN).unlink()  # its number was genuine
            credential_files.write_files(site.chip, {credential_files.REVOCATIONS: revoke_nobody(site)})
            assert head(bob) == b"token"
        (site.chip / credential_files.REVOCATIONS).unlink()
        with pytest.raises(IdentityError, match=r"revocations\.pem"):
            head(bob)
    assert caplog.text.count("callers are refused") >= 4
    assert good


def revoke_nobody(site: Site) -> bytes:
    """The next list of the authority, above any number so far."""
    root = CertificateAuthority.load(site.ca)
    return revocation.signed(root.certificate, root.key, {}, above=(1 << 40) + time.monotonic_ns())


def test_an_older_list_is_refused_also_after_a_restart(site: Site) -> None:
    old = site.list
    with site.served() as address, stubs(address, site.alice) as (alice, _), stubs(address, site.bob) as (bob, _):
        site.revoke("alice")
        put_list(site.chip, site.list)
        assert refusal(alice) == "identity.revoked"
        with pytest.raises(IdentityError, match="number"):
            put_list(site.chip, old)
        assert head(bob) == b"token"
        shutil.copy(site.ca / credential_files.REVOCATIONS, site.path / "newest")
        (site.chip / credential_files.REVOCATIONS).write_bytes(old)  # by hand: a copy from a backup
        assert refusal(alice) == refusal(bob) == "identity.revocations"
    with pytest.raises(IdentityError, match="but one with"):
        endpoints.server(Credentials.load(site.chip), allow={})
    put_list(site.chip, (site.path / "newest").read_bytes())
    with site.served() as address, stubs(address, site.alice) as (alice, _), stubs(address, site.bob) as (bob, _):
        assert refusal(alice) == "identity.revoked"
        assert head(bob) == b"token"


def test_a_list_is_put_only_where_it_counts(site: Site, tmp_path: Path) -> None:
    before = (site.chip / credential_files.REVOCATIONS).read_bytes()
    for why, bad in lists(site).items():
        with pytest.raises(IdentityError, match=why if bad else "This is no list"):
            put_list(site.chip, bad)
    with pytest.raises(IdentityError, match=r"authority\.pem"):
        put_list(tmp_path / "nowhere", before)
    assert (site.chip / credential_files.REVOCATIONS).read_bytes() == before


def test_services_say_when_their_certificate_or_list_is_about_to_end(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    OwnCredentials(Credentials.load(site.chip))
    assert caplog.text == ""
    soon = site.issue("chip", "soon", lifetime=datetime.timedelta(minutes=20))  # of 80: it began an hour ago
    root = CertificateAuthority.load(site.ca)
    soon.save(site.path / "soon")
    OwnCredentials(Credentials.load(site.path / "soon"))
    assert "the certificate of chip soon ends at" in caplog.text
    assert "weighbridge identity renew" in caplog.text
    caplog.clear()
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateRevocationListBuilder().issuer_name(root.certificate.subject)
    builder = builder.last_update(now - 3 * DAY).next_update(now + DAY)
    signed = builder.add_extension(x509.CRLNumber(1 << 40), critical=False).sign(root.key, hashes.SHA384())
    old = signed.public_bytes(identity.serialization.Encoding.PEM)
    credential_files.write_files(site.chip, {credential_files.REVOCATIONS: old})
    OwnCredentials(Credentials.load(site.chip))
    assert "the list of revoked certificates ends at" in caplog.text


def test_a_service_without_files_needs_a_list_too() -> None:
    authority = CertificateAuthority.create("Station")
    good = authority.issue_role("chip", "c")
    bare = Credentials(certificate=good.certificate, key=good.key, authority=good.authority)
    with pytest.raises(IdentityError, match="There is no list of revoked certificates, so no caller is served"):
        endpoints.server(bare, allow={})
    with pytest.raises(OwnCredentialsError, match="so no server is trusted"), stubs("127.0.0.1:1", bare):
        pass


@given(st.text(max_size=80) | st.integers(0, 1 << 200).map(str))
def test_the_note_of_a_number_is_read_back_or_refused(text: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / SEEN).write_text(text, encoding="utf-8")
        if not re.fullmatch(r"[0-9]{1,60}", text):
            with pytest.raises(RevocationListError):
                seen(directory)
            return
        found = seen(directory)
        assert found == int(text)
        note_seen(directory, found + 1)
        note_seen(directory, found)
        assert seen(directory) == found + 1
