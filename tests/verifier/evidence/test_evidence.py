"""Evidence that stands alone: what was exported verifies offline, and nothing that was changed or swapped does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.command_line import answer, fails, weighbridge
from support.inspected_station import Inspected, inspected
from support.train_job import SNAPSHOT_IN, batch_of

from verifier.console.evidence_files import EvidenceFiles
from verifier.evidence import bundle, verification
from verifier.evidence.bundle import EvidenceError
from verifier.evidence.export import Source
from verifier.evidence.verification import Claim, Reader
from verifier.registry import Registry
from verifier.report import signing
from verifier.store.cache import Cache
from weighbridge.attest.certificates import load_certificate
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.cli.main import run
from weighbridge.core.errors import WeighbridgeError
from weighbridge.transcript.reader import Transcript

OFFLINE = """
import socket, sqlite3, sys
import sqlalchemy
def refuse(*_, **__): raise AssertionError("evidence is verified without network and database")
socket.socket.connect = refuse
sqlite3.connect = sqlite3.dbapi2.connect = refuse
sqlalchemy.create_engine = sqlalchemy.engine.create_engine = refuse
from weighbridge.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Inspected:
    return inspected(tmp_path_factory.mktemp("inspected"))


def export(source: Inspected, out: Path, *what: str, inspection: int = 0) -> Path:
    """Exports by the command line, as an operator does."""
    arguments = ["evidence", "export", source.inspections[inspection], "--out", str(out), *what, "--db", str(source.db)]
    assert run([*arguments, "--cache", str(source.cache), "--manufacturer", str(source.manufacturer)]) == 0
    return out


@pytest.fixture(scope="module")
def files(source: Inspected, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A clean snapshot, the same of the second inspection, and two findings, as bundles."""
    root = tmp_path_factory.mktemp("evidence")
    clean = ("--snapshot", f"{source.ueids['honest']}:{source.chip('honest')['snapshots'][0]['index']}")
    return {
        "clean": export(source, root / "clean.zip", *clean),
        "later": export(source, root / "later.zip", *clean, inspection=1),
        "hidden": export(source, root / "hidden.zip", "--finding", str(source.finding("snapshot.unexplained"))),
        "altered": export(source, root / "altered.zip", "--finding", str(source.finding("replay.mismatch"))),
    }


def offline(source: Inspected, file: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Verifies a bundle in a process that can open no connection and no database, away from the station's files."""
    command = [sys.executable, "-c", OFFLINE, "evidence", "verify", str(file), "--key", source.key.read_text().strip()]
    command += ["--manufacturer", str(source.manufacturer), "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=900)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def outcomes(said: dict[str, Any]) -> dict[str, str]:
    return {each["claim"]: each["outcome"] for each in said["claims"]}


@pytest.mark.parametrize("name", ["clean", "hidden", "altered"])
def test_honest_evidence_verifies_offline(name: str, source: Inspected, files: dict[str, Path]) -> None:
    code, said = offline(source, files[name])
    assert set(outcomes(said).values()) == {"verified"}, said
    assert (code, said["failed"], said["not contained"]) == (0, 0, 0)
    says = {each["claim"]: each["says"] for each in said["claims"]}
    assert {"clean": "explained", "hidden": "unexplained", "altered": "mismatch"}[name] in says["replay"]
    assert "this chip was drawn" in says["draw"]


def test_what_is_left_out_is_said_and_can_be_handed_in(
    source: Inspected, files: dict[str, Path], tmp_path: Path
) -> None:
    index = source.chip("honest")["snapshots"][0]["index"]
    what = ("--snapshot", f"{source.ueids['honest'][2:12]}:{index}", "--max-transcript", "0")
    file = export(source, tmp_path / "small.zip", *what)
    assert file.stat().st_size < files["clean"].stat().st_size
    code, said = offline(source, file)
    assert (code, outcomes(said)["replay"], said["failed"]) == (0, "not contained", 0)
    transcript = source.cache / source.chip("honest")["snapshots"][0]["transcript"]
    code, said = offline(source, file, "--transcript", str(transcript))
    assert (code, outcomes(said)["replay"]) == (0, "verified")
    other = source.cache / source.chip("altered")["snapshots"][0]["transcript"]
    code, said = offline(source, file, "--transcript", str(other))
    assert (code, outcomes(said)["replay"]) == (1, "failed")


def read(file: Path, root: Path) -> dict[str, Path]:
    root.mkdir()
    return bundle.read(file, root)


def reader(source: Inspected, **changes: Any) -> Reader:
    key = bytes.fromhex(source.key.read_text().strip())
    manufacturer = load_certificate(source.manufacturer.read_bytes())
    return replace(Reader(key=key, manufacturer=manufacturer, replay=False), **changes)


def failed(claims: list[Claim]) -> dict[str, list[str]]:
    return {each.name: [finding.id for finding in each.findings] for each in claims if each.outcome == "failed"}


def resigned(source: Inspected, parts: dict[str, Path], root: Path, **changes: Any) -> list[Claim]:
    """Has a Verifier who lies sign a bundle whose parts were changed, and returns what comes of it."""
    statement, _ = bundle.open_statement(parts["evidence.dsse"].read_bytes())
    listed = bundle.describe({name: path for name, path in parts.items() if name != "evidence.dsse"})
    key = signing.load_key(source.db.with_name(source.db.name + ".report-key"))
    parts["evidence.dsse"].write_bytes(replace(statement, parts=listed).sign(key))
    out = root.with_suffix(".zip")
    bundle.write(out, parts)
    again = root.with_suffix(".again")
    return verification.verify(read(out, again), again, reader(source, **changes))


@pytest.mark.finding("evidence.mismatch")
@pytest.mark.parametrize(
    ("other", "swapped", "claim"),
    [
        ("later", "report.dsse", "report"),
        ("later", "draw/", "draw"),
        ("hidden", "chip/", "log"),
        ("hidden", "registry/", "custody"),
        ("altered", "chip/opening.cbor", "replay"),
        ("altered", "transcript/", "replay"),
        ("hidden", "index.html", "page"),
    ],
)
def test_parts_of_another_inspection_or_chip_do_not_fit(
    other: str, swapped: str, claim: str, source: Inspected, files: dict[str, Path], tmp_path: Path
) -> None:
    """Also if the Verifier itself signs the mixture."""
    parts, foreign = read(files["clean"], tmp_path / "one"), read(files[other], tmp_path / "two")
    assert failed(resigned(source, dict(parts), tmp_path / "same")) == {}, "the same parts signed anew verify"
    for name in [name for name in parts if name.startswith(swapped)]:
        parts.pop(name).unlink()
    for name, path in foreign.items():
        if name.startswith(swapped):
            parts[name] = tmp_path / "one" / name
            parts[name].parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, parts[name])
    found = failed(resigned(source, parts, tmp_path / "mixed", replay=claim == "replay"))
    assert claim in found, found


@pytest.mark.finding("evidence.replay.differs")
def test_a_report_that_calls_a_mismatch_explained_is_caught_by_the_replay(
    source: Inspected, files: dict[str, Path], tmp_path: Path
) -> None:
    """A Verifier that lies about one snapshot, and whose bundle otherwise follows."""
    parts = read(files["altered"], tmp_path / "one")
    report = signing.open_report(parts["report.dsse"].read_bytes()).report
    subject = bundle.open_statement(parts["evidence.dsse"].read_bytes())[0].subject
    (chip,) = (each for each in report["chips"] if each["ueid"] == subject.chip)
    (row,) = (each for each in chip["snapshots"] if each["index"] == subject.entry)
    row["status"] = "explained"
    key = signing.load_key(source.db.with_name(source.db.name + ".report-key"))
    parts["report.dsse"].write_bytes(signing.sign(report, key))
    found = failed(resigned(source, parts, tmp_path / "lied", replay=True))
    assert "report.inconsistent" in found["report"], "the counts no longer follow"
    assert "evidence.replay.differs" in found["replay"]


@pytest.mark.finding("evidence.signer")
def test_another_verifiers_key_is_not_enough(source: Inspected, files: dict[str, Path], tmp_path: Path) -> None:
    parts = read(files["clean"], tmp_path / "one")
    assert failed(verification.verify(parts, tmp_path / "one", reader(source))) == {}
    found = failed(verification.verify(parts, tmp_path / "one", reader(source, key=bytes(32))))
    assert found == {"statement": ["evidence.signer"], "report": ["report.signer"]}


@pytest.mark.finding("evidence.altered")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_byte_can_change(
    data: st.DataObject, source: Inspected, files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Law: whichever byte of a bundle changes, in a part or around the parts, it does not verify."""
    root = tmp_path_factory.mktemp("byte")
    content = bytearray(files["hidden"].read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    (root / "file.zip").write_bytes(content)
    with pytest.raises(WeighbridgeError) as caught:
        verification.verify(read(root / "file.zip", root / "parts"), root / "parts", reader(source))
    assert caught.value.reason in ("evidence.altered", "evidence.malformed", "document.signature", "document.malformed")


def test_a_part_that_is_not_listed_or_missing_is_noticed(
    source: Inspected, files: dict[str, Path], tmp_path: Path
) -> None:
    for number, change in enumerate((lambda parts: parts.pop("index.html"), _add)):
        root = tmp_path / str(number)
        root.mkdir()
        parts = read(files["hidden"], root / "parts")
        change(parts)
        with pytest.raises(EvidenceError) as caught:
            verification.verify(parts, root / "parts", reader(source))
        assert caught.value.reason == "evidence.altered"


def _add(parts: dict[str, Path]) -> None:
    extra = parts["index.html"].with_name("extra")
    extra.write_text("x")
    parts["extra"] = extra


def test_commands_say_what_is_wrong_in_one_line(
    source: Inspected, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--db", str(source.db), "--cache", str(source.cache), "--manufacturer", str(source.manufacturer)]
    start = ["evidence", "export", source.inspections[0], *place, "--out"]
    for more, message in (
        ([str(tmp_path / "a")], "name either a finding"),
        ([str(tmp_path / "b"), "--finding", "9999"], "numbered from 0"),
        ([str(tmp_path / "c"), "--snapshot", "abc"], "CHIP:ENTRY"),
        ([str(tmp_path / "d"), "--snapshot", "ffff:0"], "names 0 of the drawn chips"),
        ([str(files["clean"]), "--finding", "0"], "cannot write"),
    ):
        assert run([*start, *more]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    check = ["evidence", "verify", "--key", str(source.key), "--manufacturer", str(source.manufacturer)]
    assert run([*check, str(files["hidden"]), "--no-replay", "--page", str(tmp_path / "page.html")]) == 0
    assert "verified: draw: " in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text()
    assert "A violation was found" in page
    assert "http" not in page.replace("http-equiv", "")
    (tmp_path / "none").write_bytes(b"PK")
    assert run([*check, str(tmp_path / "none")]) == 2
    assert "evidence.malformed" in capsys.readouterr().err


def test_the_console_hands_out_the_same_evidence(source: Inspected, files: dict[str, Path], tmp_path: Path) -> None:
    """What a click downloads is what the command exports, but for the time at which it was put together."""
    reading = Registry(source.db, read_only=True)
    evidence = EvidenceFiles(
        Source(
            registry=reading,
            cache=Cache(source.cache, read_only=True),
            report_key=signing.load_key(source.key.with_suffix("")),
            manufacturer=load_certificate(source.manufacturer.read_bytes()),
        )
    )
    entry = source.chip("honest")["snapshots"][0]["index"]
    clean = evidence.write(source.inspections[0], finding=None, snapshot=(source.ueids["honest"], entry))
    found, expected = (
        {name: path.read_bytes() for name, path in bundle.read(file, tmp_path / where).items()}
        for file, where in ((clean, "found"), (files["clean"], "expected"))
    )
    shutil.rmtree(clean.parent)
    reading.close()
    assert set(found) == set(expected)
    assert {name for name in found if found[name] != expected[name]} <= {bundle.STATEMENT, "index.html"}


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Those of both parties to a dispute and of its referee."""
    made = tuple(tmp_path / name for name in ("mine", "theirs", "referee"))
    assert all(run(["rules", "key", str(path)]) == 0 for path in made)
    return made[0], made[1], made[2]


def batch(path: Path, *, changed: bool = False) -> Path:
    """Writes what the model was given in the step of the snapshot, which the chip had in memory."""
    data = bytearray(batch_of(SNAPSHOT_IN - 1)["x"].numpy().tobytes())
    data[1500] ^= changed
    path.write_bytes(data)
    return path


def test_what_a_chip_had_in_memory_is_claimed_out_of_evidence(
    source: Inspected, files: dict[str, Path], keys: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """The batch of the step of the snapshot, and the weights before it; not a changed batch, nor earlier weights.

    A false claim needs what the chip had and what it had not, and another program than the command:
    `tests/weighbridge/execution/dispute/test_memory_disputes.py`.
    """
    mine, theirs, referee = keys
    training = source.root / "honest"
    sizes = {name: data.numel() for name, data in Transcript.open(training).checkpoint(SNAPSHOT_IN).storages.items()}
    region = max(sizes, key=lambda name: sizes[name])
    data = bytearray(batch_of(SNAPSHOT_IN - 1)["x"].numpy().tobytes())
    (held := tmp_path / "batch").write_bytes(data)
    data[1500] ^= 1
    (altered := tmp_path / "altered").write_bytes(data)

    def about(name: str, *where: str) -> tuple[str | Path, ...]:
        files_of = ("--evidence", files[name], "--manufacturer", source.manufacturer, "--key", mine)
        return (*files_of, *where, "--out", tmp_path / "none")

    state = ("--step", str(SNAPSHOT_IN), "--region")
    for refused in (
        (altered, *about("clean")),
        (held, *about("hidden")),
        (training, *about("clean")),
        (training, *about("clean", *state, "none")),
        (training, *about("clean", "--step", str(SNAPSHOT_IN - 2), "--region", region)),
    ):
        assert fails("dispute", "memory", *refused) == "usage"
    claims = ((held, held, (), ()), (training, training, (*state, region), ()), (training, held, (), ("--decline",)))
    for number, (claimed, shown, where, decline) in enumerate(claims):
        file = tmp_path / f"{number}.dispute"
        where = (*state, region) if claimed == training else where
        answer("dispute", "memory", claimed, *about("clean", *where)[:-1], file)
        if claimed == training:
            assert weighbridge("dispute", "answer", file, source.root / "altered", "--key", theirs)[0] == 1
        assert answer("dispute", "answer", file, shown, "--key", theirs, *decline)["sent"] == "doubt"
        said = answer("dispute", "judge", file, "--key", referee)
        codes = [(each["party"], each["verdict"], each["code"]) for each in said["claims"]]
        assert codes == [("challenger", "undecided", "dispute.memory.granted")]
        checked = answer("dispute", "verify", file, "--root", source.manufacturer)
        assert checked["agrees"]
        assert source.ueids["honest"] in checked["snapshot"]
        assert "not checked" not in checked["snapshot"]
        assert "not checked" in answer("dispute", "verify", file)["snapshot"]
    other = tmp_path / "other"
    CertificateAuthority.create("Another manufacturer").save(other)
    assert weighbridge("dispute", "verify", file, "--root", other / "authority.pem")[0] != 0
