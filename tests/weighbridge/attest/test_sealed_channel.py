"""A worker opens what its job's Prover committed to and sent to it, once, and nothing else."""

from __future__ import annotations

import ctypes
import io
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl import bindings
from nacl.public import PublicKey, SealedBox

from weighbridge.attest.sealed_channel import CHUNK, ProverKey, SealedInputError, Terms, WorkerKey
from weighbridge.attest.sealed_list import SealedFile, SealedList, commitment, list_files
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import FormatError, UsageError

MORE = bindings.crypto_secretstream_xchacha20poly1305_TAG_MESSAGE
LAST = bindings.crypto_secretstream_xchacha20poly1305_TAG_FINAL
REKEY = bindings.crypto_secretstream_xchacha20poly1305_TAG_REKEY
CONTENT = {"draft.cbor": b"draft", "steps/00000001": b"record" * 20_000, "tapes/empty": b""}
LIMIT = 1 << 20


@dataclass
class Job:
    """One job: its worker, its Prover, and what the Prover has."""

    worker: WorkerKey
    prover: ProverKey
    root: Path
    files: SealedList
    terms: Terms

    def stream(self) -> bytes:
        sink = io.BytesIO()
        self.prover.send(sink, self.terms, self.files, self.root)
        return sink.getvalue()

    def receive(self, stream: bytes, limit: int = LIMIT) -> SealedList:
        return self.worker.receive(io.BytesIO(stream), self.terms, self.root.parent / "in", limit=limit)

    def refused(self, stream: bytes, reason: str = "sealed.channel") -> str:
        """Checks that the worker refuses a stream and has written nothing; returns why."""
        with pytest.raises(SealedInputError) as caught:
            self.receive(stream)
        assert caught.value.reason == reason
        assert list(self.root.parent.iterdir()) == [self.root]
        return caught.value.message


Jobs = Callable[[], Job]


@pytest.fixture
def new_job(tmp_path: Path) -> Jobs:
    """Jobs with the same content and Prover, each in a directory of its own."""
    prover = ProverKey(os.urandom(32))

    def make() -> Job:
        root = tmp_path / os.urandom(4).hex() / "out"
        for name, content in CONTENT.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        files, worker = list_files(root, CONTENT), WorkerKey()
        terms = Terms(os.urandom(32), commitment(files.to_cbor()), worker.public, prover.public)
        return Job(worker, prover, root, files, terms)

    return make


@pytest.fixture
def job(new_job: Jobs) -> Job:
    return new_job()


def frames(stream: bytes) -> list[bytes]:
    """The header of a stream, and its messages with their lengths."""
    found, at = [stream[:24]], 24
    while at < len(stream):
        (length,) = struct.unpack(">I", stream[at : at + 4])
        found.append(stream[at : at + 4 + length])
        at += 4 + length
    return found


def by_the_page(terms: Terms, secret: bytes, messages: Iterable[tuple[bytes, int]]) -> bytes:
    """A stream as docs/formats/sealed-inputs.md says, of any messages: what a Prover's own software may send."""
    public = bindings.crypto_scalarmult_base(secret)
    _, agreed = bindings.crypto_kx_client_session_keys(public, secret, terms.worker)
    bound = cbor([terms.nonce, terms.commitment, terms.worker, terms.prover])
    key = blake3(b"weighbridge/sealed-inputs/1\x00" + bound, key=agreed).digest()
    state = bindings.crypto_secretstream_xchacha20poly1305_state()
    found = bindings.crypto_secretstream_xchacha20poly1305_init_push(state, key)
    for message, tag in messages:
        sealed = bindings.crypto_secretstream_xchacha20poly1305_push(state, message, None, tag)
        found += struct.pack(">I", len(sealed)) + sealed
    return found


def messages_of(job: Job) -> list[tuple[bytes, int]]:
    pieces = [
        (CONTENT[each.name][at : at + CHUNK], MORE) for each in job.files.files for at in range(0, each.size, CHUNK)
    ]
    return [(job.files.to_cbor(), MORE), *pieces, (b"", LAST)]


def read(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# -- honest parties ----------------------------------------------------------------------------------------------------


def test_what_was_committed_to_arrives_through_a_pipe(job: Job) -> None:
    reading, writing = os.pipe()

    def send() -> None:
        with open(writing, "wb") as sink:
            job.prover.send(sink, job.terms, job.files, job.root)

    thread = threading.Thread(target=send)
    thread.start()
    with open(reading, "rb", buffering=0) as source:
        found = job.worker.receive(source, job.terms, job.root.parent / "in", limit=LIMIT)
    thread.join()
    assert found == job.files
    assert read(job.root.parent / "in") == CONTENT
    assert (job.root.parent / "in").stat().st_mode & 0o777 == 0o700


def test_a_stream_as_the_page_says_is_opened(job: Job) -> None:
    assert job.receive(by_the_page(job.terms, job.prover._secret, messages_of(job))) == job.files


def test_the_stream_shows_no_piece_of_the_files(job: Job) -> None:
    stream = job.stream()
    assert not any(content[:4] in stream for content in CONTENT.values() if content)
    assert not any(name.encode() in stream for name in CONTENT)
    assert job.stream() != stream


@settings(max_examples=20)
@given(content=st.dictionaries(st.sampled_from("abc"), st.binary(max_size=40), min_size=1), size=st.integers(-1, 1))
def test_files_of_any_content_come_back(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, bytes], size: int
) -> None:
    """Law: receive(send(files)) == files, also next to the size of a piece."""
    content["z"] = bytes(CHUNK + size)
    root = tmp_path_factory.mktemp("any") / "out"
    root.mkdir()
    for name, data in content.items():
        (root / name).write_bytes(data)
    files, worker, prover = list_files(root, content), WorkerKey(), ProverKey(os.urandom(32))
    terms = Terms(os.urandom(32), commitment(files.to_cbor()), worker.public, prover.public)
    job = Job(worker, prover, root, files, terms)
    job.receive(job.stream())
    assert read(root.parent / "in") == content


# -- other parties -----------------------------------------------------------------------------------------------------


@pytest.mark.finding("sealed.channel")
def test_another_sender_is_refused(job: Job) -> None:
    """A Verifier, or any party that knows everything but the Prover's secret, cannot feed a worker its own inputs."""
    assert "not of this job's Prover" in job.refused(by_the_page(job.terms, os.urandom(32), messages_of(job)))


def test_a_box_without_a_sender_is_refused(job: Job) -> None:
    sealed = SealedBox(PublicKey(job.terms.worker)).encrypt(job.files.to_cbor())
    job.refused(bytes(24) + struct.pack(">I", len(sealed)) + sealed)


def test_a_stream_for_another_worker_is_refused(new_job: Jobs) -> None:
    """Workers are swapped: all terms are the same but the worker's key."""
    one, two = new_job(), new_job()
    two.files, two.terms = one.files, replace(one.terms, worker=two.worker.public)
    two.refused(one.stream())
    with pytest.raises(UsageError, match="of one job"):
        two.worker.receive(io.BytesIO(), one.terms, one.root.parent / "in", limit=LIMIT)


@pytest.mark.parametrize("field", ["nonce", "commitment"])
def test_a_stream_of_another_job_of_the_same_keys_is_refused(job: Job, field: str) -> None:
    stream = job.stream()
    job.terms = replace(job.terms, **{field: os.urandom(32)})
    job.refused(stream)


def test_a_stream_is_not_played_back_to_the_worker_that_opened_it(job: Job, tmp_path: Path) -> None:
    stream = job.stream()
    job.receive(stream)
    with pytest.raises(UsageError, match="once"):
        job.worker.receive(io.BytesIO(stream), job.terms, tmp_path / "again", limit=LIMIT)
    assert not (tmp_path / "again").exists()


def test_a_refused_stream_uses_the_worker_up(job: Job) -> None:
    """A worker is no oracle: whoever sends rubbish gets one refusal, not a second try."""
    job.refused(bytes(200))
    with pytest.raises(UsageError, match="once"):
        job.receive(job.stream())


def test_a_public_key_that_makes_every_secret_the_same_is_refused(job: Job, tmp_path: Path) -> None:
    """With a point of low order for a worker's key, anyone could compute the key of the stream."""
    terms = replace(job.terms, worker=bytes(32))
    sink = io.BytesIO()
    with pytest.raises(UsageError, match="public key is none"):
        job.prover.send(sink, terms, job.files, job.root)
    assert not sink.getvalue()
    with pytest.raises(UsageError, match="public key is none"):
        job.worker.receive(io.BytesIO(), replace(job.terms, prover=bytes(32)), tmp_path / "in", limit=LIMIT)


# -- who carries the stream --------------------------------------------------------------------------------------------


def _altered(all_frames: list[bytes]) -> Iterator[tuple[str, list[bytes]]]:
    header, *rest = all_frames
    for number in range(len(all_frames)):
        yield f"cut before {number}", all_frames[:number]
        yield f"without {number}", [*all_frames[:number], *all_frames[number + 1 :]]
    for number in range(len(rest) - 1):
        yield f"{number} and the next change places", [
            header, *rest[:number], rest[number + 1], rest[number], *rest[number + 2 :],
        ]  # fmt: skip
        yield f"{number} twice", [header, *rest[: number + 1], *rest[number:]]
    yield "goes on", [*all_frames, rest[-1]]
    yield "one more byte", [*all_frames, b"\x00"]


def test_a_stream_that_was_cut_or_reordered_or_goes_on_is_refused(new_job: Jobs) -> None:
    for number in range(len(list(_altered(frames(new_job().stream()))))):
        job = new_job()
        _, altered = list(_altered(frames(job.stream())))[number]
        job.refused(b"".join(altered))


@settings(max_examples=25)
@given(at=st.integers(0), bit=st.integers(0, 7))
def test_a_stream_with_another_bit_is_refused(tmp_path_factory: pytest.TempPathFactory, at: int, bit: int) -> None:
    """Law: for no bit of a stream is the stream without it, or with the other, opened; and nothing is left of it."""
    root = tmp_path_factory.mktemp("bit") / "out"
    root.mkdir()
    (root / "a").write_bytes(b"weights")
    files, worker, prover = list_files(root, ["a"]), WorkerKey(), ProverKey(os.urandom(32))
    terms = Terms(os.urandom(32), commitment(files.to_cbor()), worker.public, prover.public)
    job = Job(worker, prover, root, files, terms)
    stream = bytearray(job.stream())
    stream[at % len(stream)] ^= 1 << bit
    job.refused(bytes(stream))


def test_a_length_beyond_all_messages_is_refused_before_it_is_read(job: Job) -> None:
    class Source(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert 0 <= size <= 24
            return super().read(size)

    stream = frames(job.stream())[0] + struct.pack(">I", (1 << 20) + 18)
    with pytest.raises(SealedInputError, match="length that none has"):
        job.worker.receive(Source(stream), job.terms, job.root.parent / "in", limit=LIMIT)


# -- a Prover that sends something else than it committed to -----------------------------------------------------------


def _lies(job: Job) -> dict[str, list[tuple[bytes, int]]]:
    head, *pieces, end = messages_of(job)
    other = SealedList(os.urandom(32), job.files.files)
    return {
        "another list": [(other.to_cbor(), MORE), *pieces, end],
        "nothing": [(head[0], LAST)],
        "another draft": [head, (b"DRAFT", MORE), *pieces[1:], end],
        "another byte at the end": [head, *pieces[:-1], (pieces[-1][0][:-1] + b"!", MORE), end],
        "other pieces": [head, (b"dra", MORE), (b"ft", MORE), *pieces[1:], end],
        "an end too early": [head, *pieces[:-1], (pieces[-1][0], LAST)],
        "a file is missing": [head, *pieces[:-1], end],
        "one piece more": [head, *pieces, (b"more", MORE), end],
        "an end with content": [head, *pieces, (b"more", LAST)],
    }


@pytest.mark.finding("sealed.inputs")
def test_other_inputs_than_committed_are_refused(new_job: Jobs) -> None:
    for lie in _lies(new_job()):
        job = new_job()
        job.refused(by_the_page(job.terms, job.prover._secret, _lies(job)[lie]), "sealed.inputs")


def test_a_tag_that_no_message_has_is_refused(job: Job) -> None:
    head, *rest = messages_of(job)
    job.refused(by_the_page(job.terms, job.prover._secret, [(head[0], REKEY), *rest]))


def test_more_than_the_worker_takes_is_refused_before_any_of_it_is_written(job: Job) -> None:
    with pytest.raises(SealedInputError, match="larger than the worker takes"):
        job.receive(job.stream(), limit=sum(map(len, CONTENT.values())) - 1)
    assert list(job.root.parent.iterdir()) == [job.root]


@pytest.mark.parametrize("name", ["../out/draft.cbor", "/tmp/x", "a/../../x"])
def test_a_list_that_was_committed_to_leads_nowhere_else(job: Job, name: str) -> None:
    """The Prover commits to a list that no list may be: the worker refuses it when it reads it, and writes nothing."""
    encoded = cbor([bytes(32), [[name, 1, bytes_digest(b"x")]]])
    job.terms = replace(job.terms, commitment=commitment(encoded))
    stream = by_the_page(job.terms, job.prover._secret, [(encoded, MORE), (b"x", MORE), (b"", LAST)])
    with pytest.raises(FormatError):
        job.receive(stream)
    assert list(job.root.parent.iterdir()) == [job.root]


def test_a_file_that_changed_after_the_commitment_is_not_sent_in_whole(job: Job) -> None:
    (job.root / "draft.cbor").write_bytes(b"other")
    with pytest.raises(UsageError, match="changed since"):
        job.stream()


def test_an_honest_prover_does_not_send_under_terms_of_others(job: Job) -> None:
    for terms in (replace(job.terms, prover=os.urandom(32)), replace(job.terms, commitment=os.urandom(32))):
        with pytest.raises(UsageError, match="terms are of another"):
            job.prover.send(io.BytesIO(), terms, job.files, job.root)


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_prover_keeps_its_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    one, two = ProverKey.load(path), ProverKey.load(path)
    assert one.public == two.public
    path.chmod(0o644)
    with pytest.raises(UsageError, match="others may read"):
        ProverKey.load(path)
    path.write_bytes(bytes(31))
    path.chmod(0o600)
    with pytest.raises(UsageError, match="holds no key"):
        ProverKey.load(path)


def test_terms_have_their_sizes() -> None:
    with pytest.raises(UsageError, match="32 bytes"):
        Terms(bytes(16), bytes(32), bytes(32), bytes(32))


GOLDEN = (
    "b1e3b0618dc78b0650206a06525caa30d2561091593f23800000005dfade7c56d21ca06c8714b0307b7956788acbed919534"
    "45e1915daa2948f1edcf474512757e7ca5495b22b88a3760d8317ff5d88a14633140590225481f7953d5f78a1d52f1b95199"
    "187d8046bc12924cabd1415231d9d06486cf6e573b0000001802cba4950ba5ae15c21610c1cd99a367794fd2d7e6ef162300"
    "0000117ec53f639a97778d9dd4d0b381741d2637"
)


def test_streams_of_old_are_opened(tmp_path: Path) -> None:
    """The bytes of one stream, with all keys known: what another implementation can be held against."""
    worker, prover = WorkerKey(), ProverKey(bytes(range(32, 64)))
    ctypes.memmove(worker._memory.address, bytes(range(64, 96)), 32)
    worker.public = bindings.crypto_scalarmult_base(bytes(range(64, 96)))
    files = SealedList(bytes(range(32)), (SealedFile("a/b", 7, bytes_digest(b"weights")),))
    terms = Terms(bytes(range(96, 128)), commitment(files.to_cbor()), worker.public, prover.public)
    assert worker.receive(io.BytesIO(bytes.fromhex(GOLDEN)), terms, tmp_path / "in", limit=7) == files
    assert read(tmp_path / "in") == {"a/b": b"weights"}


def test_a_link_in_the_way_is_neither_followed_nor_replaced(job: Job) -> None:
    """`into` is a link to what is not there yet, or to a directory: the files come to lie nowhere."""
    at = job.root.parent / "in"
    at.symlink_to(job.root.parent / "elsewhere")
    with pytest.raises(OSError, match="Not a directory"):
        job.receive(job.stream())
    assert sorted(job.root.parent.iterdir()) == sorted([at, job.root])
    assert at.is_symlink()
