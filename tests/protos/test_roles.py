"""Every method of every service, as real processes, against every caller: wrong roles, bad certificates, nonsense.

Methods come from the descriptors of all `.proto` files, so a new one cannot be forgotten here.
"""

from __future__ import annotations

import datetime
import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from google.protobuf import descriptor, message_factory
from support.station import LIMIT_OPTIONS, Station, service

import protos.weighbridge.v1
from firmware_sim.service import ALLOW as CHIP
from protos.weighbridge.v1 import chip_pb2, chip_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from prover.service import ALLOW as PROVER
from verifier.contact.witness_service import ALLOW as WITNESS
from verifier.service import ALLOW as VERIFIER
from weighbridge.attest import identity, peers
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.execution.dispute.service import ALLOW as REFEREE
from weighbridge.rpc import endpoints

ALLOW = {**CHIP, **PROVER, **VERIFIER, **WITNESS, **REFEREE}
SERVERS = {
    "ChipService": "chip",
    "ProverService": "prover",
    "VerifierService": "verifier",
    "WitnessService": "verifier",
    "RefereeService": "referee",
}
"""The role of the process that serves each service."""


def methods() -> dict[str, descriptor.MethodDescriptor]:
    result = {}
    for module in pkgutil.iter_modules(protos.weighbridge.v1.__path__):
        if module.name.endswith("_pb2"):
            file = importlib.import_module(f"protos.weighbridge.v1.{module.name}").DESCRIPTOR
            for each in file.services_by_name.values():
                result.update({f"/{each.full_name}/{method.name}": method for method in each.methods})
    return result


METHODS = methods()


class Site(NamedTuple):
    """Real processes, and who may try to call them."""

    station: Station
    addresses: dict[str, str]
    callers: dict[str, Credentials]


def expired(authority: CertificateAuthority, role: str) -> Credentials:
    """A certificate of the right authority for the right role that ended a day ago."""
    good = authority.issue_role(role, "late")
    old = x509.load_pem_x509_certificate(good.certificate)
    day = datetime.timedelta(days=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime.now(datetime.UTC) - 9 * day)
        .not_valid_after(datetime.datetime.now(datetime.UTC) - day)
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    pem = builder.sign(authority.key, hashes.SHA384()).public_bytes(identity.serialization.Encoding.PEM)
    return replace(good, certificate=pem)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Station(tmp_path_factory.mktemp("roles")) as station, ExitStack() as stack:
        root = station.root
        arguments = [
            *(
                "--db",
                str(root / "verifier.db"),
                "--cache",
                str(root / "cache"),
                "--credentials",
                str(root / "verifier"),
            ),
            *("--manufacturer", str(root / "manufacturer.pem"), "--firmware", str(root / "firmware.img")),
            *LIMIT_OPTIONS,
        ]
        verifier = stack.enter_context(service("serve verifier", arguments, root / "verifier.address"))
        station.authority.issue_role("referee", "r").save(root / "referee")
        arguments = [
            *("--docket", str(root / "docket"), "--key", str(root / "referee.key")),
            *("--credentials", str(root / "referee"), "--party", f"lab={bytes(32).hex()}"),
        ]
        referee = stack.enter_context(service("referee serve", arguments, root / "referee.address"))
        foreign = CertificateAuthority.create("Station")  # the same name, another key
        callers = {role: station.authority.issue_role(role, "x") for role in peers.ROLES}
        for role in peers.ROLES:
            callers[f"expired {role}"] = expired(station.authority, role)
            other = foreign.issue_role(role, "x")
            callers[f"foreign {role}"] = replace(callers[role], certificate=other.certificate, key=other.key)
        addresses = {"chip": station.chip("chip").address, "prover": station.prover(), "verifier": verifier}
        addresses["referee"] = referee
        yield Site(station, addresses, callers)


def test_every_method_has_its_row_and_no_row_is_for_nothing() -> None:
    assert set(ALLOW) == set(METHODS)
    assert all(roles and set(roles) < set(peers.ROLES) for roles in ALLOW.values())


def code_of(channel: grpc.Channel, name: str, data: bytes = b"") -> grpc.StatusCode:
    """Calls a method with raw bytes; returns the status."""
    method = METHODS[name]
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    request = iter([data]) if method.client_streaming else data
    try:
        answer = getattr(channel, kind)(name)(request, timeout=20)
        if method.server_streaming:
            list(answer)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("name", sorted(METHODS))
def test_only_the_roles_of_the_table_are_served(site: Site, name: str) -> None:
    server = SERVERS[name.split("/")[1].rpartition(".")[2]]
    for role in peers.ROLES:
        with endpoints.channel(site.addresses[server], site.callers[role], server) as channel:
            code = code_of(channel, name)
        refused = code == grpc.StatusCode.PERMISSION_DENIED
        assert refused == (role not in ALLOW[name]), f"{role}: {code}"
        assert code not in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), role


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_expired_or_foreign_certificate_gets_through_tls(site: Site, name: str) -> None:
    server = SERVERS[name.split("/")[1].rpartition(".")[2]]
    role = min(ALLOW[name])
    for caller in (f"expired {role}", f"foreign {role}"):
        with endpoints.channel(site.addresses[server], site.callers[caller], server) as channel:
            assert code_of(channel, name) == grpc.StatusCode.UNAVAILABLE, caller
    bare = grpc.ssl_channel_credentials(root_certificates=site.station.authority.pem)
    options = [("grpc.ssl_target_name_override", peers.role_domain(server))]
    with grpc.secure_channel(site.addresses[server], bare, options=options) as channel:
        assert code_of(channel, name) == grpc.StatusCode.UNAVAILABLE
    with grpc.insecure_channel(site.addresses[server]) as channel:
        assert code_of(channel, name) == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("name", sorted(METHODS))
def test_nonsense_of_the_right_role_is_refused(site: Site, name: str) -> None:
    server = SERVERS[name.split("/")[1].rpartition(".")[2]]
    with endpoints.channel(site.addresses[server], site.callers[min(ALLOW[name])], server) as channel:
        for data in (b"\xff" * 40, b"\x00", b"\x0a\xff\xff\xff\xff\x0f", b"\x0b" * 200):
            assert code_of(channel, name, data) in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT)
        huge = bytes(endpoints.MAX_MESSAGE_BYTES + 1)
        assert code_of(channel, name, huge) == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("name", sorted(name for name, each in METHODS.items() if each.input_type.fields))
def test_fields_at_their_extremes_are_answered_with_a_reason(site: Site, name: str) -> None:
    """Each field alone at a value that makes no sense; the service says why, and never that it is its own fault."""
    server = SERVERS[name.split("/")[1].rpartition(".")[2]]
    kind = message_factory.GetMessageClass(METHODS[name].input_type)
    extremes: dict[int, Any] = {
        descriptor.FieldDescriptor.TYPE_BYTES: b"\xff" * 100_000,
        descriptor.FieldDescriptor.TYPE_STRING: "../" * 30_000,
        descriptor.FieldDescriptor.TYPE_UINT32: 2**32 - 1,
        descriptor.FieldDescriptor.TYPE_UINT64: 2**64 - 1,
        descriptor.FieldDescriptor.TYPE_INT64: -(2**63),
        descriptor.FieldDescriptor.TYPE_DOUBLE: float("nan"),
    }
    with endpoints.channel(site.addresses[server], site.callers[min(ALLOW[name])], server) as channel:
        for field in METHODS[name].input_type.fields:
            if field.type not in extremes:
                continue
            value = extremes[field.type]
            request = kind(**{field.name: [value] * 2 if field.is_repeated else value})
            code = code_of(channel, name, request.SerializeToString())
            assert code not in (
                grpc.StatusCode.OK, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED,
                grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE,
            ), field.name  # fmt: skip


def test_after_all_of_it_the_services_are_as_before(site: Site) -> None:
    with endpoints.channel(site.addresses["verifier"], site.callers["operator"], "verifier") as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        assert not endpoints.call(stub.ListChips, verifier_pb2.ListChipsRequest()).chips
    with endpoints.channel(site.addresses["chip"], site.callers["verifier"], "chip") as channel:
        chip = chip_pb2_grpc.ChipServiceStub(channel)  # type: ignore[no-untyped-call]
        assert endpoints.call(chip.GetHead, chip_pb2.GetHeadRequest(nonce=b"fresh nonce")).token
    assert not list((site.station.root / "cache").glob("**/*.json"))
