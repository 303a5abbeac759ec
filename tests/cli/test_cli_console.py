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
from verifier.report import signing
from weighbridge.cli.bench.layout import DEFAULT, Bench, Settings
from weighbridge.cli.main import run


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with credentials, and a bench as `weighbridge up` leaves it."""
    path = tmp_path_factory.mktemp("site")
    bench = Bench(path / DEFAULT, Settings(("chip-0",), 0.1, 1.0))
    bench.keep()
    bench.make()
    verifier = bench.directory / "verifier"
    Registry(verifier / "registry.sqlite").close()
    signing.load_key(verifier / "registry.sqlite.report-key")
    (verifier / "cache").mkdir()
    for role in ("verifier", "operator", "prover"):
        (path / role).symlink_to(bench.credentials(role))
    (path / "db").symlink_to(verifier / "registry.sqlite")
    (path / "maker").symlink_to(bench.directory / "manufacturer")
    return path


def test_on_a_bench_it_serves_until_it_is_asked_to_stop(site: Path) -> None:
    command = [sys.executable, "-P", "-m", "weighbridge.cli", "console", "--json", "--address", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--address-file", str(site / "address")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=site,
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
            assert b"Signed in as operator bench" in connection.getresponse().read()
            connection.close()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_what_cannot_serve_is_said_in_one_line(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WEIGHBRIDGE_BENCH", raising=False)
    right = ["console", "--db", str(site / "db"), "--credentials", str(site / "verifier")]
    missing = str(site / "missing")
    for more, says in (
        (["--credentials", str(site / "prover")], "credentials of prover bench"),
        (["--credentials", missing], "Cannot read"),
        (["--db", missing], "there is no database"),
        (["--db", ""], "give --db, or start a bench"),
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
