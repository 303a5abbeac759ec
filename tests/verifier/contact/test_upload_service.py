"""Provers that hand transcripts to a Verifier's process: hostile ones, ones that break off, an inspection over it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from support.breaking_network import breaking
from support.damage import flipped
from support.exactly import exactly, found
from support.kills import Verifier
from support.station import ROOT, Station, service
from support.untrained_transcripts import write_transcript
from support.uploading import Request, end, files_of, header, messages, refused, resigned, send

from protos.weighbridge.v1 import verifier_pb2, verifier_pb2_grpc
from prover.keeping.upload import Upload, VerifierUnreachableError, upload
from weighbridge.attest.identity import Credentials
from weighbridge.core.errors import WeighbridgeError
from weighbridge.rpc import endpoints

FILES = 12
"""What a certificate may keep at the Verifier of most tests."""


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    with Station(tmp_path_factory.mktemp("station")) as station:
        yield station


@pytest.fixture(scope="module")
def address(station: Station) -> Iterator[str]:
    root = station.root
    arguments = [
        *("--db", str(root / "uploads.db"), "--cache", str(root / "cache"), "--credentials", str(root / "verifier")),
        *("--manufacturer", str(root / "manufacturer.pem"), "--firmware", str(root / "firmware.img")),
        *("--upload-files", str(FILES), "--idle-seconds", "2"),
    ]
    with service("serve verifier", arguments, root / "uploads.address") as address:
        yield address


@contextmanager
def stub_of(address: str, credentials: Credentials) -> Iterator[Any]:
    with endpoints.channel(address, credentials, "verifier") as channel:
        yield verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]


@pytest.fixture
def prover(station: Station) -> Credentials:
    """A Prover that has uploaded nothing yet."""
    return station.authority.issue_role("prover", "p")


@pytest.fixture
def stub(address: str, prover: Credentials) -> Iterator[Any]:
    with stub_of(address, prover) as stub:
        yield stub


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bytes]]:
    """A transcript's identifier and files."""
    path = tmp_path_factory.mktemp("runs") / "run"
    identifier = write_transcript(path)
    files = files_of(path)
    assert 4 < len(files) < FILES < 2 * len(files)
    return identifier, files


def there(station: Station) -> list[str]:
    """What lies in the Verifier's cache directory."""
    return sorted(p.relative_to(station.root / "cache").as_posix() for p in (station.root / "cache").rglob("*.*"))


@pytest.fixture
def unchanged(station: Station, address: str) -> Iterator[None]:
    """Nothing of what a test sends is kept, and operators are served after it."""
    before = there(station)
    yield
    assert there(station) == before
    with stub_of(address, station.operator) as operator:
        endpoints.call(operator.ListChips, verifier_pb2.ListChipsRequest())


def test_only_provers_upload(
    station: Station, address: str, run: tuple[str, dict[str, bytes]], unchanged: None
) -> None:
    for role in ("operator", "verifier", "chip"):
        with stub_of(address, station.authority.issue_role(role, "x")) as stub:
            assert refused(stub, messages(*run)) == ("PERMISSION_DENIED", "identity.role")


def test_an_honest_upload_is_whole_and_others_do_not_see_it(
    station: Station, address: str, stub: Any, run: tuple[str, dict[str, bytes]]
) -> None:
    answer = send(stub, messages(*run, size=1000))
    assert (answer.received, answer.complete) == (sum(map(len, run[1].values())), True)
    (status,) = endpoints.stream(stub.UploadStatus, verifier_pb2.UploadStatusRequest(id=run[0]))
    assert status.complete
    assert (station.root / "cache" / run[0] / "draft.cbor").is_file()
    with stub_of(address, station.authority.issue_role("prover", "q")) as other:
        (status,) = endpoints.stream(other.UploadStatus, verifier_pb2.UploadStatusRequest(id=run[0]))
        assert (status.complete, list(status.files)) == (False, [])
    assert refused(stub, messages(*run)) == ("INVALID_ARGUMENT", "transcript.upload.order")  # replayed


@pytest.mark.finding("transcript.upload.path")
def test_a_path_that_the_manifest_does_not_list(stub: Any, run: tuple[str, dict[str, bytes]], unchanged: None) -> None:
    identifier, files = run
    for path in ("../../evil", "/etc/evil", "steps/../../evil", "notes.txt", "manifest.json/x", "nul\x00"):
        tricky = {"manifest.json": files["manifest.json"], path: b"evil"}
        assert refused(stub, messages(identifier, tricky)) == ("INVALID_ARGUMENT", "transcript.upload.path")
    forged, text = resigned(files["manifest.json"], [("a", 1, "0" * 64), ("a/b", 1, "0" * 64)])
    assert refused(stub, messages(forged, {"manifest.json": text})) == ("INVALID_ARGUMENT", "transcript.upload.path")


@pytest.mark.finding("transcript.upload.oversized")
def test_more_than_a_verifier_takes(stub: Any, run: tuple[str, dict[str, bytes]], unchanged: None) -> None:
    identifier, files = run
    forged, text = resigned(files["manifest.json"], [("huge", 1 << 40, "0" * 64)])
    wanted = ("INVALID_ARGUMENT", "transcript.upload.oversized")
    assert refused(stub, messages(forged, {"manifest.json": text})) == wanted
    assert refused(stub, [header(identifier, "manifest.json", 1 << 60), Request(data=b"x")]) == wanted
    assert refused(stub, [header(identifier, "manifest.json", 3), Request(data=b"x" * 5)]) == wanted
    # A message over the limit of the service never gets to it.
    with pytest.raises(grpc.RpcError) as caught:
        stub.UploadTranscript(iter([Request(data=bytes(5 << 20))]), timeout=20)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.finding("transcript.upload.id")
def test_another_manifest_than_was_named(stub: Any, run: tuple[str, dict[str, bytes]], unchanged: None) -> None:
    wanted = ("INVALID_ARGUMENT", "transcript.upload.id")
    assert refused(stub, messages("0" * 64, run[1])) == wanted
    assert refused(stub, messages(run[0], {**run[1], "manifest.json": b"{}"})) == wanted


@pytest.mark.finding("transcript.upload.order")
def test_out_of_order(stub: Any, run: tuple[str, dict[str, bytes]], unchanged: None) -> None:
    identifier, files = run
    names, text = list(files), files["manifest.json"]
    for hostile in (
        [],
        [Request(data=b"x")],
        [end(identifier)],
        [header(identifier, names[1], len(files[names[1]]))],
        [header(identifier, "manifest.json", len(text), 7), Request(data=text[7:])],
        [header(identifier, "manifest.json", 7), header("1" * 64, "manifest.json", 7)],
    ):
        assert refused(stub, hostile) == ("INVALID_ARGUMENT", "transcript.upload.order")


@pytest.mark.finding("transcript.upload.quota")
def test_a_prover_has_its_share_of_the_disk(
    station: Station, stub: Any, run: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    send(stub, messages(*run))
    before = there(station)
    second = write_transcript(tmp_path / "second", name="second")
    with pytest.raises(grpc.RpcError) as caught:
        stub.UploadTranscript(messages(second, files_of(tmp_path / "second")), timeout=20)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    failure, info = error_details_pb2.QuotaFailure(), error_details_pb2.ErrorInfo()
    details = rpc_status.from_call(caught.value).details
    assert any(each.Unpack(failure) for each in details)
    assert any(each.Unpack(info) for each in details)
    assert (info.reason, failure.violations[0].subject) == ("transcript.upload.quota", "certificate")
    assert there(station) == before


def test_nonsense_and_damage(station: Station, stub: Any, run: tuple[str, dict[str, bytes]], unchanged: None) -> None:
    identifier, files = run
    for nonsense in (
        Request(),
        Request(data=b""),
        header("../" * 20, "manifest.json", 5),
        header(identifier, "x" * 5000, 5),
        end("x"),
        Request(data=bytes((1 << 20) + 1)),
    ):
        assert refused(stub, [nonsense]) == ("INVALID_ARGUMENT", "rpc.invalid")
        begun = [header(identifier, "manifest.json", len(files["manifest.json"])), Request(data=b"{")]
        assert refused(stub, [*begun, nonsense]) == ("INVALID_ARGUMENT", "rpc.invalid")
    altered = {**files, "draft.cbor": flipped(files["draft.cbor"])}
    assert refused(stub, messages(identifier, altered)) == ("DATA_LOSS", "transcript.file.altered")
    bad = files["manifest.json"].replace(b'"sig":"', b'"sig":"A', 1)
    from weighbridge.core.digests import bytes_digest

    name = bytes_digest(bad).hex()
    assert refused(stub, messages(name, {"manifest.json": bad})) == ("DATA_LOSS", "transcript.manifest.malformed")


def test_slow_clients_hold_nobody_up(
    station: Station, address: str, stub: Any, run: tuple[str, dict[str, bytes]], prover: Credentials
) -> None:
    """Who says nothing more is cut off; meanwhile operators are served, and another Prover uploads."""
    identifier, files = run
    done = threading.Event()

    def stalled() -> Iterator[Request]:
        yield header(identifier, "manifest.json", len(files["manifest.json"]))
        yield Request(data=files["manifest.json"][:10])
        done.wait(30)

    ended: list[grpc.StatusCode] = []

    def call() -> None:
        with pytest.raises(grpc.RpcError) as caught:
            stub.UploadTranscript(stalled(), timeout=60)
        ended.append(caught.value.code())

    thread = threading.Thread(target=call)
    thread.start()
    try:
        time.sleep(0.5)
        assert refused(stub, messages(*run)) == ("RESOURCE_EXHAUSTED", "rpc.busy")  # one call at a time for each upload
        with stub_of(address, station.operator) as operator:
            endpoints.call(operator.ListChips, verifier_pb2.ListChipsRequest())
        with stub_of(address, station.authority.issue_role("prover", "other")) as other:
            assert send(other, messages(*run)).complete
        thread.join(30)
    finally:
        done.set()
        thread.join()
    assert ended == [grpc.StatusCode.CANCELLED]
    # What had come is there, and the upload goes on.
    (status,) = endpoints.stream(stub.UploadStatus, verifier_pb2.UploadStatusRequest(id=identifier))
    assert [(each.path, each.held) for each in status.files] == [("manifest.json", 10)]
    (station.root / "slow").mkdir()
    for path, content in files.items():
        (station.root / "slow" / path).parent.mkdir(parents=True, exist_ok=True)
        (station.root / "slow" / path).write_bytes(content)
    assert upload(station.root / "slow", address, prover).already == 10


def test_what_is_missing_is_named(station: Station, address: str, stub: Any) -> None:
    """NOT_FOUND with ResourceInfo, from the service for operators as well."""
    with stub_of(address, station.operator) as operator, pytest.raises(grpc.RpcError) as caught:
        list(operator.GetReport(verifier_pb2.GetReportRequest(inspection_id="none"), timeout=20))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    info = error_details_pb2.ResourceInfo()
    assert any(each.Unpack(info) for each in rpc_status.from_call(caught.value).details)
    assert (info.resource_type, info.resource_name) == ("inspection", "none")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A transcript of some megabytes."""
    path = tmp_path_factory.mktemp("runs") / "large"
    return write_transcript(path, tape=random.Random(3).randbytes(24 << 20)), path


@pytest.mark.slow
@pytest.mark.soak
def test_an_upload_outlives_kills_of_the_verifier(station: Station, large: tuple[str, Path]) -> None:
    identifier, path = large
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    verifier = Verifier(station, "killed", options=["--address", f"127.0.0.1:{port}"])
    rng, reached, results = random.Random(7), threading.Semaphore(0), list[Upload | WeighbridgeError]()
    points = sorted(rng.randrange(1 << 20, 22 << 20) for _ in range(2))
    passed = iter([*points, None])
    point = next(passed)

    def progress(there: int, total: int) -> None:
        nonlocal point
        if point is not None and there >= point:
            point = next(passed)
            reached.release()

    def work() -> None:
        try:
            credentials = station.authority.issue_role("prover", "patient")
            results.append(upload(path, f"127.0.0.1:{port}", credentials, progress=progress, call_bytes=3 << 20))
        except WeighbridgeError as error:
            results.append(error)

    verifier.start()
    thread = threading.Thread(target=work)
    thread.start()
    for _ in points:
        assert reached.acquire(timeout=60)
        verifier.kill()
        verifier.start()
    thread.join(60)
    (result,) = results
    assert isinstance(result, Upload), result
    assert result.id == identifier
    assert files_of(station.root / "killed-cache" / identifier) == files_of(path)
    assert not list((station.root / "killed-cache" / "uploads").rglob("manifest.json"))
    assert verifier.stop() == 0


def test_an_upload_goes_on_where_its_connections_broke(
    station: Station, address: str, large: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prover.keeping.upload.PAUSE_S", 0.05)
    credentials, rng = station.authority.issue_role("prover", "far"), random.Random(11)
    budgets = [rng.randrange(100_000, 6 << 20) for _ in range(4)]
    with breaking(address, list(budgets), upwards=True) as (proxy, cut):
        result = upload(large[1], proxy, credentials, patience_s=30)
    assert (result.id, len(cut)) == (large[0], 4)
    place = station.root / "cache" / large[0]
    assert files_of(place) == files_of(large[1])


def test_an_upload_whose_prover_was_killed_goes_on(station: Station, address: str, tmp_path: Path) -> None:
    identifier = write_transcript(tmp_path / "run", tape=random.Random(4).randbytes(48 << 20))
    credentials = station.authority.issue_role("prover", "killed")
    credentials.save(tmp_path / "prover")
    command = [
        *(sys.executable, "-m", "weighbridge.cli", "transcript", "upload", str(tmp_path / "run")),
        *("--verifier", address, "--credentials", str(tmp_path / "prover")),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    place = station.root / "cache" / "uploads"
    deadline = time.monotonic() + 60
    while sum(each.stat().st_size for each in place.rglob("*.zst") if identifier in str(each)) < 1 << 20:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    held = sum(each.stat().st_size for each in (place).rglob("*.zst") if identifier in str(each))
    assert 0 < held < 48 << 20
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert f"{identifier}: whole and verified" in done.stdout
    assert "of which 0 were there" not in done.stdout
    again = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    sizes = sum(each.stat().st_size for each in (tmp_path / "run").rglob("*") if each.is_file())
    assert f"{sizes:,} bytes, of which {sizes:,} were there already" in again.stdout


def test_a_verifier_that_does_not_answer_is_given_up(station: Station, large: tuple[str, Path]) -> None:
    with pytest.raises(VerifierUnreachableError):
        upload(large[1], "127.0.0.1:1", station.authority.issue_role("prover", "p"), patience_s=0.1)


def test_an_inspection_over_what_its_prover_uploaded(tmp_path: Path) -> None:
    """The Prover's service cannot be reached: nothing is explained, until the transcript has been handed in."""
    with Station(tmp_path) as station:
        station.chip("honest", "127.0.0.1:1")
        assert station.train("declared", "honest").wait(timeout=300) == 0
        verifier = Verifier(station, "verifier")
        verifier.start()
        address = (station.root / "verifier.address").read_text()
        # Another Prover hands in a run of its own that names snapshots of this chip, which explains nothing of it.
        write_transcript(tmp_path / "foreign", ueid=station.ueids["honest"])
        upload(tmp_path / "foreign", address, station.authority.issue_role("prover", "other"))
        alone = verifier.begin()
        assert verifier.watch(alone)[-1].stage == "done"
        exactly(verifier.report(alone), "prover.unreachable")
        upload(station.runs / "honest", address, station.authority.issue_role("prover", "p"))
        verifier.kill()  # what is uploaded is there for every later process
        verifier.start()
        inspection = verifier.begin()
        assert verifier.watch(inspection)[-1].stage == "done"
        report = verifier.report(inspection)
        assert {each for each in found(report) if each != "data.not_precommitted"} == set()
        assert report["counts"]["verified"] == 1
        (chip,) = report["chips"]
        assert [each["status"] for each in chip["snapshots"]] == ["explained"]
        assert verifier.stop() == 0
