"""`weighbridge console` as a process: it says where it serves, admits who may read, and ends in order when asked to."""

from __future__ import annotations

import http.client
import json
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="install the extra [console]")

from verifier.registry import Registry
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.cli.main import run


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site")
    authority = CertificateAuthority.create("Station")
    for role in ("verifier", "operator", "prover"):
        authority.issue_role(role, "one").save(path / role)
    CertificateAuthority.create("Chips").save(path / "maker")
    Registry(path / "db").close()
    return path


def test_it_serves_until_it_is_asked_to_stop(site: Path) -> None:
    command = [sys.executable, "-P", "-m", "weighbridge.cli", "console", "--db", str(site / "db"), "--json"]
    command += ["--credentials", str(site / "verifier"), "--address", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--address-file", str(site / "address")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "}\n")
            said = json.loads("".join(lines) + "}")
            assert said == {"address": (site / "address").read_text(), "url": f"https://{said['address']}/"}
            context = ssl.create_default_context(cafile=str(site / "operator" / "authority.pem"))
            context.load_cert_chain(site / "operator" / "certificate.pem", site / "operator" / "key.pem")
            connection = http.client.HTTPSConnection(*said["address"].split(":"), context=context, timeout=30)
            connection.request("GET", "/")
            assert b"Fleet and coverage" in connection.getresponse().read()
            connection.close()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_what_cannot_serve_is_said_in_one_line(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = ["console", "--db", str(site / "db"), "--credentials", str(site / "verifier")]
    missing = str(site / "missing")
    for more, says in (
        (["--credentials", str(site / "prover")], "credentials of prover one"),
        (["--credentials", missing], "Cannot read"),
        (["--db", missing], "there is no database"),
        (["--address", "nowhere"], "no address"),
        (["--address", "127.0.0.1:99999"], "no address"),
        (["--cache", missing], "all three or none"),
        (
            ["--cache", missing, "--report-key", missing, "--manufacturer", str(site / "maker" / "authority.pem")],
            "no directory",
        ),
        (
            ["--cache", str(site), "--report-key", missing, "--manufacturer", str(site / "maker" / "authority.pem")],
            "does not exist",
        ),
    ):
        assert run([*right, *more]) == 2, more
        error = capsys.readouterr().err
        assert says in error, more
        assert error.count("\n") == 1
    assert not (site / "missing").exists()
