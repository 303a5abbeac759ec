"""A false worst row of a layer norm: its party's log is judged by the true one, if the other party names that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.disputed import STEP, Party, judge_here
from support.narrowed import KEYS, REFEREE
from support.recordings import train
from torch import nn

from weighbridge.core.digests import bytes_digest
from weighbridge.execution.dispute import moves, tracing
from weighbridge.execution.dispute.asking import Claim, Traced
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.leaves import Leaf
from weighbridge.execution.dispute.messages import signed
from weighbridge.execution.dispute.openings import Opening
from weighbridge.execution.dispute.refereeing import Referee
from weighbridge.numerics.rounding import rounding_log
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape

WORST, OTHER, PART = 7, 200, 25


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Normalises rows, of which one has a deviation that is small beside its mean, so that the bound is large."""

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.LayerNorm(24)
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(batch["rows"]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    generator = torch.Generator().manual_seed(3)
    batches = []
    for _ in range(STEP):
        rows = torch.randn(300, 24, generator=generator)
        rows[WORST] = 1000 + rows[WORST] * 0.01
        batches.append({"rows": rows})
    path = tmp_path_factory.mktemp("worst") / "run"
    train(path, build, step, batches, every=STEP)
    return path


def claimed(told: Traced, made: Traced, place: int) -> Claim:
    """Returns an honest party's claim about one chunk of the result of a leaf."""
    referee = Referee((KEYS[0].public, KEYS[1].public), REFEREE, judge=judge_here)
    other = replace(told, leaves=(*told.leaves[:place], *[bytes(32)] * (len(told.leaves) - place)))
    asked = moves.challenge(told, STEP, own=True)
    referee.post(signed(referee.dispute.head, asked, KEYS[CHALLENGER]).data)
    referee.post(signed(referee.dispute.head, moves.answer(other, asked), KEYS[DEFENDER]).data)
    claim = referee.dispute.claim(CHALLENGER)
    assert claim is not None
    return replace(claim, part=PART, parts=made.parts, shown=made.leaf)


def test_a_log_that_is_too_short_for_the_true_worst_row(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Party(run).tree()[0]
    names = ["enter", *(node.op for node in Tape.decode(told.tape).nodes), "finish"]
    place = names.index("native_layer_norm.default")
    whole, made = Party(run).tree(place)[0], Party(run).tree(place, PART)[0]
    assert whole.opening is not None
    assert made.opening is not None
    honest = Opening.from_cbor(made.opening)
    assert honest.worst == WORST
    claim = claimed(told, made, place)
    assert judge_here(claim, made.opening).verdict == "admissible"

    # The liar's entries about the chunk have one bit each: enough for the bound that another row gives.
    sections = rounding_log.decode(Transcript.open(run).rounding(STEP), max_entries=1 << 20)
    saved, short = 0, []
    for each in sections:
        if (each.op, each.output) == (place - 1, 0):
            at = (each.positions >= PART * 256) & (each.positions < (PART + 1) * 256)
            assert at.sum() > 200
            assert each.widths[at].min() > 1
            saved = int(each.widths[at].astype(int).sum() - at.sum())
            each = replace(
                each, widths=np.where(at, 1, each.widths).astype(np.uint8),
                bits=np.where(at, each.bits & np.uint64(1), each.bits),
            )  # fmt: skip
        short.append(each)
    log = rounding_log.encode(short)
    record = replace(StepRecord.from_cbor(claim.record), rounding=bytes_digest(log))
    leaf = Leaf.from_cbor(claim.shown)
    leaf = replace(leaf, after=replace(leaf.after, chosen=leaf.after.chosen - saved))
    lie = replace(claim, record=record.to_cbor(), log=bytes_digest(log), leaf=leaf.digest(), shown=leaf.to_cbor())
    monkeypatch.setattr(tracing, "_worst", lambda *_: OTHER)
    false = Party(run).tree(place, PART)[0].opening
    assert false is not None
    opening = replace(Opening.from_cbor(false), log=log)
    assert opening.worst == OTHER

    judged = judge_here(
        replace(lie, part=None, parts=b"", shown=b""), replace(Opening.from_cbor(whole.opening), log=log).to_cbor()
    )
    assert (judged.verdict, judged.code) == ("false", "replay.rounding.inadmissible"), "the whole tells"
    assert judge_here(lie, replace(honest, log=log).to_cbor()).verdict == "false", "so does the true row"
    assert judge_here(lie, opening.to_cbor()).verdict == "admissible", "alone, nothing shows that it is another"
    judged = judge_here(replace(lie, rival=made.opening), opening.to_cbor())
    assert (judged.verdict, judged.code) == ("false", "replay.rounding.inadmissible")
    # What the liar shows takes nothing from the honest party, nor does what is of no memory at all.
    for rival in (
        opening.to_cbor(),
        b"\xff",
        replace(opening, worst=1 << 63).to_cbor(),
        replace(opening, slots=[]).to_cbor(),
    ):
        assert judge_here(replace(claim, rival=rival), made.opening).verdict == "admissible"
        assert judge_here(replace(lie, rival=rival), replace(honest, log=log).to_cbor()).verdict == "false"
