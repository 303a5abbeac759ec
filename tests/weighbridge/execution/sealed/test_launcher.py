"""Sealed jobs from start to end, and what parties try against them. Each worker here is a real one."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nacl import bindings
from support.sealed_disputes import COURT
from support.sealed_isolation import LACKING
from support.sealed_orders import sealed_order
from support.sealed_site import Running, Station

from weighbridge.attest.sealed_channel import ProverKey, Terms, _stream_key
from weighbridge.attest.sealed_list import SealedFile, SealedList, list_files
from weighbridge.attest.sealed_order import OUTCOME, REFUSED, Order, SealedWorkerError
from weighbridge.attest.sealed_ruling import RULING_SIZE
from weighbridge.attest.sealed_starts import read_starts
from weighbridge.core.secret_memory import NAME, SecretMemory
from weighbridge.execution.replay import replay
from weighbridge.execution.sealed import image as images
from weighbridge.execution.sealed.launcher import _said, _waited, require_size
from weighbridge.execution.workers import isolation

RUN = Path(__file__).parents[3] / "golden" / "digits"
WINDOW = 64
_LISTS = [SealedList(bytes([party]) * 32, (SealedFile("claim", 1, bytes(32)),)) for party in (0, 1)]


pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"NOT TESTED: this machine does not permit {LACKING}")


@pytest.fixture
def station(sealed_image: Path, tmp_path: Path) -> Iterator[Station]:
    """A site; at the end of each test nothing of the Prover's files is in any file that was made."""
    there = Station(tmp_path / "site", sealed_image, RUN)
    yield there
    windows = set()
    for path in RUN.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            windows |= {data[at : at + WINDOW] for at in range(0, len(data) - WINDOW, WINDOW)}
    windows = {each for each in windows if len(set(each)) > WINDOW // 4}
    assert len(windows) > 100
    assert list(there.temporary.iterdir()) == []
    assert list((there.image / images.EMPTY).iterdir()) == []
    for path in there.root.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(data[at : at + WINDOW] in windows for at in range(len(data) - WINDOW))


def refused(worker: Running, reason: str) -> None:
    """Checks that a worker ends without an outcome, and why; that it leaves nothing behind is the fixture's."""
    assert worker.frame() is None
    code, said = worker.ended()
    assert (code, reason in said) == (2, True), said


def ends(processes: list[int]) -> None:
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{each}/exe").exists() and runs(each) for each in processes):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- honest parties ----------------------------------------------------------------------------------------------------


def test_a_job_gives_the_replays_outcome_once(station: Station) -> None:
    """And the nonces buy no second job, neither the same nor another."""
    files = station.files()
    order = station.order(files)
    worker = station.start(order)
    attested = worker.attested()
    assert set(isolation.EVERYTHING) <= set(attested.isolation)
    assert (NAME in attested.isolation) == SecretMemory().protected  # it says so where its keys lie in such memory
    sink = io.BytesIO()
    station.prover.send(sink, order.terms(attested.worker), files, RUN)
    worker.send(sink.getvalue())
    sealed = worker.frame()
    assert sealed is not None, worker.ended()
    assert worker.ended()[0] == 0
    outcome = json.loads(station.aggregator.open(sealed, order, attested.signer))["result"]
    plain = replay(RUN)
    assert (outcome["verdict"], outcome["state"]) == (plain.verdict, plain.state) == ("match", plain.state)
    assert outcome["rounded"] == plain.rounded
    (start,) = read_starts(station.log)
    assert (start.order, start.head) == (order.digest.hex(), attested.head)

    again = station.start(order)
    refused(again, "sealed.nonce")
    other = station.start(station.order(station.files(), verifier_nonce=order.verifier_nonce))
    refused(other, "sealed.nonce")
    assert read_starts(station.log) == [start]


# -- attacks -----------------------------------------------------------------------------------------------------------


def test_a_verifier_cannot_feed_its_own_inputs(station: Station) -> None:
    """It has the order, the attestation and files of its own, but not the key that the worker was started for."""
    files = station.files()
    order = station.order(files)
    worker = station.start(order)
    attested = worker.attested()
    verifier = ProverKey(os.urandom(32))
    terms = Terms(order.nonce, order.commitment, attested.worker, verifier.public)
    sink = io.BytesIO()
    verifier.send(sink, terms, files, RUN)
    worker.send(sink.getvalue())
    refused(worker, "sealed.channel")


def test_other_inputs_than_committed_are_refused(station: Station) -> None:
    files, others = station.files(), station.files()
    order = station.order(files)
    worker = station.start(order)
    attested = worker.attested()
    worker.send(by_the_page(station, order.terms(attested.worker), others))
    refused(worker, "sealed.inputs")


def by_the_page(station: Station, terms: Terms, files: SealedList) -> bytes:
    """A stream of other files than were committed to, which the Prover's own software refuses to send."""
    _, agreed = bindings.crypto_kx_client_session_keys(station.prover.public, station.prover._secret, terms.worker)
    key = _stream_key(agreed, terms)
    state = bindings.crypto_secretstream_xchacha20poly1305_state()
    found = bindings.crypto_secretstream_xchacha20poly1305_init_push(state, key)
    sealed = bindings.crypto_secretstream_xchacha20poly1305_push(state, files.to_cbor())
    return bytes(found + struct.pack(">I", len(sealed)) + sealed)


def test_files_that_are_none_are_an_outcome_or_refused_by_name(station: Station, tmp_path: Path) -> None:
    """A Prover that committed to a run with one byte changed gets an outcome that says so, sealed like any other."""
    damaged = tmp_path / "damaged"
    shutil.copytree(RUN, damaged)
    (tape,) = list((damaged / "tapes").iterdir())[:1]
    tape.write_bytes(tape.read_bytes()[:-1] + b"\x00")
    files = list_files(damaged, [str(p.relative_to(damaged)) for p in damaged.rglob("*") if p.is_file()])
    order = station.order(files)
    worker = station.start(order)
    attested = worker.attested()
    sink = io.BytesIO()
    station.prover.send(sink, order.terms(attested.worker), files, damaged)
    worker.send(sink.getvalue())
    sealed = worker.frame()
    assert sealed is not None, worker.ended()
    outcome = json.loads(station.aggregator.open(sealed, order, attested.signer))
    assert outcome.get("error", outcome.get("result", {})) != {}
    assert outcome.get("result", {}).get("verdict") != "match"


def test_workers_cannot_be_swapped(station: Station) -> None:
    """A stream for one worker is refused by another of the same image, Prover and files; so is its outcome."""
    files = station.files()
    one, two = (station.start(station.order(files)) for _ in range(2))
    first, second = one.attested(), two.attested()
    assert (first.index, second.index) in ((0, 1), (1, 0))
    for worker, terms in ((one, two.order.terms(second.worker)), (two, one.order.terms(first.worker))):
        sink = io.BytesIO()
        station.prover.send(sink, terms, files, RUN)
        worker.send(sink.getvalue())
    for worker in (one, two):
        refused(worker, "sealed.channel")
    with pytest.raises(SealedWorkerError):
        station.aggregator.open(bytes(200), one.order, second.signer)


def test_an_image_that_differs_by_one_byte_does_not_start(station: Station, tmp_path: Path) -> None:
    """Neither against the list that was agreed on, nor with a list of its own."""
    altered = tmp_path / "image"
    shutil.copytree(station.image, altered, copy_function=os.link)
    module = altered / images.FILES / "code" / "weighbridge" / "execution" / "workers" / "sealed_worker.py"
    source, changed = module.read_bytes(), module.stat().st_mtime_ns
    module.unlink()
    module.write_bytes(source[:-1] + b" ")
    os.utime(module, ns=(changed, changed))
    refused(station.start(station.order(station.files()), image=altered), "sealed.image")
    assert len(read_starts(station.log)) == 1  # it was a start all the same
    (altered / images.MANIFEST).unlink()  # it is a link to the other's
    (altered / images.MANIFEST).write_bytes(images.measure(altered / images.FILES).to_cbor())
    refused(station.start(station.order(station.files()), image=altered), "sealed.image")


@pytest.mark.finding("sealed.worker")
@pytest.mark.parametrize("when", ["before it has a key", "before inputs", "among inputs", "in the replay"])
@pytest.mark.parametrize("whom", ["launcher", "worker"])
def test_a_killed_worker_leaves_nothing_and_releases_nothing(station: Station, when: str, whom: str) -> None:
    files = station.files()
    order = station.order(files)
    worker = station.start(order)
    if when == "before it has a key":
        wait_for(lambda: len(worker.below()) >= 2)
        time.sleep(1)
    else:
        attested = worker.attested()
        sink = io.BytesIO()
        station.prover.send(sink, order.terms(attested.worker), files, RUN)
        sent = {"before inputs": 0, "among inputs": len(sink.getvalue()) // 2}.get(when, len(sink.getvalue()))
        worker.stdin.write(sink.getvalue()[:sent])
        worker.stdin.flush()
        if when == "in the replay":
            worker.stdin.close()
        time.sleep(0.1 if when == "in the replay" else 1)  # a replay takes less than a second
    processes = worker.below()
    assert len(processes) == 2, "the outer process of the namespace, and the worker"
    os.kill(worker.process.pid if whom == "launcher" else processes[-1], signal.SIGKILL)
    assert worker.frame() is None
    code, said = worker.ended()
    assert code == (-signal.SIGKILL if whom == "launcher" else 2)
    assert whom == "launcher" or "sealed.worker" in said
    ends(processes)


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("said", ["sealed.isolation,secret", "sealed.image", "secret", "sealed.worker,secret"])
def test_no_word_is_passed_on_that_a_prover_may_have_chosen(said: str) -> None:
    """Once it heard its Prover, a worker that its files took over might say anything."""
    reader, writer = os.pipe()
    os.write(writer, struct.pack(">I", 1 + len(said)) + REFUSED + said.encode())
    os.close(writer)
    with os.fdopen(reader, "rb", buffering=0) as worker, pytest.raises(SealedWorkerError) as caught:
        _said(worker, OUTCOME, time.monotonic() + 10)
    assert (caught.value.reason, "secret" in caught.value.message) == ("sealed.worker", False)


def disputed() -> Order:
    return COURT.admission(*(COURT.seat(party, files) for party, files in enumerate(_LISTS))).order()


@pytest.mark.parametrize("size", [0, RULING_SIZE - 1, RULING_SIZE + 1, 1 << 20])
def test_no_ruling_of_another_size_leaves(size: int) -> None:
    order = disputed()
    require_size(order, bytes(RULING_SIZE))
    require_size(sealed_order(), bytes(size))
    with pytest.raises(SealedWorkerError):
        require_size(order, bytes(size))


def test_a_worker_that_does_not_end_is_not_waited_for() -> None:
    if not (child := os.fork()):
        time.sleep(60)
        os._exit(0)
    assert _waited(child, time.monotonic() + 0.2) is None
    os.kill(child, signal.SIGKILL)
    assert _waited(child, time.monotonic() + 10) == signal.SIGKILL
