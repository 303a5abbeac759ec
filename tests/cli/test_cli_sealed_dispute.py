"""Disputes whose referee is a sealed worker, by commands: what leaves it, and what parties and readers make of that."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import disputed
from support.command_line import fails
from support.forging import forge
from support.recording_store import RecordingStore
from support.sealed_isolation import LACKING
from support.sealed_parties import PARTIES, Court, Seated

from weighbridge.attest.sealed_dispute import Admission
from weighbridge.attest.sealed_ruling import FILE_LIMIT, RULING_SIZE, SealedDispute
from weighbridge.execution.dispute import sealed_files
from weighbridge.execution.dispute.asking import split
from weighbridge.execution.sealed import image as images
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape

WINDOW = 64

pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"NOT TESTED: this machine does not permit {LACKING}")


@pytest.fixture(scope="module")
def run(recordings: RecordingStore) -> Path:
    return recordings.get("disputed", disputed.record)


@pytest.fixture(scope="module")
def forged(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, with a record of the disputed step that names a result which its operation did not have."""

    def change(step: int, _: Tape, fields: dict[str, Any]) -> None:
        if step == disputed.STEP:
            sums = bytearray(fields["checksums"])
            sums[8 * 5 + 2] ^= 1
            fields["checksums"] = bytes(sums)

    return forge(run, tmp_path_factory.mktemp("forged") / "run", change)


@pytest.fixture(scope="module")
def court(sealed_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Court:
    return Court(tmp_path_factory.mktemp("court") / "parties", sealed_image)


@pytest.fixture(scope="module")
def judged(court: Court, run: Path, forged: Path) -> Seated:
    """A dispute between an honest training and one with a forged record, to its end."""
    seated = court.seated((run, forged), theirs=False, options="--show-class")
    done = seated.judged()
    assert done.returncode == 0, done.stdout
    return seated


def test_a_liar_is_false_and_a_reader_learns_what_follows(judged: Seated) -> None:
    said = judged.verified(code=1)
    assert said["claims"] == [
        {"party": "challenger", "verdict": "admissible"}, {"party": "defender", "verdict": "false"},
    ]  # fmt: skip
    assert (said["status"], said["challenger"]) == ("complete", judged.court.public("challenger"))
    assert said["operation"] != "none"
    assert said["only_the_sealed_worker_supports"]
    disclosed = said["disclosed"]
    assert (disclosed["bytes"], disclosed["bits_at_most"]) == (RULING_SIZE, 9)
    ends = [row["offset"] + row["length"] for row in disclosed["ledger"]]
    assert [0, *ends[:-1]] == [row["offset"] for row in disclosed["ledger"]]
    assert ends[-1] == RULING_SIZE
    for words in ("dispute show", "dispute judge --key own.key", "dispute answer"):
        kind, *options = words.split()[1:]
        more = [judged.court.root] if kind == "answer" else []
        key = ["--key", "own.key"] if kind == "answer" else options
        told = judged.court.run("challenger", f"dispute {kind} {judged.name}.dispute", *more, *key, code=2)
        assert "sealed dispute" in told
    assert "--root" in judged.court.run("challenger", f"dispute verify {judged.name}.dispute", code=2)
    told = judged.court.run("defender", f"dispute verify {judged.name}.dispute --root root.pem", code=1)
    assert "only the sealed worker supports" in told


def test_nothing_of_what_parties_gave_is_at_the_site_or_in_what_they_received(judged: Seated) -> None:
    """No window of 64 bytes, no leaf hash, no digest of a state, a record, a log or a program, and no step."""
    at, n = judged.court.root, judged.name
    received = [path.read_bytes() for path in (at / "site").rglob("*") if path.is_file()]
    for party, other in (PARTIES, PARTIES[::-1]):
        names = (f"{n}.terms", f"{n}.{other}.seat", f"{n}.attestation", f"{n}.dispute")
        received += [(at / party / name).read_bytes() for name in names]
    assert len(received) > 12
    for party in PARTIES:
        inputs = at / party / f"{n}.inputs"
        secrets = [path for path in inputs.rglob("*") if path.is_file() and path.stat().st_size >= WINDOW]
        assert len(secrets) > 5
        for path in secrets:
            content = path.read_bytes()
            windows = [content[i : i + WINDOW] for i in range(0, len(content) - WINDOW + 1, WINDOW)]
            assert not any(window in each for window in windows if any(window) for each in received), path
        claim = sealed_files.claim(inputs)
        record = StepRecord.from_cbor(claim.record)
        values = [*split(claim.leaves), claim.state, claim.log, record.state, record.batch, record.tape]
        opens = (inputs / sealed_files.SUBJECT).read_bytes()[8:]
        values += [opens[at : at + 32] for at in range(0, len(opens), 32)]  # among them the digests of both manifests
        hidden = {each for value in values for each in (value, value.hex().encode())}
        assert not any(each in data for each in hidden for data in received)
    assert len((at / "site" / f"{n}.out" / "dispute").read_bytes()) < FILE_LIMIT


def test_seats_run_once(judged: Seated) -> None:
    """They lie beside the attestation: a party that was sent another seat of the other one can send its files still."""
    out = judged.court.root / "site" / f"{judged.name}.out"
    for party in PARTIES:
        seat = judged.court.root / party / f"{judged.name}.{party}.seat"
        assert (out / f"{party}.seat").read_bytes() == seat.read_bytes()
    out.rename(out.with_suffix(".first"))
    try:
        done = judged.judged()
        assert (done.returncode, "sealed.nonce" in done.stdout) == (2, True), done.stdout
    finally:
        shutil.rmtree(out)
        out.with_suffix(".first").rename(out)


@pytest.mark.finding("dispute.sealed")
def test_an_old_ruling_is_none_of_another_dispute(judged: Seated, run: Path) -> None:
    """Its parties would say that the ruling is about what they dispute now, or was made elsewhere or otherwise."""
    at = judged.court.root / "challenger"
    found = SealedDispute.from_cbor((at / f"{judged.name}.dispute").read_bytes())
    other = judged.court.seated((run, run))
    terms, *seats = (
        (at / f"{other.name}.{name}").read_bytes() for name in ("terms", "challenger.seat", "defender.seat")
    )
    admission = Admission(terms=terms, challenger=seats[0], defender=seats[1])
    flipped = bytes([*found.ruling[:35], found.ruling[35] ^ 3, *found.ruling[36:]])
    for name, forgery in (
        ("played-back", replace(found, admission=admission)),
        ("another-verdict", replace(found, ruling=flipped)),
    ):
        (at / name).write_bytes(forgery.to_cbor())
        assert "weighbridge: " in judged.court.run("challenger", f"dispute verify {name} --root root.pem", code=2)
    (at / "stranger.pem").write_bytes(type(judged.court.maker).create("Another authority").pem)
    said = judged.court.run("challenger", f"dispute verify {judged.name}.dispute --root stranger.pem", code=2)
    assert "sealed.attestation" in said


@pytest.fixture(scope="module")
def stalled(court: Court, run: Path) -> Seated:
    """A dispute about the defender's record in which the defender's files are cut off half-way."""
    seated = court.seated((run, run))

    def lanes(seated: Seated) -> dict[str, bytes]:
        whole = {party: seated.lane(party).read_bytes() for party in PARTIES}
        return whole | {"defender": whole["defender"][: len(whole["defender"]) // 2]}

    done = seated.judged(lanes)
    assert done.returncode == 0, done.stdout
    return seated


def test_silence_is_forfeit_and_nothing_else_is_said(stalled: Seated) -> None:
    said = stalled.verified(code=1)
    assert said["claims"] == [{"party": "defender", "verdict": "forfeit"}]
    assert (said["operation"], said["disclosed"]["bits_at_most"]) == ("none", 5)


@pytest.mark.finding("sealed.image")
def test_an_image_that_differs_by_a_byte_judges_nothing(court: Court, run: Path, tmp_path: Path) -> None:
    altered = tmp_path / "image"
    shutil.copytree(court.image, altered, copy_function=os.link)
    module = altered / images.FILES / "code" / "weighbridge" / "execution" / "workers" / "sealed_referee.py"
    source, changed = module.read_bytes(), module.stat().st_mtime_ns
    module.unlink()
    module.write_bytes(source[:-1] + b" ")
    os.utime(module, ns=(changed, changed))
    done = court.seated((run, run)).judged(image=altered)
    assert (done.returncode, "sealed.image" in done.stdout) == (2, True), done.stdout


def test_a_party_takes_one_seat_and_gives_its_files_once(judged: Seated) -> None:
    """With a second seat of other files, or a second worker, it could choose between two rulings."""
    n, at = judged.name, judged.court.root / "defender"
    shutil.copytree(at / f"{n}.inputs", at / "again.inputs")
    again = f"--terms {n}.terms --key own.key --sealed-key sealed.key --book book --out again.seat"
    assert "another seat" in judged.court.run("defender", f"dispute sealed seat again.inputs {again}", code=2)
    spent = "--dispute-bits 8 --book other.book"
    fresh = judged.court.run(
        "defender", f"dispute sealed seat again.inputs {again.replace('--book book', spent)}", code=2
    )  # fmt: skip
    assert "another seat" in fresh or "outcome.budget" in fresh
    said = json.loads(judged.court.run("defender", f"dispute sealed show --terms {n}.terms --json"))
    assert (said["bits_at_most"], said["shows_class"]) == (9, True)


def test_commands_refuse_what_does_not_fit(judged: Seated, run: Path, tmp_path: Path) -> None:
    n, court = judged.name, judged.court
    at = court.root / "defender"
    (at / "other.subject").write_bytes(bytes(40))
    (at / "other.subject").chmod(0o600)
    gather = f"dispute sealed gather --terms {n}.terms --out never --subject"
    assert "opens the subject of other terms" in court.run("defender", f"{gather} other.subject", run, code=2)
    assert "you would forfeit" in court.run("challenger", f"{gather} {n}.subject --theirs", run, code=2)
    assert fails("dispute", "verify", tmp_path / "none", "--root", court.root / "defender" / "root.pem") == "usage"
