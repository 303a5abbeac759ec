"""Two parties give a worker their files at once; one that stalls, lies or is cut off holds up no other one."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from nacl import bindings
from support.sealed_disputes import Setting

from weighbridge.attest.sealed_channel import WorkerKey, _stream_key
from weighbridge.attest.sealed_dispute import LANE_PIECE, lane_frame
from weighbridge.attest.sealed_list import SealedList, list_files
from weighbridge.attest.sealed_order import Order
from weighbridge.execution.workers.sealed_lanes import Lanes

CONTENT = {"claim": b"claim", "run/tape": b"tape" * 40_000}
LIMIT = 1 << 20
BOTH = (0, 1)


@dataclass
class Job:
    """A dispute whose worker has started, with the files of both parties."""

    root: Path

    def __post_init__(self) -> None:
        self.setting, self.worker = Setting(), WorkerKey()
        self.files: list[SealedList] = []
        for party in BOTH:
            for name, content in CONTENT.items():
                path = self.root / "given" / str(party) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content + bytes([party]))
            self.files.append(list_files(self.root / "given" / str(party), CONTENT))
        self.order = self.ordered()
        (self.root / "in").mkdir()

    def ordered(self) -> Order:
        seats = [self.setting.seat(party, self.files[party]) for party in BOTH]
        return self.setting.admission(*seats).order()

    def stream(self, party: int, order: Order | None = None, worker: bytes | None = None) -> bytes:
        made, to = order or self.order, worker or self.worker.public
        sink = io.BytesIO()
        terms = made.terms(to) if party else made.challenger_terms(to)
        self.setting.channel[party].send(sink, terms, self.files[party], self.root / "given" / str(party))
        return sink.getvalue()

    def received(self, carried: bytes, *, whole: int = 2) -> tuple[bool, ...]:
        """Which parties' files are there, a moment after those of so many parties are; the site's end stays open."""
        reading, writing = os.pipe()
        sent = io.BytesIO(carried)

        def carry() -> None:
            with contextlib.suppress(BrokenPipeError):  # the worker stopped listening at what is no frame
                while piece := sent.read(1 << 15):
                    os.write(writing, piece)

        thread = threading.Thread(target=carry, daemon=True)
        thread.start()
        channels = [self.order.challenger_terms(self.worker.public), self.order.terms(self.worker.public)]
        lanes = Lanes(os.fdopen(reading, "rb"), self.worker.streams(channels), self.root / "in", limit=LIMIT)
        deadline, found = time.monotonic() + 60, lanes.wait(time.monotonic() + 0.1)
        while sum(each is not None for each in found) < whole and lanes._receiving:
            assert time.monotonic() < deadline
            found = lanes.wait(time.monotonic() + 0.1)
        found = lanes.wait(time.monotonic() + 0.2)
        thread.join()
        os.close(writing)
        for party, path in enumerate(found):
            if path is not None:
                assert {name: (path / name).read_bytes() for name in CONTENT} == {
                    name: content + bytes([party]) for name, content in CONTENT.items()
                }
            else:
                assert not (self.root / "in" / str(party)).exists()
        return tuple(each is not None for each in found)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def frames(party: int, stream: bytes, size: int = LANE_PIECE) -> list[bytes]:
    return [lane_frame(party, stream[at : at + size]) for at in range(0, len(stream), size)]


def mixed(one: list[bytes], other: list[bytes]) -> bytes:
    """Frames of both parties in turns."""
    most = max(len(one), len(other))
    return b"".join(each for at in range(most) for each in (*one[at : at + 1], *other[at : at + 1]))


@pytest.mark.parametrize("size", [LANE_PIECE, 1 << 12, 700])
def test_both_parties_files_arrive_however_they_are_mixed(job: Job, size: int) -> None:
    assert job.received(mixed(*(frames(party, job.stream(party), size) for party in BOTH))) == (True, True)


def messages(stream: bytes) -> list[int]:
    """Where the header of a stream and each of its messages end."""
    ends, at = [24], 24
    while at < len(stream):
        at += 4 + struct.unpack(">I", stream[at : at + 4])[0]
        ends.append(at)
    return ends


@pytest.mark.parametrize("late", BOTH)
def test_a_party_that_stalls_at_any_message_is_the_one_that_is_late(tmp_path: Path, late: int) -> None:
    """Before its header, before each message, and in the midst of the last one; the other party's files are there."""
    ends = messages(Job(tmp_path / "first").stream(late))
    assert len(ends) == 7
    for number, end in enumerate([0, *ends[:-1], ends[-1] - 1]):
        job = Job(tmp_path / str(number))
        carried = mixed(frames(late, job.stream(late)[:end]), frames(1 - late, job.stream(1 - late)))
        assert job.received(carried, whole=1) == tuple(party != late for party in BOTH)


def flipped(job: Job, party: int) -> bytes:
    stream = bytearray(job.stream(party))
    stream[len(stream) // 2] ^= 1
    return bytes(stream)


def of_the_other_party(job: Job, party: int) -> bytes:
    return job.stream(1 - party)


def to_another_worker(job: Job, party: int) -> bytes:
    return job.stream(party, worker=WorkerKey().public)


def of_another_start(job: Job, party: int) -> bytes:
    return job.stream(party, order=job.ordered())


def garbage(job: Job, party: int) -> bytes:
    return os.urandom(5000)


def other_files(job: Job, party: int) -> bytes:
    """Files that the party did not commit to, by its own key: its own software refuses to send them."""
    terms = job.order.terms(job.worker.public) if party else job.order.challenger_terms(job.worker.public)
    key = job.setting.channel[party]
    _, agreed = bindings.crypto_kx_client_session_keys(key.public, key._secret, terms.worker)
    state = bindings.crypto_secretstream_xchacha20poly1305_state()
    found = bindings.crypto_secretstream_xchacha20poly1305_init_push(state, _stream_key(agreed, terms))
    again = list_files(job.root / "given" / str(party), CONTENT)  # under other random bytes
    sealed = bindings.crypto_secretstream_xchacha20poly1305_push(state, again.to_cbor())
    return bytes(found + struct.pack(">I", len(sealed)) + sealed)


@pytest.mark.parametrize("party", BOTH)
@pytest.mark.parametrize(
    "instead", [flipped, of_the_other_party, to_another_worker, of_another_start, garbage, other_files]
)
def test_what_is_not_what_a_party_committed_to_is_not_there(
    job: Job, instead: Callable[[Job, int], bytes], party: int
) -> None:
    carried = mixed(frames(party, instead(job, party)), frames(1 - party, job.stream(1 - party)))
    assert job.received(carried, whole=1) == tuple(each != party for each in BOTH)


def test_what_follows_a_stream_is_dropped_and_what_is_no_frame_ends_both(job: Job, tmp_path: Path) -> None:
    whole = [frames(party, job.stream(party)) for party in BOTH]
    assert job.received(mixed(*whole) + lane_frame(0, b"more") * 3) == (True, True)
    for number, bad in enumerate((struct.pack(">BI", 2, 1) + b"x", struct.pack(">BI", 0, LANE_PIECE + 1))):
        other = Job(tmp_path / str(number))
        ahead = b"".join(frames(0, other.stream(0)))
        assert other.received(ahead + bad + b"".join(frames(1, other.stream(1))), whole=1) == (True, False)


def test_a_party_whose_key_is_none_is_late(tmp_path: Path) -> None:
    """A public key of low order, with which any party could agree."""
    job = Job(tmp_path)
    job.setting.channel[1].public = bytes(32)
    job.order = job.ordered()
    assert job.received(b"".join(frames(0, job.stream(0))), whole=1) == (True, False)


def test_one_party_takes_no_more_room_than_its_own(tmp_path: Path) -> None:
    CONTENT["run/large"] = bytes(LIMIT)
    try:
        job = Job(tmp_path)
    finally:
        del CONTENT["run/large"]
    assert job.received(mixed(*(frames(party, job.stream(party)) for party in BOTH))) == (False, False)
