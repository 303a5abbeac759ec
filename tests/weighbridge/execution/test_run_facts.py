"""Facts of a run, counted by a confined worker: against what the run was, and hostile answers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.damage import flipped
from support.forging import resign

from prover import Recorder
from weighbridge.core.errors import TranscriptError, WeighbridgeError
from weighbridge.execution.run_facts import Amount, Repetition, RunFacts, examine, parse
from weighbridge.execution.worker_process import Limits
from weighbridge.program.passport import passport
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.resumption_notes import Resumption, encode
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.writer import RESUMPTIONS

STEPS, BATCH, WIDTH = 5, 4, 6
LIMITS = Limits(memory=2 << 30, seconds=120)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A linear model trained with a learning rate that falls by a declared formula."""
    path = tmp_path_factory.mktemp("runfacts") / "run"
    formulas = {"update": "-0.1 / t"}
    with Recorder(path, seed=1, formulas=formulas) as recorder:
        with recorder.initialisation():
            model = torch.nn.Linear(WIDTH, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder.attach(model, optimizer)
        for number in range(1, STEPS + 1):
            optimizer.param_groups[0]["lr"] = 0.1 / number
            x = torch.full((BATCH, WIDTH), float(number))
            with recorder.step({"x": x}):
                model(x).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    return path


def test_the_facts_are_those_of_the_run(run: Path) -> None:
    facts = examine(run, limits=LIMITS, env={"OMP_NUM_THREADS": "1"})
    assert facts.steps == STEPS
    # Forward, and the gradient of the weights: two products of 2 * BATCH * WIDTH each. The input needs no gradient.
    # Beside them the square, its sum, the three products of their gradient and the sum of the bias's count one for each
    # row, and the update one for each weight. Each weight was drawn once, and scaled and shifted into its range: three.
    step, init = 4 * BATCH * WIDTH + 6 * BATCH + WIDTH + 1, 3 * (WIDTH + 1)
    assert facts.flops == {"init": init, "step": STEPS * step, "edit": 0}
    assert facts.total == STEPS * step + init
    assert sum(program.count for program in facts.programs) == STEPS + 1
    seen = Transcript.open(run).programs()
    assert [(program.digest, program.first) for program in facts.programs] == [(d.hex(), n) for d, n in seen.items()]
    assert not facts.fixed
    transcript = Transcript.open(run)
    own = passport(transcript, lambda digest: Tape.decode(transcript.tape(digest)))
    assert facts.passport == own["digest"]
    assert any("addmm" in name or "mm." in name for name in facts.operations)
    assert facts.hyperparameters["update"] == pytest.approx((-0.1, -0.1 / STEPS, -0.1 / STEPS))
    assert (facts.used, facts.seen, facts.parameters) == (0, 0, None)  # no data commitment, no chip
    assert (facts.initial.flops, facts.initial.narrow, facts.repetitions) == (init, 0, ())


def test_a_resumption_repeats_what_lies_after_its_checkpoint(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / RESUMPTIONS).write_bytes(encode([Resumption(2, 0), Resumption(4, 3)]))
    resign(copy)
    checkpoints, (init, step) = Transcript.open(copy).manifest.checkpoints, [p.flops for p in examine(run).programs[:2]]
    assert init is not None
    assert step is not None
    reached = [Amount(0), *(Amount(init + n * step) for n in range(STEPS + 1))]
    from_ = max(each for each in checkpoints if each <= 3)
    assert examine(copy).repetitions == (
        Repetition(2, 0, Amount(0), reached[3]),
        Repetition(4, 3, reached[from_], reached[5]),
    )


def test_an_altered_transcript_has_no_facts(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    tape = next((copy / "tapes").iterdir())
    tape.write_bytes(flipped(tape.read_bytes()))
    with pytest.raises(TranscriptError) as caught:
        examine(copy, limits=LIMITS)
    assert caught.value.reason == "transcript.file.altered"


HONEST: dict[str, Any] = {
    "steps": 2, "flops": {"init": 1, "step": 2, "edit": 0}, "operations": ["aten.mm.default"], "parameters": 3,
    "programs": [{"digest": "ab", "kind": "step", "first": 1, "count": 2, "operations": 7, "flops": 1, "steps": 2}],
    "fixed": True, "used": 1, "seen": 2, "hyperparameters": {"lr": [0.1, 0.2, 0.1]},
    "passport": "ab" * 32, "initial": [1, 0], "repetitions": [[3, 2, [1, 0], [3, 0]]],
}  # fmt: skip


def test_an_honest_answer_is_read() -> None:
    facts = parse({"result": HONEST})
    assert isinstance(facts, RunFacts)
    assert facts.total == 3
    assert parse({"result": HONEST | {"flops": None}}).total is None


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(sorted(HONEST)),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
)
def test_hostile_answers_raise_only_our_errors(name: str, value: Any) -> None:
    """Law: an answer with any value in any field is refused, or read as facts of the right types."""
    try:
        facts = parse({"result": HONEST | {name: value}})
    except WeighbridgeError:
        return
    assert isinstance(facts.steps, int)
    assert facts.steps >= 0
    assert all(isinstance(each, str) for each in facts.operations)
