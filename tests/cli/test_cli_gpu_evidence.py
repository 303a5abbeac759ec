"""Evidence about a device: made on the CPU as the device under test, checked elsewhere, and forged in many ways.

The forger has a key of its own: everything that it changes is signed again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import answer as in_json
from support.command_line import weighbridge as here

from verifier.evidence import bundle
from weighbridge.attest.manifest import SigningKey
from weighbridge.cli.gpu_evidence import verification
from weighbridge.cli.gpu_evidence.places import pairs, places
from weighbridge.cli.gpu_evidence.statement import STATEMENT, Statement, open_statement
from weighbridge.cli.gpu_evidence.verification import verify
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.worker_process import Limits
from weighbridge.numerics.units import identification, injection, probing

SUBJECT = "gpt2-124m-bf16"
Change = Callable[[Statement], Statement]


def weighbridge(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "weighbridge.cli", "gpu-evidence", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The file, and what the command said of it."""
    out = tmp_path_factory.mktemp("evidence") / "cpu.evidence"
    choice = ("--size", "tiny", "--steps", "2", "--only", SUBJECT, "--device", "cpu")
    ran = weighbridge("make", "--out", str(out), *choice, "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return out, json.loads(ran.stdout)


@pytest.fixture
def parts(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "honest").mkdir()
    return bundle.read(made[0], tmp_path / "honest")


def forged(parts: dict[str, Path], out: Path, change: Change, key: SigningKey | None = None) -> Path:
    """Signs a changed statement over the parts as they are now."""
    statement, _ = open_statement(parts[STATEMENT].read_bytes())
    there = {name: path for name, path in parts.items() if name != STATEMENT}
    changed = replace(change(statement), parts=bundle.describe(there))
    parts[STATEMENT].write_bytes(changed.sign(key or SigningKey.generate()))
    bundle.write(out, parts)
    return out


def failures(file: Path, into: Path, sample: int = 10) -> list[str]:
    into.mkdir()
    found = verify(file, into, sample=sample, seed=0, limits=Limits(), progress=lambda *_: None)
    return [claim.says for claim in found.claims if claim.outcome == "failed"]


def with_recording(number: int, **changes: Any) -> Change:
    def change(statement: Statement) -> Statement:
        all_of_them = list(statement.recordings)
        all_of_them[number] = replace(all_of_them[number], **changes)
        return replace(statement, recordings=tuple(all_of_them))

    return change


@pytest.mark.slow
def test_what_was_made_is_verified_elsewhere(made: tuple[Path, dict[str, Any]]) -> None:
    file, said = made
    assert said["matched"] == said["replays"] == len(pairs(places(["cpu"])))
    answer = in_json("gpu-evidence", "verify", file, "--sample", "10", "--key", said["key"])
    assert answer["verified"] == len(places(["cpu"]))
    assert "failed" not in answer
    products = [each for each in answer["claims"] if each["says"].startswith("16-bit products on")]
    assert len(products) == len(answer["places"])
    assert all((each["outcome"] == "claimed") == ("no unit that is declared" in each["says"]) for each in products)
    probed = [each for each in answer["claims"] if "products of the trainings on" in each["says"]]
    assert len(probed) == len(answer["places"])
    compared = [each for each in answer["claims"] if "are those that the transcripts have" in each["says"]]
    assert [each["outcome"] for each in compared] == ["consistent"] * len(answer["places"])
    assert all((each["outcome"] == "claimed") == ("are of no rule" in each["says"]) for each in probed)
    assert answer["signers"] == [said["key"]]
    code, told, _ = here("gpu-evidence", "verify", file, "--sample", "0")
    assert code == 0
    assert "the transcript was not drawn and not replayed" in told
    assert "replays here bit for bit" not in told


@pytest.mark.slow
def test_a_key_that_did_not_sign_is_told(made: tuple[Path, dict[str, Any]]) -> None:
    code, told, _ = here("gpu-evidence", "verify", made[0], "--sample", "0", "--key", "00" * 32)
    assert code == 1
    assert "failed: the key that you named did not sign this" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (with_recording(0, state="ab" * 32), "the last state is"),
        (with_recording(0, rounded=7), "roundings are"),
        (with_recording(0, logged=1 << 40), "entries of the log are"),
        (with_recording(0, transcript="ab" * 32), "another one than is claimed"),
        (with_recording(0, steps=90), "another one than is claimed"),
        (with_recording(0, folder="runs/none"), "manifest"),
    ],
)
def test_what_a_replay_does_not_show_fails(parts: dict[str, Path], tmp_path: Path, change: Change, says: str) -> None:
    found = failures(forged(parts, tmp_path / "forged", change), tmp_path / "read")
    assert any(says in each for each in found), found


@pytest.mark.slow
def test_a_transcript_that_somebody_altered_fails(parts: dict[str, Path], tmp_path: Path) -> None:
    """Its manifest lists its files, so the change shows wherever it is."""
    name = next(name for name in sorted(parts) if "/tapes/" in name)
    data = bytearray(parts[name].read_bytes())
    data[len(data) // 2] ^= 1
    parts[name].write_bytes(data)
    assert failures(forged(parts, tmp_path / "forged", lambda same: same), tmp_path / "read")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"verdict": "mismatch", "says": "step 1"}, "by the signer's own word"),
        ({"state": "ab" * 32}, "to come to another state"),
        ({"followed": 1 << 40}, "than it has entries"),
    ],
)
def test_replays_that_contradict_the_recording_fail(
    parts: dict[str, Path], tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    def change(statement: Statement) -> Statement:
        return replace(statement, replays=(replace(statement.replays[0], **changes), *statement.replays[1:]))

    found = failures(forged(parts, tmp_path / "forged", change), tmp_path / "read", sample=0)
    assert [says in each for each in found] == [True]


@pytest.mark.slow
def test_products_that_no_unit_returns_are_told_apart(parts: dict[str, Path], tmp_path: Path) -> None:
    def change(statement: Statement) -> Statement:
        units = {name: {**said, "long": "3f80" * 1024} for name, said in statement.units.items()}
        return replace(statement, units=units)

    (tmp_path / "read").mkdir()
    file = forged(parts, tmp_path / "forged", change)
    found = verify(file, tmp_path / "read", sample=0, seed=0, limits=Limits(), progress=lambda *_: None)
    said = [claim.says for claim in found.claims if "16-bit products" in claim.says]
    assert said
    assert all("no known order" in each or "no unit that is declared" in each for each in said)


H100 = injection.Injected("h100")


def as_on(device: injection.Injected, others: Mapping[str, str] = {}) -> Change:
    """What a device with that unit would have returned; some products as another text says."""

    def change(statement: Statement) -> Statement:
        units = {}
        for place, said in statement.units.items():
            short, long = (device.product(*identification.operands(k)).bfloat16() for k in (64, 4096))
            made = {"short": identification._text(short), "long": identification._text(long)}
            for name in said.keys() - made.keys():
                made[name] = probing.returned(probing.read(name), device.product)
            units[place] = made | dict(others)
        return replace(statement, units=units)

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "outcome", "says"),
    [
        (as_on(H100), "consistent", "unit-h100 could be declared for these products, all in one chain"),
        (
            as_on(H100, {"bf16 8x64x8 nn": probing.returned(probing.Product("bf16 8x64x8"), torch.matmul)}),
            "claimed", "unit 'h100' cannot be declared for this device: bf16 8x64x8 nn: no rule fits",
        ),
        (as_on(H100, {"bf16 8x64x8 nn": "00"}), "failed", "this is no result of bf16 8x64x8 nn"),
        (as_on(H100, {"bf16 8x64x8": "00"}), "failed", "is no product that can be probed"),
    ],
)  # fmt: skip
def test_the_rule_of_each_product_is_told(
    parts: dict[str, Path], tmp_path: Path, change: Change, outcome: str, says: str
) -> None:
    (tmp_path / "read").mkdir()
    file = forged(parts, tmp_path / "forged", change)
    found = verify(file, tmp_path / "read", sample=0, seed=0, limits=Limits(), progress=lambda *_: None)
    assert any(claim.outcome == outcome and says in claim.says for claim in found.claims), found.claims


def with_products(change: Callable[[dict[str, str]], None]) -> Change:
    def changed(statement: Statement) -> Statement:
        units = {place: dict(said) for place, said in statement.units.items()}
        for said in units.values():
            change(said)
        return replace(statement, units=units)

    return changed


def a_product_less(said: dict[str, str]) -> None:
    del said[min(said.keys() - {"short", "long"})]


def a_product_more(said: dict[str, str]) -> None:
    said["bf16 8x64x8 nn"] = probing.returned(probing.Product("bf16 8x64x8"), torch.matmul)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (a_product_less, "is not among those that were probed"),
        (a_product_more, "bf16 8x64x8 nn was probed, and is not among the transcripts'"),
    ],
)
def test_products_that_are_not_those_of_the_transcripts_fail(
    parts: dict[str, Path], tmp_path: Path, change: Callable[[dict[str, str]], None], says: str
) -> None:
    """A signer that leaves out the products of which its device has no rule, or probes friendlier ones."""
    found = failures(forged(parts, tmp_path / "forged", with_products(change)), tmp_path / "read", sample=0)
    assert found
    assert all(says in each for each in found), found


@pytest.mark.slow
def test_what_this_verifier_lacks_accuses_no_party(
    parts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*_: object, **__: object) -> None:
        raise WeighbridgeError("no such table here", code="replay.calibration.unknown")

    monkeypatch.setattr(verification, "replay", lacking)
    assert failures(forged(parts, tmp_path / "forged", lambda same: same), tmp_path / "read") == []


@pytest.mark.slow
def test_markup_in_a_name_is_printed_as_it_is(parts: dict[str, Path], tmp_path: Path) -> None:
    def change(statement: Statement) -> Statement:
        name = "x[/y]"
        places = {**statement.places, name: {"kind": name}}
        return with_recording(0, place=name, subject=name)(replace(statement, places=places))

    code, told, error = here("gpu-evidence", "verify", forged(parts, tmp_path / "forged", change), "--sample", "2")
    assert code == 0, error
    assert "x[/y]" in told


@pytest.mark.slow
def test_a_part_that_was_not_signed_is_refused(parts: dict[str, Path], tmp_path: Path) -> None:
    name = next(name for name in sorted(parts) if name != STATEMENT)
    parts[name].write_bytes(parts[name].read_bytes() + b"\0")
    bundle.write(tmp_path / "altered", parts)
    (tmp_path / "read").mkdir()
    with pytest.raises(WeighbridgeError) as caught:
        verify(tmp_path / "altered", tmp_path / "read", sample=0, seed=0, limits=Limits(), progress=lambda *_: None)
    assert caught.value.reason == "evidence.altered"
    assert name in caught.value.message


def test_a_wrong_choice_is_told(tmp_path: Path) -> None:
    for arguments, says in (
        (("--only", "bert"), "--only takes gpt2-124m"),
        (("--size", "huge"), "--size takes full or tiny"),
        (("--device", "tpu"), "--device takes cpu"),
    ):
        code, _, error = here("gpu-evidence", "make", "--out", tmp_path / "x", *arguments)
        assert code == 2
        assert says in error
