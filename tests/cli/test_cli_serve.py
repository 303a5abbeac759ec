"""`weighbridge serve`, started by the console script: it says where it answers, and ends in order when asked to."""

from __future__ import annotations

import json
import signal
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from firmware_sim.device import builtin_image
from protos.weighbridge.v1 import prover_pb2, prover_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from weighbridge.attest.firmware_image import FirmwareSigner
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.cli.main import run
from weighbridge.rpc import endpoints

SCRIPT = Path(sysconfig.get_path("scripts")) / "weighbridge"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Credentials of both services and of those who call them, a manufacturer's root and a firmware image."""
    path = tmp_path_factory.mktemp("site")
    authority, maker = CertificateAuthority.create("Station"), CertificateAuthority.create("Chips")
    for role in ("prover", "verifier", "operator"):
        authority.issue_role(role, "one").save(path / role)
    maker.save(path / "maker")
    (path / "firmware.img").write_bytes(FirmwareSigner.of(path / "maker").sign(builtin_image()))
    (path / "runs").mkdir()
    return path


def options(site: Path, role: str) -> list[str]:
    own = ["--credentials", str(site / role)]
    if role == "prover":
        return [*own, "--runs", str(site / "runs")]
    return [
        *own, "--db", str(site / "db"), "--cache", str(site / "cache"),
        *("--manufacturer", str(site / "maker" / "authority.pem"), "--firmware", str(site / "firmware.img")),
    ]  # fmt: skip


def asked(site: Path, role: str, address: str) -> Any:
    """One call of each service by a role that may make it."""
    caller = Credentials.load(site / {"prover": "verifier", "verifier": "operator"}[role])
    with endpoints.channel(address, caller, role) as channel:
        if role == "prover":
            prover = prover_pb2_grpc.ProverServiceStub(channel)  # type: ignore[no-untyped-call]
            return list(endpoints.call(prover.ListTranscripts, prover_pb2.ListTranscriptsRequest()).transcripts)
        verifier = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        return list(endpoints.call(verifier.ListChips, verifier_pb2.ListChipsRequest()).chips)


@pytest.mark.parametrize("role", ["prover", "verifier"])
def test_a_service_says_where_it_answers_and_ends_in_order(site: Path, role: str) -> None:
    command = [str(SCRIPT), "serve", role, *options(site, role), "--address-file", str(site / f"{role}.address")]
    process = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = "".join(iter(process.stdout.readline, "}\n")) + "}"
        address = json.loads(said)["address"]
        assert (site / f"{role}.address").read_text() == address
        assert asked(site, role, address) == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("role", "wrong"),
    [("prover", ["--streams", "x"]), ("verifier", ["--replay-memory", "0"]), ("verifier", ["--replay-seconds", "0"])],
)
def test_options_that_make_no_sense_are_bad_usage(
    site: Path, role: str, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", role, *options(site, role), *wrong]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("weighbridge: usage: ")
    assert wrong[0] in said.err


def test_help_has_the_options_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "verifier", "--help"]) == 0
    groups = {block.partition(":")[0]: block for block in capsys.readouterr().out.split("\n\n")}
    assert "--db" in groups["Options"]
    assert "--rule-set" in groups["Rules and reports"]
    assert "--farm" in groups["Replays"]
    assert "--cache-bytes" in groups["Cache of transcripts"]
    assert "--streams" in groups["Limits of each caller's certificate"]
