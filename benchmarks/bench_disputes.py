"""What a dispute takes beside a replay: messages, bytes and seconds, against the length of the training.

`python -m benchmarks.bench_disputes [--steps 4 8 16] [--rounds 2]`. A small GPT-2 is recorded for several lengths with
a checkpoint every 4 steps. Two parties then dispute it by their courses, so that the dispute finds the step:

- The challenger is honest.
- The defender lies about the last step. It repeats the honest leaves up to the operation with the most FLOPs, names
  other hashes from there on, a record that fits its course, and opens the operation as it really is. So the referee
  has two claims to judge, and executes that operation for each (and once more to see whether roundings explain it).

In each round the parts are measured in turn, on the wall, workers included: both judgements, a worker that reads a
record and no more (the start of a worker), the challenger's tree of the step, the replay of the disputed part (the
step, from the checkpoint before it), and that of the whole training. Ratios are of minima over the rounds of one run,
which the rest of the machine disturbs least. Every ruling is checked: the challenger's claim `admissible`, the
defender's `false`. Results go to benchmarks/results/disputes.json.
"""

from __future__ import annotations

import argparse
import os
import secrets
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from analysis.economics import dispute_rounds
from benchmarks import machine, models
from prover import Recorder
from weighbridge.attest.manifest import SigningKey
from weighbridge.execution.dispute import asking, moves
from weighbridge.execution.dispute.asking import Traced
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER, NAMES
from weighbridge.execution.dispute.messages import Answer, Content, Course, Message, Ruling, Shown, pack, signed
from weighbridge.execution.dispute.refereeing import Referee
from weighbridge.execution.replay import replay
from weighbridge.execution.worker_process import Limits
from weighbridge.program.flops import flops
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape

STEPS = (4, 8, 16)
CHECKPOINT_EVERY = 4
ROUNDS = 2
SEED = 11
LIMITS = Limits(4 << 30, 600)
KEYS = (SigningKey.generate(), SigningKey.generate())
REFEREE = SigningKey.generate()


def record(path: Path, steps: int) -> None:
    """Records a training."""
    with Recorder(path, seed=SEED, checkpoint_every=CHECKPOINT_EVERY, device="cpu") as recorder:
        with recorder.initialisation():
            made = models.gpt2()
        recorder.attach(*made.attached)
        for number in range(steps):
            batch = made.batch(number)
            with recorder.step(batch):
                made.update(batch)


def costliest(transcript: Transcript, step: int) -> tuple[Tape, int]:
    """Returns the program of a step, and the leaf of its operation with the most FLOPs."""
    tape = Tape.decode(transcript.tape(transcript.step(step).tape))
    costs = flops(tape)
    return tape, 1 + max(range(len(costs)), key=costs.__getitem__)


def lie(honest: Traced, course: Course, step: int, leaf: int) -> tuple[Traced, Course]:
    """Returns the tree and the course of a party that has other results from a leaf on."""
    other = secrets.token_bytes(32)
    made = replace(StepRecord.from_cbor(honest.record), state=other)
    leaves = (*honest.leaves[:leaf], *(secrets.token_bytes(32) for _ in honest.leaves[leaf:]))
    states = course.states[: 32 * step] + other + course.states[32 * (step + 1) :]
    return replace(honest, record=made.to_cbor(), leaves=leaves), replace(course, states=states)


def play(said: list[tuple[int, Content]]) -> Referee:
    """Has a referee take what the parties say, and rule."""
    referee = Referee(
        (KEYS[CHALLENGER].public, KEYS[DEFENDER].public), REFEREE, judge=partial(asking.judge, limits=LIMITS)
    )
    for party, content in said:
        referee.post(signed(referee.dispute.head, content, KEYS[party]).data)
    return referee


def ruling(said: Message | None) -> Ruling:
    """Returns what a referee ruled, which has to be that the defender alone lies.

    Raises:
        RuntimeError: It is another one.
    """
    found = said.content if said else None
    if not isinstance(found, Ruling) or [claim[1] for claim in found.claims] != ["admissible", "false"]:
        raise RuntimeError(f"the ruling is {found}; the defender, and no other party, lies")
    return found


def measure(run: Path, rounds: int) -> dict[str, Any]:
    """Measures the disputes about one training."""
    transcript = Transcript.open(run)
    step = transcript.steps - 1
    tape, leaf = costliest(transcript, step)
    course = asking.course(run, limits=LIMITS)
    opened = asking.trace(run, step, place=leaf, limits=LIMITS)
    liar, other = lie(opened, course, step, leaf)
    asked, shown = moves.challenge(opened, step, own=True), Shown(opening=opened.opening or b"")
    answer: Answer = moves.answer(liar, asked)
    said: list[tuple[int, Content]] = [
        (CHALLENGER, course), (DEFENDER, other), (CHALLENGER, asked), (DEFENDER, answer), (CHALLENGER, shown),
        (DEFENDER, shown),
    ]  # fmt: skip
    referee = play(said)
    claim = referee.dispute.claim(CHALLENGER)
    assert claim is not None
    if referee.dispute.step != step or referee.dispute.leaf != leaf:
        raise RuntimeError("the dispute found another step or leaf than that of the lie")
    times: dict[str, list[float]] = {name: [] for name in ("judged", "worker", "tree", "part", "whole")}
    part = (0, 0)
    for _ in range(rounds):
        times["judged"].append(ruling(play(said).ruling).judged)
        times["worker"].append(_timed(lambda: asking.judge(replace(claim, answered=False), b"", limits=LIMITS)))
        times["tree"].append(_timed(lambda: asking.trace(run, step, limits=LIMITS)))
        begin = time.perf_counter()
        part = replay(run, steps=(step, step + 1), limits=LIMITS).steps
        times["part"].append(time.perf_counter() - begin)
        times["whole"].append(_timed(lambda: replay(run, limits=LIMITS)))
    least = {name: min(taken) for name, taken in times.items()}
    sent = ruling(referee.ruling).sent
    return {
        "steps": step, "operations": len(tape.nodes), "operation": tape.nodes[leaf - 1].op,
        "part_steps": part[1] - part[0],
        "messages": {name: sum(who == party for who, _ in said) for party, name in enumerate(NAMES)},
        "bisection": int(dispute_rounds(steps=step)) + int(dispute_rounds(steps=len(tape.nodes))),
        "bytes": {
            "challenger": sent[CHALLENGER], "defender": sent[DEFENDER], "file": len(pack(referee.log())),
            "course": len(course.states) + len(course.inputs), "leaves": len(asked.leaves),
            "opening": len(shown.opening),
            "transcript": sum(file.stat().st_size for file in run.rglob("*") if file.is_file()),
        },
        "seconds": {name: [round(each, 3) for each in taken] for name, taken in times.items()},
        "ratios": {
            f"{name} / {beside}": round(least[name] / least[beside], 3)
            for name, beside in (
                ("judged", "part"), ("judged", "whole"), ("worker", "part"), ("judged", "worker"), ("tree", "part"),
            )
        },
    }  # fmt: skip


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure_lengths(
    name: str, description: str | None, measured: Callable[[Path, int], dict[str, Any]],
    lengths: tuple[int, ...], rounds: int, **about: Any,
) -> None:  # fmt: skip
    """Records a training of each length, measures it, and saves what was found; lengths and rounds may be told.

    Args:
        name: Of the results.
        description: For `--help`.
        measured: Measures a transcript in so many rounds.
        lengths: In steps, by default.
        rounds: By default.
        about: What else to save.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=lengths)
    parser.add_argument("--rounds", type=int, default=rounds)
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = round(os.getloadavg()[0], 1)
    found = []
    for steps in options.steps:
        with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
            record(Path(directory) / "run", steps)
            found.append(measured(Path(directory) / "run", options.rounds))
        print(found[-1], flush=True)
    machine.save(name, {**machine.about(), "load_before": load, "rounds": options.rounds, **about, "trainings": found})


if __name__ == "__main__":
    measure_lengths("disputes", __doc__, measure, STEPS, ROUNDS, seed=SEED, checkpoint_every=CHECKPOINT_EVERY)
