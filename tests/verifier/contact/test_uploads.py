"""Uploads on the Verifier's disk: whatever is sent in whatever pieces, only what is whole and verified is ever seen."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.damage import flipped
from support.snapshot_facts import make
from support.untrained_transcripts import write_transcript
from support.uploading import files_of, resigned

from firmware_sim.device import Device
from verifier.contact.uploaded_explanations import Uploaded
from verifier.contact.uploads import EXPIRY_S, STREAMS, STREAMS_OF_ONE, UPLOADS, Quota, Uploads
from verifier.store.cache import Cache, FetchLimits
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import QuotaError, UsageError, WeighbridgeError
from weighbridge.rpc.busy import BusyError
from weighbridge.transcript.job_record import JobRecord, MeshCoordinate
from weighbridge.transcript.reader import Transcript

A, B = "a" * 64, "b" * 64
"""Two certificates."""


def uploads_in(root: Path, quota: Quota | None = None, **limits: int) -> Uploads:
    return Uploads(Cache(root, FetchLimits(**limits)), quota)


def give(uploads: Uploads, identifier: str, files: dict[str, bytes], *, who: str = A, finish: bool = True) -> None:
    """Hands in what is missing in one call."""
    held = uploads.status(who, identifier) or {}
    with uploads.receiving(who, identifier) as receiving:
        for path, content in files.items():
            if held.get(path, -1) < len(content):
                receiving.begin(path, len(content), held.get(path, 0))
                receiving.write(content[held.get(path, 0) :])
        if finish:
            uploads.finish(receiving, who)


def stored(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def reason(uploads: Uploads, identifier: str, files: dict[str, bytes], **options: Any) -> str:
    with pytest.raises(WeighbridgeError) as caught:
        give(uploads, identifier, files, **options)
    return caught.value.reason


def test_an_upload_is_seen_when_it_is_whole_and_not_before(tmp_path: Path) -> None:
    identifier, cache = write_transcript(tmp_path / "run"), tmp_path / "cache"
    files = files_of(tmp_path / "run")
    uploads = uploads_in(cache)
    give(uploads, identifier, files, finish=False)
    assert not uploads.whole()
    assert Cache(cache).find(identifier) is None
    assert uploads.status(A, identifier) == {path: len(content) for path, content in files.items()}
    assert uploads.status(B, identifier) == {}  # a Prover does not see what others upload
    give(uploads, identifier, files)
    assert uploads.status(A, identifier) is None
    assert [each.id for each in uploads.whole()] == [identifier]
    found = Cache(cache).find(identifier)
    assert found is not None
    assert found.digest == identifier
    assert files_of(found.path) == files
    with pytest.raises(UsageError, match="whole"):
        give(uploads, identifier, files)
    # Another Prover's upload of the same transcript changes nothing but what is its own.
    give(uploads, identifier, files, who=B)
    assert [each.certificate for each in uploads.whole()] == [A, B]
    again = uploads_in(cache)  # what a new process knows
    assert again.whole() == uploads.whole()
    shutil.rmtree(cache / identifier)  # an operator made room
    assert uploads_in(cache).whole() == []
    assert uploads.status(A, identifier) == {}
    give(uploads, identifier, files)
    assert Cache(cache).find(identifier) is not None


def test_an_upload_broken_off_anywhere_goes_on_there(tmp_path: Path) -> None:
    identifier = write_transcript(tmp_path / "run", tape=bytes(random.Random(1).randbytes(5000)))
    files, rng = files_of(tmp_path / "run"), random.Random(5)
    for trial in range(8):
        cache, sent, calls = tmp_path / f"cache{trial}", 0, 0
        while True:
            uploads = uploads_in(cache)  # a new process each time
            if (held := uploads.status(A, identifier)) is None:
                break
            calls += 1
            left = rng.randrange(200, 3000)
            with uploads.receiving(A, identifier) as receiving:
                for path, content in files.items():
                    begin = held.get(path, 0)
                    if begin < len(content) and left > 0:
                        receiving.begin(path, len(content), begin)
                        part = content[begin : begin + left]
                        receiving.write(part)
                        left, sent = left - len(part), sent + len(part)
                        if begin + len(part) < len(content):
                            break
                else:
                    uploads.finish(receiving, A)
        assert sent == sum(map(len, files.values()))  # each byte once
        assert calls > 2
        found = Cache(cache).find(identifier)
        assert found is not None
        assert files_of(found.path) == files


def test_a_minimal_copy_is_whole_without_what_it_leaves_out(honest_run: Path, tmp_path: Path) -> None:
    from weighbridge.transcript.export import export

    export(honest_run, tmp_path / "small", minimal=True)
    identifier = Transcript.open(honest_run).digest
    uploads = uploads_in(tmp_path / "cache")
    give(uploads, identifier, files_of(tmp_path / "small"))
    assert [each.id for each in uploads.whole()] == [identifier]


def test_what_breaks_a_rule_is_removed_whole(tmp_path: Path) -> None:
    identifier, cache = write_transcript(tmp_path / "run"), tmp_path / "cache"
    files, uploads = files_of(tmp_path / "run"), uploads_in(tmp_path / "cache")
    manifest = files["manifest.json"]
    tapes = next(path for path in files if path.startswith("tapes/"))
    for wrong, expected in (
        ({**files, "draft.cbor": flipped(files["draft.cbor"])}, "transcript.file.altered"),
        ({**files, "notes.txt": b"hello"}, "transcript.upload.path"),
        ({**files, "../evil": b"evil"}, "transcript.upload.path"),
        ({**files, tapes: files[tapes] + b"more"}, "transcript.upload.path"),
        ({**files, "manifest.json": flipped(manifest)}, "transcript.upload.id"),
        ({**files, "manifest.json": b"{}"}, "transcript.upload.id"),
    ):
        assert reason(uploads, identifier, wrong) == expected
        assert stored(cache) == []
    for listed in (
        [("a", 1, "0" * 64), ("a/b", 1, "0" * 64)],
        [("x" * 300, 1, "0" * 64)],
        [("manifest.json", 1, "0" * 64)],
    ):  # no manifest with a path that leads elsewhere can be signed
        forged, text = resigned(manifest, listed)
        assert reason(uploads, forged, {"manifest.json": text}) == "transcript.upload.path", listed
        assert stored(cache) == []
    forged, text = resigned(manifest, [("huge", 1 << 40, "0" * 64)])
    assert reason(uploads, forged, {"manifest.json": text}) == "transcript.upload.oversized"
    forged, text = resigned(manifest, [(path, len(content), "0" * 64) for path, content in files.items()][1:])
    assert reason(uploads, forged, {**files, "manifest.json": text}) == "transcript.file.altered"
    assert reason(uploads_in(tmp_path / "other", files=3), identifier, files) == "transcript.upload.oversized"
    with uploads.receiving(A, identifier) as receiving, pytest.raises(UsageError):
        receiving.begin("manifest.json", 1 << 60, 0)
    assert stored(cache) == []
    give(uploads, identifier, files)  # and it is not held against who uploads it right


def test_what_comes_out_of_place_costs_nothing(tmp_path: Path) -> None:
    identifier = write_transcript(tmp_path / "run")
    files, uploads = files_of(tmp_path / "run"), uploads_in(tmp_path / "cache")
    names = list(files)

    def go(*steps: tuple[str, int, int, bytes] | None) -> None:
        with uploads.receiving(A, identifier) as receiving:
            for step in steps:
                if step is None:
                    uploads.finish(receiving, A)
                else:
                    receiving.begin(*step[:3])
                    receiving.write(step[3])

    def order(*steps: tuple[str, int, int, bytes] | None) -> None:
        before = stored(tmp_path / "cache")
        with pytest.raises(UsageError) as caught:
            go(*steps)
        assert caught.value.reason == "transcript.upload.order"
        assert set(before) <= set(stored(tmp_path / "cache"))

    content = files[names[1]]
    order((names[1], len(content), 0, content))  # before the manifest
    order(None)
    give(uploads, identifier, {names[0]: files[names[0]]}, finish=False)
    order((names[1], len(content), 5, content[5:]))
    order((names[1], len(content), 0, content[:5]), (names[2], len(files[names[2]]), 0, b""))
    assert (uploads.status(A, identifier) or {})[names[1]] == 5
    order((names[1], len(content), 0, content))  # again what is there
    order(None)
    with uploads.receiving(A, identifier) as receiving, pytest.raises(UsageError, match="header"):
        receiving.write(b"x")
    give(uploads, identifier, {name: files[name] for name in names[:-1]}, finish=False)
    assert reason(uploads, identifier, {}) == "transcript.file.missing"
    give(uploads, identifier, files)
    assert uploads.status(A, identifier) is None


def test_quotas_are_of_each_certificate_and_promised_room_counts(tmp_path: Path) -> None:
    first, second = (write_transcript(tmp_path / name, name=name) for name in ("one", "two"))
    one, two = (files_of(tmp_path / name) for name in ("one", "two"))
    size = sum(map(len, one.values()))
    for quota in (Quota(total=size + 100), Quota(files=len(one) + 1)):
        cache = tmp_path / f"cache{quota.files}"
        uploads = uploads_in(cache, quota)
        give(uploads, first, {"manifest.json": one["manifest.json"]}, finish=False)  # its files are yet to come
        with pytest.raises(QuotaError) as caught:
            give(uploads, second, two)
        assert caught.value.reason == "transcript.upload.quota"
        give(uploads, second, two, who=B)
        give(uploads, first, one)
        for known in (uploads, uploads_in(cache, quota)):  # whole ones count, also in the next process
            assert reason(known, second, two) == "transcript.upload.quota"
        shutil.rmtree(cache / first)
        give(uploads_in(cache, quota), second, two)
    nothing = uploads_in(tmp_path / "none", Quota(total=0))
    assert reason(nothing, first, one) == "transcript.upload.quota"
    assert stored(tmp_path / "none") == []
    with pytest.raises(UsageError):
        Quota(total=-1)


def test_who_stops_in_the_middle_loses_it_after_a_week(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identifier = write_transcript(tmp_path / "run")
    files, uploads = files_of(tmp_path / "run"), uploads_in(tmp_path / "cache")
    other = write_transcript(tmp_path / "other", name="other")
    give(uploads, identifier, files, finish=False)
    give(uploads, other, files_of(tmp_path / "other"))
    past = time.time() - EXPIRY_S - 1
    for path in (tmp_path / "cache").rglob("*"):
        os.utime(path, (past, past))
    again = uploads_in(tmp_path / "cache")
    assert again.status(A, identifier) == {}
    assert again.status(A, other) is None
    assert not list((tmp_path / "cache" / UPLOADS).rglob("manifest.json"))
    give(again, identifier, files, finish=False)
    for path in (tmp_path / "cache" / UPLOADS).rglob("*"):
        os.utime(path, (past, past))
    monkeypatch.setattr("verifier.contact.uploads.SWEEP_S", 0.0)  # also while the Verifier runs, at any upload
    give(again, identifier, {}, who=B, finish=False)
    assert again.status(A, identifier) == {}


def test_some_uploads_at_a_time(tmp_path: Path) -> None:
    identifier, uploads = write_transcript(tmp_path / "run"), uploads_in(tmp_path / "cache")
    with uploads.receiving(A, identifier):
        with pytest.raises(BusyError):
            uploads.status(A, identifier)
        others = [uploads.receiving(A, str(number) * 64) for number in range(STREAMS_OF_ONE)]
        for each in others[:-1]:
            each.__enter__()
        with pytest.raises(BusyError):
            others[-1].__enter__()
        more = [uploads.receiving(f"{number:064x}", identifier) for number in range(STREAMS - STREAMS_OF_ONE + 1)]
        for each in more[:-1]:
            each.__enter__()
        with pytest.raises(BusyError):
            more[-1].__enter__()
        for each in [*others[:-1], *more[:-1]]:
            each.__exit__(None, None, None)
    assert uploads.status(A, identifier) == {}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["manifest.json", "draft.cbor", "../x", "a/b", ""]) | st.text(max_size=8),
            st.integers(0, 2**64 - 1) | st.integers(0, 50),
            st.integers(0, 2**64 - 1) | st.just(0),
            st.binary(max_size=60),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_hostile_uploads_raise_only_our_errors(tmp_path: Path, hostile: list[tuple[str, int, int, bytes]]) -> None:
    """Whatever is sent is refused, and nothing of it is visible or outside the upload's own directory."""
    uploads = uploads_in(tmp_path / "cache")
    with contextlib.suppress(WeighbridgeError), uploads.receiving(A, "c" * 64) as receiving:
        for path, size, offset, data in hostile:
            receiving.begin(path, size, offset)
            receiving.write(data)
        uploads.finish(receiving, A)
        raise AssertionError("it was not refused")
    assert not uploads.whole()
    assert {path.split("/")[0] for path in stored(tmp_path)} <= {"cache"}
    assert set(stored(tmp_path / "cache")) <= {f"{UPLOADS}/{A}/{'c' * 64}/manifest.json"}
    shutil.rmtree(tmp_path / "cache")


def test_only_uploads_that_the_chip_knows_of_explain_its_snapshots(
    tmp_path: Path, device: Device, manufacturer: CertificateAuthority
) -> None:
    """Another Prover cannot get between by naming a snapshot that is not its own, however early it comes."""
    false = write_transcript(tmp_path / "false", name="false", ueid=device.ueid)
    honest = write_transcript(tmp_path / "honest", name="honest", ueid=device.ueid)
    snapshot = make(device, manufacturer, Transcript.open(tmp_path / "honest"))
    cache = Cache(tmp_path / "cache")
    uploads = Uploads(cache)
    give(uploads, false, files_of(tmp_path / "false"), who=B)
    assert Uploaded(uploads, cache).explain(snapshot) is None
    give(uploads, honest, files_of(tmp_path / "honest"))
    assert Uploaded(uploads, cache).explain(snapshot) == snapshot.explanation
    # A crash may have come before the recorder noted the snapshot: then the history that the chip signed says it.
    snapshot.index = 999
    found = Uploaded(uploads, cache).explain(snapshot)
    assert found is not None
    assert (found.transcript_id, found.step, found.op) == (honest, 2, 4)
    other = make(device, manufacturer, Transcript.open(tmp_path / "honest"), head=b"h" * 32)
    other.index = 999
    assert Uploaded(uploads, cache).explain(other) is None
    # What was altered on the Verifier's own disk explains nothing.
    (tmp_path / "cache" / honest / "draft.cbor").write_bytes(b"x")
    assert Uploaded(uploads, cache).explain(snapshot) is None


def test_of_a_job_all_ranks_that_one_prover_uploaded_are_named(
    tmp_path: Path, device: Device, manufacturer: CertificateAuthority
) -> None:
    job = JobRecord(b"j" * 16, (("data", 3),))
    names = [f"rank{rank}" for rank in range(3)]
    identifiers = [
        write_transcript(
            tmp_path / name,
            name=name,
            ueid=device.ueid if rank == 1 else bytes(17),
            draft={"job": MeshCoordinate(job, rank).to_map()},
        )
        for rank, name in enumerate(names)
    ]
    cache = Cache(tmp_path / "cache")
    uploads = Uploads(cache)
    for rank, who in ((0, A), (1, A), (2, B)):
        give(uploads, identifiers[rank], files_of(tmp_path / names[rank]), who=who)
    snapshot = make(device, manufacturer, Transcript.open(tmp_path / "rank1"))
    for known in (uploads, Uploads(cache)):
        found = Uploaded(known, cache).explain(snapshot)
        assert found is not None
        assert found.ranks == (identifiers[0], identifiers[1], "")
    give(uploads, identifiers[2], files_of(tmp_path / names[2]))
    found = Uploaded(uploads, cache).explain(snapshot)
    assert found is not None
    assert found.ranks == tuple(identifiers)
