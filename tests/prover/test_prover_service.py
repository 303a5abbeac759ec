"""The Prover's service as a process: what Verifiers get, and that no other role gets anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.station import service
from support.untrained_transcripts import UEID, write_transcript

from protos.weighbridge.v1 import prover_pb2, prover_pb2_grpc
from verifier.contact.clients import ProverClient
from verifier.store.cache import Cache
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import IdentityError, NotFoundError, ProverError
from weighbridge.rpc import endpoints


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    return CertificateAuthority.create("Station")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def address(authority: CertificateAuthority, runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("prover")
    authority.issue_role("prover", "p").save(root / "credentials")
    arguments = ["--runs", str(runs), "--credentials", str(root / "credentials")]
    with service("serve prover", arguments, root / "address") as address:
        yield address


def test_a_verifier_lists_explains_and_fetches(
    authority: CertificateAuthority, runs: Path, address: str, tmp_path: Path
) -> None:
    identifier = write_transcript(runs / "one", name="one")  # declared while the service runs
    credentials = authority.issue_role("verifier", "v")
    with endpoints.channel(address, credentials, "prover") as channel:
        stub = prover_pb2_grpc.ProverServiceStub(channel)  # type: ignore[no-untyped-call]
        listed = endpoints.call(stub.ListTranscripts, prover_pb2.ListTranscriptsRequest()).transcripts
        assert [(each.id, each.name, each.steps) for each in listed] == [(identifier, "one", 3)]
        assert listed[0].manifest_digest.hex() == identifier
        known = endpoints.call(stub.Explain, prover_pb2.ExplainRequest(ueid=UEID, log_index=12))
        assert (known.explained, known.transcript_id, known.step, known.op) == (True, identifier, 2, 4)
        unknown = endpoints.call(stub.Explain, prover_pb2.ExplainRequest(ueid=UEID, log_index=99))
        assert not unknown.explained
    with ProverClient(address, credentials) as client:
        transcript = Cache(tmp_path / "cache").get(identifier, client.pieces(identifier))
        assert transcript.steps == 3
        with pytest.raises(NotFoundError) as caught:
            list(client.pieces("0" * 64))
    assert caught.value.reason == "transcript.unknown"


@pytest.mark.parametrize("role", ["chip", "prover", "operator"])
def test_other_roles_are_refused(authority: CertificateAuthority, address: str, role: str) -> None:
    with ProverClient(address, authority.issue_role(role, "x")) as client, pytest.raises(IdentityError):
        list(client.pieces("0" * 64))


def test_a_foreign_authority_is_refused(address: str) -> None:
    stranger = CertificateAuthority.create("Elsewhere").issue_role("verifier", "v")
    with ProverClient(address, stranger) as client, pytest.raises(ProverError):
        list(client.pieces("0" * 64))
