"""Inspections of runs with logs on demand: Provers who make the logs, and those who make them falsely, late, or never.

The Prover answers over gRPC and makes logs in a process of their own. Where it says so, replays are processes of
another kind of machine, which cannot do without the logs. Nothing stands in for anything but the chips, whose logs a
test writes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from support import on_demand
from support.exactly import found
from support.forging import at_step, forge
from support.on_demand import ELSEWHERE, copied, flipped, key_of, place, regenerated, resigned
from support.workers_here import workers_here
from support.written_chips import Bench, WrittenChip

from protos.weighbridge.v1 import prover_pb2
from prover.keeping import supplement_requests
from prover.service import ProverService
from verifier.contact import supplement_receiving
from verifier.evidence import bundle, verification
from verifier.evidence.export import Source, export
from verifier.evidence.verification import Reader
from verifier.model.policies import SegmentPolicy
from verifier.model.supplement_facts import LATE, MISSING, REFUSED
from verifier.registry import Chip
from verifier.report import consistency
from verifier.report.page import render_html
from verifier.store.cache import Cache
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.bounded import compress, decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import UsageError
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import folder_of, key_path

needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this PyTorch multiplies without MKL")

WHOLE = SegmentPolicy(random=0, largest=1, recognise=0)
"""The segment of the snapshot, from step 3 on, and the only one with checkpoints at both ends, from step 1 on."""
USUAL = {"data.not_precommitted"}
"""Findings (info) of these runs, whatever becomes of their logs."""


@pytest.fixture(scope="module")
def run(bench: Bench) -> Path:
    """A run without logs, with its key beside it."""
    return on_demand.record(bench.runs / "on-demand" / "run")


@pytest.fixture(scope="module")
def supplemented(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, and supplements that its Prover made."""
    there = copied(run, tmp_path_factory.mktemp("supplemented"))
    regenerated(there)
    return there


@pytest.fixture
def chip(bench: Bench, run: Path) -> WrittenChip:
    """A chip that has the run in memory; its clock stands still from here on, which is noticed after a minute."""
    return bench.at_end(run)


def inspected(bench: Bench, run: Path, chip: WrittenChip, **also: Any) -> dict[str, Any]:
    """The report on a chip whose Prover shows a run."""
    return bench.inspected(run.parent, chip, **also)


def elsewhere(bench: Bench, run: Path, chip: WrittenChip, **also: Any) -> dict[str, Any]:
    """The same, of a Verifier with a machine of another kind."""
    return inspected(bench, run, chip, apart=True, replay_env=ELSEWHERE, **also)


def outcome(report: dict[str, Any]) -> tuple[str, bool, set[str]]:
    """Verdict, whether the chip counts as verified, and what was found."""
    return report["verdict"], report["chips"][0]["verified"], found(report) - USUAL


def requests(report: dict[str, Any]) -> list[tuple[int, int, int]]:
    """What was asked for, and how much came: (first step, step after the last one, supplements)."""
    return [(each["begin"], each["end"], each["came"]) for each in report["evidence"]["supplements"]["requests"]]


def counts(report: dict[str, Any]) -> tuple[int, int, int, int]:
    """The Prover's requests: asked for and made in this inspection, and in earlier ones."""
    (row,) = report["evidence"]["supplements"]["provers"]
    return row["asked"], row["regenerated"], row["asked_before"], row["regenerated_before"]


def said(report: dict[str, Any], identifier: str) -> str:
    """What the findings of a kind say, all together."""
    return " ".join(f"{each['message']} {each['found']}" for each in report["findings"] if each["id"] == identifier)


# -- honest ------------------------------------------------------------------------------------------------------------


@needs_mkl
def test_an_honest_prover_makes_the_logs_and_is_verified(bench: Bench, run: Path, chip: WrittenChip) -> None:
    """By `weighbridge serve prover`, as a Prover runs it."""
    assert not folder_of(run).exists()
    bench.ueids[chip.ueid.hex()] = chip.ueid
    bench.registry.register(Chip(ueid=chip.ueid, address=bench.address, prover_address=bench.prover()))
    report = bench.inspect(chip.ueid.hex(), replay_env=ELSEWHERE)
    assert outcome(report) == ("clean", True, set()), report["findings"]
    assert requests(report) == [(3, 4, 1)], "a snapshot alone needs the steps from the checkpoint before it on"
    assert [each.name for each in folder_of(run).iterdir()] == ["00000003.wsup"], "the next one need not wait"


def test_nothing_is_asked_about_a_run_with_its_logs_in_full(bench: Bench, honest: Path) -> None:
    report = inspected(bench, honest, bench.at_end(honest))
    assert (report["verdict"], report["evidence"]["supplements"]) == ("clean", {"requests": [], "provers": []})


def test_what_is_there_is_handed_out_at_once(bench: Bench, supplemented: Path, chip: WrittenChip) -> None:
    key_path(supplemented).rename(key_path(supplemented).with_suffix(".away"))
    try:
        report = inspected(bench, supplemented, chip, segments=WHOLE)
    finally:
        key_path(supplemented).with_suffix(".away").rename(key_path(supplemented))
    assert outcome(report) == ("clean", True, set()), report["findings"]
    assert requests(report) == [(3, 4, 1), (1, 3, 2)]
    assert {each["verdict"] for each in report["evidence"]["segments"][0]["verdicts"]} == {"match"}


@needs_mkl
def test_evidence_holds_the_logs_that_its_replay_needs(
    bench: Bench, supplemented: Path, chip: WrittenChip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever verifies it on another machine would find that the Verifier had said otherwise."""
    cache, key = Cache(tmp_path / "cache"), SigningKey.generate()
    report = inspected(bench, supplemented, chip, cache=cache)
    name = report["inspection"]
    bench.registry.set_stage(name, "done", report=report)
    source = Source(registry=bench.registry, cache=cache, report_key=key, manufacturer=bench.manufacturer.certificate)
    entry = report["chips"][0]["snapshots"][0]["index"]
    for variable, value in ELSEWHERE.items():
        monkeypatch.setenv(variable, value)
    reader, outcomes = Reader(key=key.public, manufacturer=bench.manufacturer.certificate), []
    for logs in ("with", "without"):
        file = tmp_path / f"{logs}.zip"
        statement = export(source, name, file, snapshot=(chip.ueid.hex(), entry))
        assert ("transcript.supplements/00000003.wsup" in statement.parts) is (logs == "with")
        (tmp_path / logs).mkdir()
        claims = verification.verify(bundle.read(file, tmp_path / logs), tmp_path / logs, reader)
        outcomes += [each.outcome for each in claims if each.name == "replay"]
        for folder in cache.root.glob("*.supplements"):
            shutil.rmtree(folder)
    assert outcomes == ["verified", "failed"]


def test_a_verifier_that_goes_on_does_not_ask_twice(
    bench: Bench, supplemented: Path, chip: WrittenChip, tmp_path: Path
) -> None:
    """Nor does it count a request twice. Logs that were lost meanwhile are asked for anew."""
    cache = Cache(tmp_path / "cache")
    first = inspected(bench, supplemented, chip, cache=cache)
    same = {"identifier": first["inspection"]}
    again = inspected(bench, supplemented, chip, cache=cache, service=Refuses, given=same)
    assert outcome(again) == outcome(first) == ("clean", True, set())
    assert (requests(again), counts(again)) == (requests(first), (1, 1, *counts(first)[2:]))
    for folder in cache.root.glob("*.supplements"):
        shutil.rmtree(folder)
    lost = inspected(bench, supplemented, chip, cache=cache, service=Refuses, given=same)
    assert (requests(lost), counts(lost)) == ([(3, 4, 0)], (1, 0, *counts(first)[2:]))


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "cut"])
def test_a_log_that_the_verifier_lost_is_asked_for_anew(
    bench: Bench, supplemented: Path, chip: WrittenChip, tmp_path: Path, lost: bool
) -> None:
    """A power cut, or its disk: what became of one file is not held against the Prover, who sends it again."""
    cache, name = Cache(tmp_path / "cache"), chip.ueid.hex()
    bench.ueids[name] = chip.ueid
    with bench.shown(supplemented.parent) as address, workers_here():
        bench.registry.register(Chip(ueid=chip.ueid, address=bench.address, prover_address=address))
        first = bench.inspect(name, cache=cache)
        (file,) = cache.root.glob("*.supplements/00000003.wsup")
        whole = file.read_bytes()
        file.unlink() if lost else file.write_bytes(whole[:-1])
        again = bench.inspect(name, cache=cache, given={"identifier": first["inspection"]})
    assert (outcome(again), requests(again)) == (("clean", True, set()), [(3, 4, 1)])
    assert file.read_bytes() == whole


class RefusesOnce(ProverService):
    """One of several Provers; whichever is asked first says that its repeat differs."""

    asked = 0

    def FetchSupplements(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        RefusesOnce.asked += 1
        if RefusesOnce.asked == 1:
            raise UsageError("the repeat differs", code="replay.mismatch")
        yield from super().FetchSupplements(request, context)


def test_if_one_prover_does_not_make_the_logs_another_is_asked(bench: Bench, run: Path, supplemented: Path) -> None:
    """Two chips had the run in memory, and each has a Prover. That the first one refuses is said of it."""
    RefusesOnce.asked, chips, folder = 0, [bench.at_end(run) for _ in range(2)], supplemented.parent
    with bench.shown(folder, RefusesOnce) as one, bench.shown(folder, RefusesOnce) as other, workers_here():
        for each, prover in zip(chips, (one, other), strict=True):
            bench.ueids[each.ueid.hex()] = each.ueid
            bench.registry.register(Chip(ueid=each.ueid, address=bench.address, prover_address=prover))
        report = bench.inspect(*(each.ueid.hex() for each in chips))
    first, second = report["evidence"]["supplements"]["requests"]
    assert requests(report) == [(3, 4, 0), (3, 4, 1)]
    assert {first["prover"], second["prover"]} == {one, other}
    assert found(report) - USUAL == {REFUSED, MISSING}
    assert [each["subject"] for each in report["findings"] if each["id"] == MISSING] == [f"Prover {first['prover']}"]
    assert [each["verified"] for each in report["chips"]] == [True, True]
    assert consistency.check(report) == []


# -- falsely, and twice ------------------------------------------------------------------------------------------------


@pytest.mark.finding("replay.mismatch")
def test_a_false_log_is_a_mismatch(bench: Bench, tmp_path: Path) -> None:
    """Signed by the run's key, with the true digests, and an element that is rounded the other way."""
    there = on_demand.record(tmp_path / "run")  # of its own: what is known of another does not count
    regenerated(there)
    resigned(there, 3, entries=flipped)
    report = inspected(bench, there, bench.at_end(there))
    assert outcome(report) == ("findings", False, {"replay.mismatch"}), report["findings"]
    assert requests(report) == [(3, 4, 1)], "it came; that it is false only the replay sees"


@pytest.mark.finding("transcript.supplement.equivocation")
def test_two_logs_of_one_step_are_found_over_inspections(bench: Bench, tmp_path: Path) -> None:
    """Though the Verifier's cache was emptied in between, and though the second log leads to the same results here."""
    there = on_demand.record(tmp_path / "run")  # of its own: what is known of another does not count
    regenerated(there)
    chip = bench.at_end(there)
    assert outcome(inspected(bench, there, chip)) == ("clean", True, set())
    resigned(there, 3, entries=lambda _: None)
    for _ in range(2):  # and again: it is not forgotten
        report = inspected(bench, there, chip)
        assert outcome(report)[0] == "findings"
        assert "transcript.supplement.equivocation" in found(report)
    (finding,) = [each for each in report["findings"] if each["id"] == "transcript.supplement.equivocation"]
    assert (finding["severity"], finding["expected"] != finding["found"]) == ("violation", True)
    assert finding["subject"] == f"transcript {Transcript.open(there).manifest.digest}: step 3"


@pytest.mark.parametrize(
    ("lie", "identifier"),
    [
        pytest.param({"key": SigningKey.generate()}, "transcript.supplement.signature", id="another key"),
        pytest.param({"said": lambda s: replace(s, outputs="ab" * 32)}, "transcript.supplement.foreign", id="outputs"),
        pytest.param({"said": lambda s: replace(s, state="ab" * 32)}, "transcript.supplement.foreign", id="state"),
        pytest.param({"said": lambda s: replace(s, before="ab" * 32)}, "transcript.supplement.foreign", id="before"),
        pytest.param({"said": lambda s: replace(s, step=2)}, "transcript.supplement.foreign", id="step"),
    ],
)
def test_what_is_not_the_steps_own_is_not_kept(
    bench: Bench, supplemented: Path, chip: WrittenChip, tmp_path: Path, lie: dict[str, Any], identifier: str
) -> None:
    """On a machine of the recording's kind the run matches all the same; it is not clean."""
    there = copied(supplemented, tmp_path / "runs")
    resigned(there, 3, **lie)
    cache = Cache(tmp_path / "cache")
    report = inspected(bench, there, chip, cache=cache)
    assert outcome(report) == ("findings", True, {identifier, REFUSED, MISSING}), report["findings"]
    assert requests(report) == [(3, 4, 0)]
    assert list(cache.root.glob("*.supplements/*")) == []


@pytest.mark.parametrize("frame", [b"no frame", compress(bytes(1 << 24)), compress(b"another log")], ids=len)
def test_a_signed_statement_with_no_log_beside_it_counts_for_nothing(
    bench: Bench, supplemented: Path, chip: WrittenChip, tmp_path: Path, frame: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signed in the true form, so that only the worker that expands it can tell: the request is counted as refused."""
    # An honest Prover's service makes what is damaged anew; this one sends what lies there.
    monkeypatch.setattr(supplement_requests, "_missing", lambda *_: [])
    there = copied(supplemented, tmp_path / "runs")
    parts = decode_cbor(place(there, 3).read_bytes())
    place(there, 3).write_bytes(cbor({**parts, "log": frame}))
    report = inspected(bench, there, chip)
    assert outcome(report) == ("findings", True, {"transcript.supplement.malformed", REFUSED, MISSING})
    assert (requests(report), counts(report)[:2]) == ([(3, 4, 0)], (1, 0))


@pytest.mark.finding("prover.supplements.refused")
@needs_mkl
def test_a_prover_whose_repeat_differs_verifies_nothing(bench: Bench, run: Path, tmp_path: Path) -> None:
    """It committed to a result that it did not compute. The process that makes its logs says so itself."""
    key = key_of(run)

    def lie(_: Any, fields: dict[str, Any]) -> None:
        sums = np.frombuffer(fields["checksums"], dtype="<u8").copy()
        sums[0] ^= np.uint64(1 << 20)
        fields["checksums"] = sums.tobytes()

    forged = forge(run, tmp_path / "run", at_step(3, lie), key=key)
    shutil.copy(key_path(run), key_path(forged))
    report = elsewhere(bench, forged, bench.at_end(forged, replays=False))
    assert outcome(report)[:2] == ("findings", False)
    assert found(report) >= {REFUSED, MISSING, "replay.log.absent"}, report["findings"]
    assert "step 3, operation 1 (mm.default)" in said(report, REFUSED)


# -- late, and never ---------------------------------------------------------------------------------------------------


class Stalls(ProverService):
    """Says every moment that it is working on it."""

    asked = 0

    def FetchSupplements(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        type(self).asked += 1
        while context.is_active():
            progress = prover_pb2.RegenerationProgress(done=1, total=2)
            yield prover_pb2.FetchSupplementsResponse(progress=progress)
            time.sleep(0.05)


class Refuses(ProverService):
    """Says that its repeat differs, and does not try."""

    def FetchSupplements(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        raise UsageError("the repeat differs", code="replay.mismatch")
        yield


class Older(ProverService):
    """A Prover's service from before there were logs on demand."""

    def FetchSupplements(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        yield


@pytest.mark.finding("prover.supplements.late")
@needs_mkl
def test_a_prover_that_never_ends_is_late_once(bench: Bench, supplemented: Path, chip: WrittenChip) -> None:
    """And it costs the Verifier one deadline, however many segments it draws."""
    Stalls.asked = 0
    report = elsewhere(bench, supplemented, chip, service=Stalls, regeneration_s=1.0, segments=WHOLE)
    assert outcome(report)[:2] == ("findings", False)
    assert found(report) >= {LATE, MISSING, "replay.log.absent"}, report["findings"]
    assert (Stalls.asked, requests(report)) == (1, [(3, 4, 0), (1, 3, 0)])
    assert counts(report)[:2] == (2, 0), "what it was not asked any more counts as well"
    assert [each["seconds"] >= 1 for each in report["evidence"]["supplements"]["requests"]] == [True, False]
    assert "1 rounding logs within 1 s, from step 3 on" in [f["expected"] for f in report["findings"]]


@pytest.mark.finding("prover.supplements.missing")
def test_a_prover_that_never_makes_logs_is_counted_over_inspections(
    bench: Bench, supplemented: Path, chip: WrittenChip
) -> None:
    """Here the run matches without. The Prover gains nothing by the Verifier's having the same kind of machine."""
    with bench.shown(supplemented.parent, Refuses) as address:
        bench.ueids[chip.ueid.hex()] = chip.ueid
        bench.registry.register(Chip(ueid=chip.ueid, address=bench.address, prover_address=address))
        with workers_here():
            reports = [bench.inspect(chip.ueid.hex()) for _ in range(3)]
    assert [outcome(each) for each in reports] == [("findings", True, {REFUSED, MISSING})] * 3, reports[0]["findings"]
    assert [counts(each) for each in reports] == [(1, 0, 0, 0), (1, 0, 1, 0), (1, 0, 2, 0)]
    assert "of 3 segments whose rounding logs this Prover was asked for, 3 were not made" in said(reports[2], MISSING)
    page = render_html(reports[2])
    assert "of 1 segments, of which 0 were made; in earlier inspections for those of 2, of which 0 were made" in page


def test_a_prover_of_an_older_version_refuses(bench: Bench, supplemented: Path, chip: WrittenChip) -> None:
    report = inspected(bench, supplemented, chip, service=Older)
    assert outcome(report) == ("findings", True, {REFUSED, MISSING}), report["findings"]


# -- nonsense ----------------------------------------------------------------------------------------------------------


def sends(*pieces: tuple[int, int, bytes, bool]) -> type[ProverService]:
    """A Prover's service that sends these pieces whatever is asked for."""

    class Sends(ProverService):
        def FetchSupplements(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
            for step, offset, data, last in pieces:
                piece = prover_pb2.SupplementPiece(step=step, offset=offset, data=data, last=last)
                yield prover_pb2.FetchSupplementsResponse(piece=piece)

    return Sends


@pytest.mark.parametrize(
    ("pieces", "word"),
    [
        pytest.param([(2, 0, b"x", True)], "step 2 came, which was not asked for", id="another step"),
        pytest.param([(4, 0, b"x", True)], "step 4 came", id="no such step"),
        pytest.param([(3, 0, b"x", True)] * 2, "step 3 came", id="twice"),
        pytest.param([(3, 1, b"x", True)], "did not come in order", id="offset"),
        pytest.param([(3, 0, b"x", False), (2, 1, b"x", True)], "did not come in order", id="mixed"),
        pytest.param([(3, 0, b"x", False)], "ended before its last piece", id="cut off"),
        pytest.param([(3, 0, b"x" * 100, False), (3, 100, b"x" * 100, True)], "more than 150 bytes", id="too large"),
        pytest.param([], "it sent fewer", id="nothing"),
    ],
)
def test_nonsense_costs_the_prover_its_own(
    bench: Bench, supplemented: Path, chip: WrittenChip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    pieces: list[tuple[int, int, bytes, bool]], word: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(supplement_receiving, "MAX_BYTES", 150)
    cache = Cache(tmp_path / "cache")
    report = inspected(bench, supplemented, chip, service=sends(*pieces), cache=cache)
    assert found(report) >= {REFUSED, MISSING}, report["findings"]
    assert word in said(report, REFUSED)
    assert (report["verdict"], requests(report)) == ("findings", [(3, 4, 0)])
    assert not [each for each in cache.root.rglob("*") if each.is_file() and "arriving" in str(each)]
