"""What a dispute about one operation takes when it is judged by a chunk of the result, and when it is judged whole.

`python -m benchmarks.bench_narrowed_disputes [--models gpt2-11m gpt2-124m] [--rounds 3]`. One step of each model is
recorded. Of that step four operations are disputed: the product with the most FLOPs, the elementwise operation with the
largest result, a softmax, and a layer norm. The challenger is honest. The defender lies about one chunk in the middle
of the result: its leaf and the memory in it fit the false result, so that only executing the operation shows the lie.
What is too large to open is judged by a chunk alone.

- *Opening* and *parts* are bytes of a party's messages.
- *Executed* is the referee's judgement of the honest claim: reading the opening, checking proofs, executing and
  hashing, in a process that has warmed up with the same claim. Its *memory* is the peak of a fresh process beyond what
  that held before. Each way is measured in turn in each round; times are minima over rounds, memory the largest.
- *Judged* is both claims on the wall, by confined workers, with their start.

Beside each other are timed a party's *tree* of the step, all its leaves hashed, and the step's *replay*, each with the
start of its worker.

Every ruling is checked: the challenger's claim `admissible`, the defender's `false`. Results go to
benchmarks/results/narrowed_disputes.json, and keep models that were not run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine, models
from benchmarks.bench_disputes import play, ruling
from benchmarks.soak import gpt2_124m
from prover import Recorder
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import TranscriptError
from weighbridge.core.memory_map import Held, changed_root
from weighbridge.core.treehash.parts import chunks_of, digest_of
from weighbridge.execution.dispute import asking, moves
from weighbridge.execution.dispute.asking import Claim, Traced
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.judgement import judge
from weighbridge.execution.dispute.leaves import Leaf
from weighbridge.execution.dispute.messages import Content, Parts, Shown
from weighbridge.execution.dispute.openings import Opening
from weighbridge.execution.memory_roots import slots_of
from weighbridge.execution.replay import replay
from weighbridge.execution.worker_process import Limits
from weighbridge.execution.workers import dispute_worker
from weighbridge.program.flops import flops
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

SEED = 11
DIGEST = 32
NAMES = ("gpt2-11m", "gpt2-124m")
LIMITS = Limits(14 << 30, 1800)
"""Of a party's tree and of a replay; what a referee needs is measured."""
PRODUCTS = ("mm.default", "addmm.default", "bmm.default")
ELEMENTS = ("add.Tensor", "mul.Tensor", "div.Tensor", "tanh.default", "gelu.default")
NORMS = ("native_layer_norm.default",)
SOFTMAX = ("_softmax.default", "_safe_softmax.default", "_log_softmax.default")


def record(path: Path, name: str) -> None:
    """Records one step of a model."""
    with Recorder(path, seed=SEED, checkpoint_every=1, device="cpu") as recorder:
        with recorder.initialisation():
            made = gpt2_124m() if name == "gpt2-124m" else models.named(name)()
        recorder.attach(*made.attached)
        batch = made.batch(0)
        with recorder.step(batch):
            made.update(batch)


def disputed(tape: Tape) -> dict[str, int]:
    """Returns the leaves that are disputed, by what they are."""
    costs = flops(tape)

    def largest(operations: Sequence[str], *, by_cost: bool = False) -> int:
        found = [at for at, node in enumerate(tape.nodes) if node.op in operations]
        return 1 + max(found, key=lambda at: costs[at] if by_cost else _elements(tape, at))

    return {
        "product": largest(PRODUCTS, by_cost=True), "elements": largest(ELEMENTS), "softmax": largest(SOFTMAX),
        "layer norm": largest(NORMS),
    }  # fmt: skip


def _elements(tape: Tape, op: int) -> int:
    output = tape.nodes[op].outputs[0]
    return 0 if output is None else torch.Size(tape.refs[output][2]).numel()


def lie(told: Traced, op: int, chunk: int) -> tuple[bytes, bytes]:
    """Returns the leaf of a party whose result has another chunk, and the parts of that result."""
    assert told.opening is not None
    tape, leaf, shown = Tape.decode(told.tape), Leaf.from_cbor(told.leaf), Opening.from_cbor(told.opening)
    at = DIGEST * chunk
    parts = told.parts[:at] + os.urandom(DIGEST) + told.parts[at + DIGEST :]
    sizes = {slot: held.size for slot, _, held, _ in shown.slots if held} | dict(tape.nodes[op].births)
    results, begin = dict[int, Held](), 0
    for output in tape.nodes[op].outputs:
        if output is not None:
            slot = tape.refs[output][0]
            end = begin + DIGEST * chunks_of(sizes[slot])
            results[slot], begin = Held(sizes[slot], digest_of(parts[begin:end], sizes[slot])), end
    freed = {each: None for when, each in tape.frees if when == op}
    proofs = {each: (held, proof) for each, _, held, proof in shown.slots}
    left = changed_root(slots_of(tape), proofs, {**freed, **results}, leaf.memory)
    contents = [held.content for held in results.values()]
    contents = contents * len(leaf.results) if len(contents) == 1 else contents
    noted = [(content, checksum) for content, (_, checksum) in zip(contents, leaf.results, strict=False)]
    return replace(leaf, results=noted, left=left).to_cbor(), parts


def measure(run: Path, what: str, place: int, rounds: int) -> dict[str, Any]:
    """Measures a dispute about one operation, both ways."""
    step = Transcript.open(run).steps - 1
    first = asking.trace(run, step, place=place, part=0, limits=LIMITS)
    tape = Tape.decode(first.tape)
    chunk = len(first.parts) // DIGEST // 2
    part = asking.trace(run, step, place=place, part=chunk, limits=LIMITS)
    tolds = {"part": part}
    with contextlib.suppress(TranscriptError):  # an opening that is larger than a party can give
        tolds = {"whole": asking.trace(run, step, place=place, limits=LIMITS), **tolds}
    leaf, parts = lie(part, place - 1, chunk)
    behind = [os.urandom(DIGEST) for _ in part.leaves[place + 1 :]]
    theirs = replace(part, leaves=(*part.leaves[:place], Leaf.from_cbor(leaf).digest(), *behind))
    asked = moves.challenge(part, step, own=True)
    answer = moves.answer(theirs, asked)
    begun: list[tuple[int, Content]] = [(CHALLENGER, asked), (DEFENDER, answer)]
    named: list[tuple[int, Content]] = [
        (CHALLENGER, Parts(leaf=part.leaf, parts=part.parts)), (DEFENDER, Parts(leaf=leaf, parts=parts)),
    ]  # fmt: skip
    ways: dict[str, list[tuple[int, Content]]] = {}
    found: dict[str, Any] = {}
    for way, told in tolds.items():
        shown = Shown(opening=told.opening or b"")
        ways[way] = [*begun, *(named if way == "part" else ()), (CHALLENGER, shown), (DEFENDER, shown)]
        found[way] = {"opening": len(shown.opening), "executed": [], "peak": [], "judged": []}
    for _ in range(rounds):
        for way, said in ways.items():
            referee = play(said)
            ruled = ruling(referee.ruling)
            claim = referee.dispute.claim(CHALLENGER)
            assert claim is not None
            seconds, peak = alone(claim, referee.dispute.openings[CHALLENGER])
            found[way]["judged"].append(round(ruled.judged, 3))
            found[way]["executed"].append(round(seconds, 4))
            found[way]["peak"].append(peak)
            found[way]["sent"] = ruled.sent[CHALLENGER]
    node = tape.nodes[place - 1]
    output = node.outputs[0]
    assert output is not None
    return {
        "what": what, "operation": node.op, "shape": list(tape.refs[output][2]), "chunks": len(part.parts) // DIGEST,
        "chunk": chunk, "parts": len(part.parts), **found,
    }  # fmt: skip


def alone(claim: Claim, opening: bytes) -> tuple[float, int]:
    """Has a fresh process judge a claim; returns its seconds once warm, and the peak of its memory beyond the start."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        at = Path(directory)
        (at / "claim").write_bytes(cbor(asdict(claim)))
        (at / "opening").write_bytes(opening)
        command = [sys.executable, "-m", "benchmarks.bench_narrowed_disputes", "--judge", directory]
        said = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return said["seconds"], said["peak"]


def judge_alone(at: Path) -> None:
    """Judges the claim that `alone` wrote, twice, and prints what that took."""
    torch.set_num_threads(1)
    claim = Claim(**decode_cbor((at / "claim").read_bytes()))
    opening, limit = (at / "opening").read_bytes(), LIMITS.memory
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        tracer = dispute_worker._tracer({"device": "cpu", "memory": limit}, decode_cbor(claim.terms))
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        found = judge(claim, opening, tracer)
        peak = _memory("VmHWM") - before
        begin = time.perf_counter()
        again = judge(claim, opening, tracer)
        seconds = time.perf_counter() - begin
    if found.verdict != "admissible" or again != found:
        raise RuntimeError(f"the honest claim is {found}")
    print(json.dumps({"seconds": seconds, "peak": peak}))


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def steps_beside(run: Path, rounds: int) -> dict[str, Any]:
    """Measures a party's tree of the step and the step's replay, in turn."""
    transcript, seconds = Transcript.open(run), {"tree": list[float](), "replay": list[float]()}
    step = transcript.steps - 1
    for _ in range(rounds):
        for name, work in (
            ("tree", lambda: asking.trace(run, step, limits=LIMITS)),
            ("replay", lambda: replay(run, steps=(step, step + 1), limits=LIMITS)),
        ):
            begin = time.perf_counter()
            work()
            seconds[name].append(round(time.perf_counter() - begin, 3))
    return {
        "operations": len(Tape.decode(transcript.tape(transcript.step(step).tape)).nodes), "seconds": seconds,
        "transcript": sum(file.stat().st_size for file in run.rglob("*") if file.is_file()),
    }  # fmt: skip


def main() -> None:
    """Measures the disputes about each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=NAMES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--judge", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge is not None:
        judge_alone(options.judge)
        return
    torch.set_num_threads(1)
    load = round(os.getloadavg()[0], 1)
    about = {**machine.about(), "load_before": load, "rounds": options.rounds, "seed": SEED}
    last = machine.load("narrowed_disputes") or {}
    found = [each for each in last.get("disputes", []) if each["model"] not in options.models]
    steps = {name: each for name, each in last.get("steps", {}).items() if name not in options.models}
    for name in options.models:
        with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
            run = Path(directory) / "run"
            record(run, name)
            steps[name] = steps_beside(run, options.rounds)
            print(name, steps[name], flush=True)
            transcript = Transcript.open(run)
            places = disputed(Tape.decode(transcript.tape(transcript.step(transcript.steps - 1).tape)))
            for what, place in places.items():
                found.append({"model": name, **measure(run, what, place, options.rounds)})
                print(found[-1], flush=True)
                machine.save("narrowed_disputes", about | {"disputes": found, "steps": steps})


if __name__ == "__main__":
    main()
