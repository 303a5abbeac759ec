"""What a report says beside findings, as JSON and on the page."""

from __future__ import annotations

import json
import math

import pytest
import torch
from support.reported import build, collect
from torch import nn

from prover import Recorder
from verifier.model.collected import Collected
from verifier.model.facts import TranscriptFacts
from verifier.model.lineage import Lineage
from verifier.model.opened_records import RecordFacts
from verifier.model.segments import Replayed, select
from verifier.report import statistical_evidence
from verifier.report.page import render_html
from weighbridge.core.errors import ReplayWorkerError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.sensitivity import Numbers, Response, Sensitivity
from weighbridge.execution.transcript_facts import open_confined
from weighbridge.transcript.data import DataCommitment, VerifiableOrder
from weighbridge.transcript.parentage import Parent
from weighbridge.transcript.record_opening import OpenedRecord

RECORDS = [{"x": torch.full((4,), float(i))} for i in range(12)]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """A run of six steps with an order that follows from its data; its weights become infinite in the last segment."""
    path = tmp_path_factory.mktemp("runs") / "run"
    data = DataCommitment.over(RECORDS, VerifiableOrder(bytes(32), 1))
    with Recorder(path, seed=data.seed() or 0, data=data, checkpoint_every=2) as recorder:
        with recorder.initialisation():
            model = nn.Linear(4, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder.attach(model, optimizer)
        ids = data.ids().tolist()
        for step in range(6):
            optimizer.param_groups[0]["lr"] = math.inf if step == 5 else 0.1
            x = torch.stack([RECORDS[i]["x"] for i in ids[2 * step : 2 * step + 2]])
            with recorder.step({"x": x}):
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    transcript = open_confined(path)
    found = collect(tmp_path_factory.mktemp("report"), text="<b>")
    found.transcripts["prover:1", transcript.digest] = TranscriptFacts(id=transcript.digest, opened=transcript)
    parent = Parent(transcript="ab" * 32, step=3, state=bytes(32))
    found.lineages = [
        Lineage(id=transcript.digest, parent=parent, held=ReplayWorkerError("it ran out of memory")),
        Lineage(id="cd" * 32, elsewhere={"ef" * 32: 7}),
    ]
    chosen = Replayed(selection=select(transcript, sampled=[4], seed=bytes(16)))
    chosen.results = {each.begin: ReplayWorkerError("<i>") for each in chosen.selection.chosen}
    found.segments = [chosen]
    shown = OpenedRecord(record=1, content=b"", proof=())
    found.records = [
        RecordFacts(id=transcript.digest, root=bytes(32), count=12, asked=[1, 2], used={1, 2}, opened=[shown])
    ]
    found.memories = [
        {"transcript": transcript.digest, "begin": 1, "end": 3, "own": [0.5], "control": [0.1], "auc": 1.0, "p": 0.5},
        {"transcript": transcript.digest, "begin": 3, "end": 5, "why_not": "<script>"},
    ]
    return found


def test_it_is_json_that_says_what_is_known(collected: Collected) -> None:
    told = statistical_evidence.build(collected)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    own, other = told["beginnings"]
    assert own["parent"] == {"transcript": "ab" * 32, "step": 3}
    assert not own["compared"]
    assert other == {
        "transcript": "cd" * 32, "from_outside": 0, "parent": None, "compared": False, "elsewhere": {"ef" * 32: 7},
        "runs": 1, "chosen": {},
    }  # fmt: skip
    orders = [each for each in told["orders"] if each["order"] == "verifiable"]
    assert [each["seed_follows"] for each in orders] == [True]
    (moved,) = [each["segments"] for each in told["weights"] if each["transcript"] == own["transcript"]]
    assert [each["begin"] for each in moved] == [1, 3, 5]
    assert 0 < moved[0]["change"] < 1
    assert moved[2]["change"] is moved[2]["score"] is None  # JSON has no infinity
    assert told["records"] == [{"transcript": own["transcript"], "asked": 2, "used": 2, "opened": 0}]
    assert [each["verdict"] for each in told["segments"][0]["verdicts"]] == ["replay.worker"]


def test_the_page_shows_it_and_escapes_it(collected: Collected) -> None:
    report = build(collected)
    page = render_html({**report, "evidence": statistical_evidence.build(collected)})
    assert "follows from the data" in page
    assert "(not compared)" in page
    assert "2 records asked for, 2 of them used, 0 opened" in page
    assert "memorisation not tested: &lt;script&gt;" in page
    assert "1 segments chosen to be replayed whole, 0 of them match" in page
    assert "Evidence</h2>" not in render_html({**report, "evidence": {}})


def test_the_page_shows_how_weights_responded(collected: Collected) -> None:
    response = Response(3, "00" * 32, "insensitive", "<b>", "noise", Numbers(40))
    result = ReplayResult(verdict="match", steps=(0, 6), state="00")
    result.sensitivity = Sensitivity("00" * 32, 4, (response,))
    (segment,) = collected.segments
    tested = Replayed(selection=segment.selection, results={each.begin: result for each in segment.selection.chosen})
    evidence = {**statistical_evidence.build(collected), "segments": [tested.to_json()]}
    page = render_html({**build(collected), "evidence": evidence})
    assert "Sensitivity of step 3: insensitive (&lt;b&gt;)." in page
