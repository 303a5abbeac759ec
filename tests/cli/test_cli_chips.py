"""`weighbridge chip image, provision, boot, show, unlock`: with real chips, and with every way to fail."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.command_line import answer, fails, weighbridge

from weighbridge.attest.identity import CertificateAuthority

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Maker:
    """A manufacturer with images of two versions, and credentials for chips and operators."""

    path: Path

    def __truediv__(self, name: str) -> str:
        return str(self.path / name)

    def show(self, address: str) -> list[str]:
        return ["chip", "show", address, "--credentials", self / "operator", "--manufacturer", self / "authority.pem"]

    @contextmanager
    def booted(self, chip: str, *options: str) -> Iterator[dict[str, Any]]:
        """Runs a chip in the foreground of a process of its own, as a user would, and yields what it says."""
        command = [sys.executable, "-m", "weighbridge.cli", "chip", "boot", "--json", "--dir", self / chip]
        command += ["--credentials", self / "credentials", "--rate", "0", "--socket", self / "s"]
        command += ["--address-file", self / "address", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
            assert process.stdout is not None
            lines = []
            while not lines or lines[-1] not in ("}\n", ""):
                lines.append(process.stdout.readline())
            try:
                yield json.loads("".join(lines))
            finally:
                process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    path = tmp_path_factory.mktemp("maker")
    CertificateAuthority.create("Maker").save(path)
    station = CertificateAuthority.create("Station")
    station.issue_role("chip", "chip").save(path / "credentials")
    station.issue_role("operator", "operator").save(path / "operator")
    maker = Maker(path)
    for svn in ("1", "2"):
        options = ["--out", maker / f"{svn}.img", "--version", f"{svn}.0", "--svn", svn]
        assert weighbridge("chip", "image", str(path), *options)[0] == 0
    return maker


@pytest.fixture
def chip(maker: Maker, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name)
    assert (
        weighbridge("chip", "provision", maker / name, "--manufacturer", maker / "", "--image", maker / "1.img")[0] == 0
    )
    return name


def test_a_chip_from_the_factory_to_its_update(maker: Maker, chip: str) -> None:
    new = answer("chip", "show", maker / chip)
    assert new["findings"] == []
    assert new["chip"]["manufacturer"] == "Maker"
    assert (new["chip"]["firmware"]["version"], new["chip"]["mode"], new["chip"]["minimal_svn"]) == (
        "1.0",
        "production",
        0,
    )
    assert new["chip"]["entries"] == 0
    with maker.booted(chip) as first:
        assert (first["ueid"], first["version"], first["svn"]) == (new["chip"]["ueid"], "1.0", 1)
        running = answer(*maker.show(first["address"]))["chip"]
    assert running["firmware"] == {"version": "1.0", "svn": 1, "measurement": first["measurement"]}
    assert (running["ueid"], running["mode"], running["entries"], running["boots"]) == (
        first["ueid"],
        "production",
        1,
        1,
    )
    with maker.booted(chip, "--image", maker / "2.img") as second:
        assert (second["ueid"], second["version"]) == (first["ueid"], "2.0")
    updated = answer("chip", "show", maker / chip)["chip"]
    assert (updated["firmware"]["version"], updated["minimal_svn"], updated["entries"]) == ("2.0", 2, 2)


def test_a_chip_does_not_go_back(maker: Maker, chip: str) -> None:
    with maker.booted(chip, "--image", maker / "2.img"):
        pass
    options = ["--dir", maker / chip, "--credentials", maker / "credentials", "--rate", "0"]
    options += ["--socket", maker / "s", "--address-file", maker / "address"]
    assert fails("chip", "boot", *options, "--image", maker / "1.img") == "chip.image.rollback"
    assert fails("chip", "boot", *options, "--image", maker / "authority.pem") == "chip.image.malformed"
    Path(maker / chip, "firmware.img").write_bytes(Path(maker / "1.img").read_bytes())
    (finding,) = answer("chip", "show", maker / chip, code=1)["findings"]
    assert finding["id"] == "chip.image.rollback"


def test_an_unlocked_chip_says_so_to_whoever_asks(maker: Maker, chip: str) -> None:
    before = answer("chip", "show", maker / chip)["chip"]["firmware"]["measurement"]
    assert weighbridge("chip", "unlock", maker / chip)[0] == 0
    Path(maker / "evil.img").write_bytes(b"anything")
    with maker.booted(chip, "--image", maker / "evil.img") as booted:
        shown = answer(*maker.show(booted["address"]))["chip"]
        code, out, _ = weighbridge(*maker.show(booted["address"]))
    assert (shown["mode"], shown["firmware"]["version"]) == ("debug", "unverified")
    assert shown["firmware"]["measurement"] != before
    assert code == 0
    assert "debug" in out
    assert answer("chip", "show", maker / chip)["chip"]["mode"] == "debug"


def test_a_chip_of_another_manufacturer_is_not_believed(maker: Maker, chip: str, tmp_path: Path) -> None:
    CertificateAuthority.create("Maker").save(tmp_path)
    with maker.booted(chip) as booted:
        line = maker.show(booted["address"])
        line[-1] = str(tmp_path / "authority.pem")
        assert fails(*line) == "identity.chain"
    assert fails(*maker.show("127.0.0.1:9")) == "chip.unreachable"


def test_what_cannot_be_made_is_refused(maker: Maker, chip: str, tmp_path: Path) -> None:
    new, by = str(tmp_path / "new"), ["--manufacturer", maker / ""]
    assert fails("chip", "image", maker / "", "--out", maker / "1.img") == "usage"
    assert fails("chip", "image", maker / "", "--out", new, "--svn", "-1") == "usage"
    assert fails("chip", "image", maker / "", "--out", new, "--payload", "/nonexistent") == "usage"
    assert fails("chip", "image", str(tmp_path), "--out", new).startswith("identity")
    assert fails("chip", "provision", new, *by, "--image", maker / "authority.pem") == "chip.image.malformed"
    assert fails("chip", "provision", new, *by, "--image", maker / "1.img", "--model", "Other") == "chip.image.model"
    assert fails("chip", "provision", new, *by, "--image", "/nonexistent") == "usage"
    assert not Path(new).exists()
    assert fails("chip", "provision", maker / chip, *by) == "usage"
    assert fails("chip", "show", str(tmp_path)) == "chip.device"
    assert fails("chip", "show", "127.0.0.1:9") == "usage"
    assert fails("chip", "unlock", str(tmp_path)) == "chip.device"


def test_provisioning_says_who_it_made(maker: Maker, tmp_path: Path) -> None:
    made = answer("chip", "provision", str(tmp_path / "chip"), "--manufacturer", maker / "", "--model", "WB-9")
    shown = answer("chip", "show", str(tmp_path / "chip"))["chip"]
    assert (shown["ueid"], shown["model"]) == (made["ueid"], "WB-9")
    (tmp_path / "chip" / "firmware.img").unlink()
    (finding,) = answer("chip", "show", str(tmp_path / "chip"), code=1)["findings"]
    assert finding["id"] == "chip.image.missing"
