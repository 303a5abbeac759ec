"""`weighbridge site`: identities and orders; images and jobs are in tests/weighbridge/execution/sealed."""

from __future__ import annotations

from pathlib import Path

import pytest

from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.sealed_attestation import Launcher
from weighbridge.cli.main import run

UEID = "0100000000000000000000000000000001"


@pytest.fixture
def maker(tmp_path: Path) -> Path:
    CertificateAuthority.create("Maker").save(tmp_path / "maker")
    return tmp_path / "maker"


def test_an_identity_is_made_once(maker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["site", "identity", str(maker), "--ueid", UEID, "--out", str(tmp_path / "launcher")]
    assert run(arguments) == 0
    Launcher.load(tmp_path / "launcher")
    assert run(arguments) == 2
    assert "holds an identity already" in capsys.readouterr().err


@pytest.mark.parametrize("ueid", ["xyz", "00" * 16])
def test_no_identity_is_made_of_what_is_no_identifier(maker: Path, tmp_path: Path, ueid: str) -> None:
    assert run(["site", "identity", str(maker), "--ueid", ueid, "--out", str(tmp_path / "launcher")]) == 2
    assert not (tmp_path / "launcher").exists()


def test_an_order_that_is_none_starts_nothing(maker: Path, tmp_path: Path) -> None:
    run(["site", "identity", str(maker), "--ueid", UEID, "--out", str(tmp_path / "launcher")])
    (tmp_path / "order").write_bytes(b"none")
    arguments = ["--order", "order", "--identity", "launcher", "--image", "image", "--log", "starts"]
    paths = [each if each.startswith("--") else str(tmp_path / each) for each in arguments]
    assert run(["site", "worker", *paths]) == 2
    assert not (tmp_path / "starts").exists()
