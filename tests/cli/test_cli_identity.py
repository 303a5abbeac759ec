"""`weighbridge identity`: one command each to issue, renew, revoke and pass on; services follow their files."""

from __future__ import annotations

import signal
import subprocess
import sysconfig
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12
from support.command_line import fails, weighbridge

from protos.weighbridge.v1 import prover_pb2, prover_pb2_grpc
from weighbridge.attest import role_certificate
from weighbridge.attest.certificates import load_certificate
from weighbridge.attest.identity import Credentials
from weighbridge.core.errors import IdentityError
from weighbridge.rpc import endpoints

SCRIPT = Path(sysconfig.get_path("scripts")) / "weighbridge"


def says(*arguments: str | Path) -> str:
    code, out, err = weighbridge("identity", *arguments)
    assert (code, err) == (0, ""), err
    return out


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    says("create", tmp_path / "ca", "--name", "Station")
    for role, name in (("prover", "lab"), ("verifier", "good"), ("verifier", "bad")):
        says("issue", tmp_path / "ca", "--role", role, "--name", name, "--out", tmp_path / name)
    return tmp_path / "ca"


def test_renewal_is_one_command_that_needs_no_key(ca: Path, tmp_path: Path) -> None:
    before = role_certificate.read((tmp_path / "lab" / "certificate.pem").read_bytes())
    (tmp_path / "lab" / "key.pem").rename(tmp_path / "key elsewhere")
    out = says("renew", ca, tmp_path / "lab", tmp_path / "good", "--days", "50")
    after = role_certificate.read((tmp_path / "lab" / "certificate.pem").read_bytes())
    assert f"renewed prover lab in {tmp_path / 'lab'} until {after.expires:%Y-%m-%d %H:%M} UTC" in out
    assert "renewed verifier good" in out
    assert (after.expires - before.expires).days in (19, 20)
    (tmp_path / "key elsewhere").rename(tmp_path / "lab" / "key.pem")
    assert Credentials.load(tmp_path / "lab").revocations == (ca / "revocations.pem").read_bytes()


def test_what_cannot_be_renewed_or_revoked_is_named(ca: Path, tmp_path: Path) -> None:
    says("create", tmp_path / "other", "--name", "Station")
    assert fails("identity", "renew", tmp_path / "other", tmp_path / "lab") == "identity.chain"
    assert fails("identity", "renew", ca, tmp_path / "nowhere") == "usage"
    assert fails("identity", "renew", tmp_path / "nowhere") == "identity.chain"
    assert fails("identity", "revoke", ca) == "usage"
    assert fails("identity", "revoke", ca, "--role", "operator") == "usage"
    assert fails("identity", "revoke", ca, "--role", "operator", "--name", "nobody") == "usage"
    certificate = tmp_path / "bad" / "certificate.pem"
    assert fails("identity", "revoke", ca, "--role", "verifier", "--name", "x", "--certificate", certificate) == "usage"
    out = says("revoke", ca, "--certificate", certificate)
    assert f"serial number {role_certificate.read(certificate.read_bytes()).serial:x}" in out
    assert fails("identity", "renew", ca, tmp_path / "bad") == "identity.revoked"
    other = tmp_path / "other" / "authority.pem"
    assert fails("identity", "update", other, tmp_path / "lab") == "identity.revocations"


def asked(address: str, credentials: Path) -> None:
    with endpoints.channel(address, Credentials.load(credentials), "prover") as channel:
        stub = prover_pb2_grpc.ProverServiceStub(channel)  # type: ignore[no-untyped-call]
        endpoints.call(stub.ListTranscripts, prover_pb2.ListTranscriptsRequest())


def test_a_running_service_refuses_whom_two_commands_revoked(ca: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    file = tmp_path / "address"
    command = [str(SCRIPT), "serve", "prover", "--runs", str(tmp_path / "runs"), "--address-file", str(file)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--credentials", str(tmp_path / "lab")], stdout=log, stderr=log)
    try:
        while not file.exists():
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.02)
        address = file.read_text()
        for name in ("good", "bad"):
            asked(address, tmp_path / name)
        says("revoke", ca, "--role", "verifier", "--name", "bad")
        says("update", ca / "revocations.pem", tmp_path / "lab")
        asked(address, tmp_path / "good")
        with pytest.raises(IdentityError, match="verifier bad is revoked"):
            asked(address, tmp_path / "bad")
        says("renew", ca, tmp_path / "lab", tmp_path / "good")
        asked(address, tmp_path / "good")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_a_service_does_not_start_without_a_list(ca: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "lab" / "revocations.pem").unlink()
    command = ["serve", "prover", "--runs", tmp_path / "runs", "--credentials", tmp_path / "lab"]
    assert fails(*command) == "identity.revocations"


def test_a_browser_can_import_what_is_written_for_it(ca: Path, tmp_path: Path) -> None:
    file = tmp_path / "lab.p12"
    password = says("browser", tmp_path / "lab", "--out", file).split()[-1]
    key, certificate, (authority,) = pkcs12.load_key_and_certificates(file.read_bytes(), password.encode())
    own = Credentials.load(tmp_path / "lab")
    assert certificate == load_certificate(own.certificate)
    assert key is not None
    assert key.public_key() == certificate.public_key()
    assert authority == load_certificate(own.authority)
    assert file.stat().st_mode & 0o077 == 0
    with pytest.raises(ValueError, match="password"):
        pkcs12.load_key_and_certificates(file.read_bytes(), b"guessed")
    assert fails("identity", "browser", tmp_path / "lab", "--out", file) == "usage"
    assert fails("identity", "browser", ca, "--out", tmp_path / "other.p12") == "identity.chain"
