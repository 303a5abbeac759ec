"""What a Verifier does with the pieces of rounding logs that come from a Prover, without the network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from support import fsyncs, on_demand
from support.workers_here import workers_here

from verifier.contact.clients import ProverClient
from verifier.contact.supplement_receiving import EQUIVOCATION, Known, Received, kept, receive
from verifier.contact.supplement_records import SupplementRecords
from verifier.registry import Registry
from verifier.store.cache import Cache
from weighbridge.attest.manifest import load_or_create_key
from weighbridge.core.bounded import DEFAULT_LIMITS
from weighbridge.execution.transcript_facts import OpenedTranscript
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import Statement, decode, encode, folder_of, key_path

Piece = tuple[int, int, bytes, bool]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the supplements that its Prover made."""
    there = on_demand.record(tmp_path_factory.mktemp("runs") / "run")
    on_demand.regenerated(there)
    return there


@pytest.fixture
def cache(run: Path, tmp_path: Path) -> Cache:
    """A cache that has the run, without its supplements."""
    shutil.copytree(run, tmp_path / "cache" / Transcript.open(run).manifest.digest)
    return Cache(tmp_path / "cache")


@pytest.fixture
def transcript(run: Path, cache: Cache) -> OpenedTranscript:
    with workers_here():
        opened = cache.find(Transcript.open(run).manifest.digest)
    assert opened is not None
    return opened


def received(cache: Cache, transcript: OpenedTranscript, *pieces: Piece, known: Known | None = None) -> Received:
    """What comes of pieces, of which all four steps were asked for."""

    class Sends:
        def supplements(self, *_: Any, **__: Any) -> Iterator[Piece]:
            yield from pieces

    def connect() -> Any:
        return nullcontext(cast(ProverClient, Sends()))

    return receive(cache, connect, transcript, (0, 4), known or {}, deadline_s=60, progress=lambda *_: None)


def whole(run: Path, step: int) -> Piece:
    return step, 0, on_demand.place(run, step).read_bytes(), True


def test_content_is_durable_before_it_has_its_name(
    run: Path, cache: Cache, transcript: OpenedTranscript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut could leave an empty file under the name, and a replay would accuse the Prover."""
    durable = fsyncs.watched(monkeypatch)
    got = received(cache, transcript, *(whole(run, step) for step in range(4)))
    assert (got.steps, got.why) == ({0, 1, 2, 3}, None)
    files = list(folder_of(transcript.path).iterdir())
    assert len(files) == 4
    assert all(each in durable for each in [*files, folder_of(transcript.path)])


@pytest.mark.parametrize("empty", [(2, 0, b"", False), (2, 5, b"", False)], ids=["first", "further"])
def test_pieces_without_content_do_not_go_on_for_ever(
    run: Path, cache: Cache, transcript: OpenedTranscript, empty: Piece
) -> None:
    before = [] if empty[1] == 0 else [(2, 0, b"12345", False)]
    got = received(cache, transcript, whole(run, 1), *before, empty, (2, empty[1], b"x", True))
    assert got.steps == {1}, "what came in order before is kept"
    assert got.why is not None
    assert "no content" in got.why.message


def test_a_last_piece_may_be_empty(run: Path, cache: Cache, transcript: OpenedTranscript) -> None:
    step, _, data, _ = whole(run, 1)
    got = received(cache, transcript, (step, 0, data, False), (step, len(data), b"", True))
    assert (got.steps, got.why) == ({1}, None)


def test_what_is_kept_is_counted_by_its_statements(run: Path, cache: Cache, transcript: OpenedTranscript) -> None:
    assert kept(transcript, (0, 4)) == 0
    received(cache, transcript, *(whole(run, step) for step in range(4)))
    assert (kept(transcript, (0, 4)), kept(transcript, (1, 3))) == (4, 2)
    files = sorted(folder_of(transcript.path).iterdir())
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-1])
    files[2].write_bytes(files[3].read_bytes())  # of another step
    assert kept(transcript, (0, 4)) == 1


def with_tree(run: Path, step: int, tree: str) -> tuple[Piece, Statement]:
    """Returns the same log, signed by the run's key with a tree."""
    made = decode(on_demand.place(run, step).read_bytes())
    statement = replace(made.statement, tree=tree)
    return (step, 0, encode(statement, made.log(DEFAULT_LIMITS), load_or_create_key(key_path(run))), True), statement


@pytest.mark.finding("transcript.supplement.equivocation")
def test_another_tree_of_a_step_is_equivocation_whenever_it_comes(
    run: Path, cache: Cache, transcript: OpenedTranscript, tmp_path: Path
) -> None:
    """As another log is; what was signed first stays, in the Verifier's database too, and a first tree is added."""
    records = SupplementRecords(Registry(tmp_path / "registry.sqlite").session)
    draft, key, steps = transcript.draft_digest, transcript.manifest.public, (0, 4)
    first, said = with_tree(run, 2, "11" * 32)
    for piece in (whole(run, 2), first, whole(run, 2), first):
        got = received(cache, transcript, piece, known=records.known(draft, key, steps))
        assert got.findings == []
        records.keep(got.signed)
    assert records.known(draft, key, steps) == {2: [said]}
    second, other = with_tree(run, 2, "22" * 32)
    for piece in (second, second, with_tree(run, 2, "33" * 32)[0]):
        got = received(cache, transcript, piece, known=records.known(draft, key, steps))
        (finding,) = got.findings
        assert (finding.id, finding.expected) == (EQUIVOCATION, "11" * 32)
        records.keep(got.signed)
        assert records.known(draft, key, steps) == {2: [said, other]}, "both are proof, and a third adds nothing"
    assert len(received(cache, transcript, first, known=records.known(draft, key, steps)).findings) == 1
