"""The Prover's side of rounding logs on demand, over gRPC: who waits, who has gone, and what is refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support import on_demand
from support.on_demand import copied, place

from benchmarks.resume_job import train
from protos.weighbridge.v1 import prover_pb2, prover_pb2_grpc
from prover.keeping import supplement_requests
from prover.keeping.archive import Archive
from prover.keeping.supplement_requests import Progress, Regenerations, SupplementPiece
from prover.service import serve
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.bounded import compress, decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import UsageError
from weighbridge.rpc import endpoints
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import decode, folder_of, key_path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without logs."""
    return on_demand.record(tmp_path_factory.mktemp("bare") / "run")


def always() -> bool:
    return True


def asked(run: Path, steps: tuple[int, int], **options: Any) -> list[Progress | SupplementPiece]:
    """What the service of a run answers, without the network."""
    making = Regenerations(Archive(run.parent), **options)
    return list(making.pieces(Transcript.open(run).manifest.digest, steps, always))


def processes() -> list[str]:
    """Numbers of this process's children that make logs."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = each.read_bytes().decode(errors="replace").split("\0")
            parent = (each.parent / "stat").read_text().rpartition(") ")[2].split()[1]
        except OSError:
            continue
        if supplement_requests.MODULE in words and int(parent) == os.getpid():
            found.append(each.parent.name)
    return found


def test_a_caller_who_leaves_ends_the_process_and_the_next_has_its_turn(run: Path, tmp_path: Path) -> None:
    """The deadline of the first caller passes while its process starts; the second one's logs are made."""
    there, authority = copied(run, tmp_path), CertificateAuthority.create("Station")
    before = set(processes())
    request = prover_pb2.FetchSupplementsRequest(id=Transcript.open(there).manifest.digest, begin=3, end=4)
    with (
        serve(there.parent, authority.issue_role("prover", "p")) as address,
        endpoints.channel(address, authority.issue_role("verifier", "v"), "prover") as channel,
    ):
        stub = prover_pb2_grpc.ProverServiceStub(channel)  # type: ignore[no-untyped-call]
        hasty = stub.FetchSupplements(request, timeout=1.5)
        assert next(hasty).HasField("progress")
        patient = stub.FetchSupplements(request, timeout=120)
        assert next(patient).progress.total == 0, "it waits for its turn"
        with pytest.raises(grpc.RpcError) as ended:
            list(hasty)
        assert ended.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        data = b"".join(each.piece.data for each in patient if each.HasField("piece"))
    assert decode(data).statement.step == 3
    assert data == place(there, 3).read_bytes()
    assert set(processes()) <= before


@pytest.mark.finding("record.regenerate.died")
def test_a_process_that_dies_says_so_and_the_next_has_its_turn(run: Path, tmp_path: Path) -> None:
    there = copied(run, tmp_path)
    before, making = set(processes()), Regenerations(Archive(there.parent))
    pieces = making.pieces(Transcript.open(there).manifest.digest, (3, 4), always)
    assert next(pieces) == Progress(0, 0)
    (number,) = set(processes()) - before
    os.kill(int(number), signal.SIGKILL)
    with pytest.raises(UsageError) as died:
        list(pieces)
    assert died.value.reason == "record.regenerate.died"
    with making._alone(there, always) as waiting:
        assert list(waiting) == []


def test_two_runs_are_made_at_once_and_one_run_never_twice(run: Path, tmp_path: Path) -> None:
    others = [copied(run, tmp_path / name) for name in ("a", "b")]
    making = Regenerations(Archive(tmp_path), at_once=2)
    with making._alone(others[0], always) as first, making._alone(others[1], always) as second:
        assert (list(first), list(second)) == ([], [])
        for taken in others:
            with making._alone(taken, always) as waiting:
                assert next(waiting) == Progress(0, 0)
    with making._alone(others[0], always) as again:
        assert list(again) == []


def test_who_waits_for_a_turn_may_leave(run: Path) -> None:
    making = Regenerations(Archive(run.parent))
    with making._alone(run, always) as first, making._alone(run, lambda: False) as waiting:
        assert list(first) == []
        with pytest.raises(UsageError, match="the caller has gone"):
            list(waiting)


@pytest.mark.parametrize("steps", [(0, 0), (2, 1), (0, 5), (4, 5), (1 << 40, 1 << 41)])
def test_steps_that_are_not_there_are_refused(run: Path, steps: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="are not among them"):
        asked(run, steps)


def test_a_run_with_its_logs_in_full_has_none_to_make(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in full"):
        asked(on_demand.record(tmp_path / "run", logs="full"), (0, 1))


@pytest.mark.finding("record.regenerate.key")
def test_without_its_key_nothing_is_made_but_what_is_there_is_handed_out(run: Path, tmp_path: Path) -> None:
    there = copied(run, tmp_path)
    on_demand.regenerated(there, steps=(3, 4))
    key_path(there).unlink()
    with pytest.raises(UsageError) as refused:
        asked(there, (2, 4))
    assert refused.value.reason == "record.regenerate.key"
    (piece,) = asked(there, (3, 4))
    assert isinstance(piece, SupplementPiece)
    assert (piece.step, piece.data, piece.last) == (3, place(there, 3).read_bytes(), True)


def test_logs_of_a_run_that_lay_there_before_are_not_handed_out(run: Path, tmp_path: Path) -> None:
    """The process is asked to make them, and refuses here for want of the right key."""
    there = copied(run, tmp_path)
    other = on_demand.record(tmp_path / "other" / "run", seed=9)
    on_demand.regenerated(other)
    folder_of(other).rename(folder_of(there))
    key_path(there).unlink()
    with pytest.raises(UsageError) as refused:
        asked(there, (3, 4))
    assert refused.value.reason == "record.regenerate.key"


@pytest.mark.parametrize("frame", [None, compress(b"another log"), b"no frame"], ids=["cut", "other", "none"])
def test_a_damaged_log_is_not_handed_out(run: Path, tmp_path: Path, frame: bytes | None) -> None:
    """The process is asked to make it anew, and refuses here for want of a key. Its statement may still be whole."""
    there = copied(run, tmp_path)
    on_demand.regenerated(there, steps=(3, 4))
    whole = place(there, 3).read_bytes()
    place(there, 3).write_bytes(whole[:-1] if frame is None else cbor({**decode_cbor(whole), "log": frame}))
    key_path(there).rename(tmp_path / "away")
    with pytest.raises(UsageError) as refused:
        asked(there, (3, 4))
    assert refused.value.reason == "record.regenerate.key"
    (tmp_path / "away").rename(key_path(there))
    on_demand.regenerated(there, steps=(3, 4))
    assert [each.data for each in asked(there, (3, 4)) if isinstance(each, SupplementPiece)] == [whole]


def test_of_two_who_wait_only_the_first_has_logs_made(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one process made needs no second one."""
    there, made = copied(run, tmp_path), list[list[int]]()

    def here(request: dict[str, Any], *_: Any) -> Iterator[Progress]:
        made.append(request["steps"])
        on_demand.regenerated(there, steps=tuple(request["steps"]))
        yield Progress(1, 1)

    monkeypatch.setattr(supplement_requests, "_made", here)
    making = Regenerations(Archive(there.parent))
    name = Transcript.open(there).manifest.digest
    with making._alone(there, always) as turn:
        assert list(turn) == []
        waiting = [making.pieces(name, (3, 4), always) for _ in range(2)]
        assert [next(each) for each in waiting] == [Progress(0, 0)] * 2
    came = [[piece.data for piece in each if isinstance(piece, SupplementPiece)] for each in waiting]
    assert came == [[place(there, 3).read_bytes()]] * 2
    assert made == [[3, 4]]


def test_logs_of_a_recording_that_goes_on_are_signed_by_its_own_key(tmp_path: Path) -> None:
    """Its whole steps are declared under a manifest of their own. What is made of them holds for the finished run."""
    running = train(tmp_path / "run", logs="on-demand")
    for _ in range(6):
        next(running)
    archive = Archive(tmp_path)
    archive.explain(bytes(17), 0, step=1)
    (declared,) = archive.transcripts()
    assert declared.home != declared.path
    pieces = list(Regenerations(archive).pieces(declared.id, (1, 2), always))
    for _ in running:
        pass
    transcript = Transcript.open(tmp_path / "run")
    assert transcript.manifest.digest != declared.id
    read = decode(b"".join(each.data for each in pieces if isinstance(each, SupplementPiece)))
    assert (read.signer, read.statement.draft) == (transcript.manifest.public, transcript.draft_digest.hex())
    assert asked(tmp_path / "run", (1, 2)) == [each for each in pieces if isinstance(each, SupplementPiece)]


def test_a_service_that_signs_trees_makes_them_of_what_lies_there_without(run: Path, tmp_path: Path) -> None:
    """The log is the same, and the tree that of `regenerate --tree`; what has a tree is not made a second time."""
    there, other = copied(run, tmp_path / "a"), copied(run, tmp_path / "b")
    on_demand.regenerated(there, steps=(3, 4))
    plain = decode(place(there, 3).read_bytes())
    assert asked(there, (3, 4)) == asked(there, (3, 4)), "without trees it is handed out as it lies there"
    (piece,) = [each for each in asked(there, (3, 4), trees=True) if isinstance(each, SupplementPiece)]
    made = decode(piece.data)
    on_demand.regenerated(other, steps=(3, 4), tree=True)
    wanted = decode(place(other, 3).read_bytes())
    assert made.statement.tree == wanted.statement.tree != ""
    assert (made.statement.rounding, made.signer) == (plain.statement.rounding, plain.signer)
    key_path(there).rename(tmp_path / "away")
    assert asked(there, (3, 4), trees=True) == asked(there, (3, 4)) == [piece], "nothing is made for want of a key"
