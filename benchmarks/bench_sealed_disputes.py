"""What a dispute in a sealed worker takes beside an ordinary one, in seconds and in memory.

`python -m benchmarks.bench_sealed_disputes [--steps 4 8 16] [--rounds 3]`. The trainings are those of
`benchmarks.bench_disputes`, and so is the lie: the defender names other hashes from the operation with the most FLOPs
of the last step on. Both parties stand by one transcript.

In each round these are measured in turn, on the wall, with the start of each process:

- *ordinary*: the referee's judgement of both claims; and what it asks of the parties, a tree and an opening of each.
- *sealed*: all that a sealed referee does once it has both parties' files: it checks both transcripts, makes both
  openings, and judges both claims (`weighbridge.execution.workers.sealed_referee.ruled`). Here that runs outside of an
  image, with the same processes. Encryption, and the start of a worker, are measured apart.
- *start*: a sealed worker in its image, from the command to the attestation.

*Memory* is the peak of the resident memory of any process that reads what the parties gave (`VmHWM`, by looks every
5 ms), with PyTorch, which all of them share with what they are forked from. Every ruling is checked: the challenger's
claim `admissible`, the defender's `false`. Results go to benchmarks/results/sealed_disputes.json.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import bench_disputes
from benchmarks.bench_disputes import LIMITS, SEED, costliest, measure_lengths, play, ruling
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.manifest import SigningKey
from weighbridge.attest.sealed_attestation import Launcher
from weighbridge.attest.sealed_dispute import SLACK_S, Admission, DisputeTerms, Seat
from weighbridge.attest.sealed_order import Order
from weighbridge.attest.sealed_subject import Subject
from weighbridge.execution import fork_server, worker_process
from weighbridge.execution.dispute import asking, moves, sealed_files
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.messages import Content, Shown
from weighbridge.execution.replay import replay
from weighbridge.execution.sealed import building
from weighbridge.execution.sealed import image as images
from weighbridge.execution.workers.sealed_referee import ruled
from weighbridge.transcript.reader import Transcript

UEID = bytes([1]) * 17
RUN_S, CLOCK_S = 120, 60
LOOKS_S = 0.005
Keys = tuple[SigningKey, SigningKey]


@contextmanager
def watched(into: list[int]) -> Iterator[None]:
    """Notes the peak of the memory of any process that is forked meanwhile, in bytes."""
    over, peak = threading.Event(), [0]

    def watch() -> None:
        while not over.wait(LOOKS_S):
            for server in list(fork_server._FORK_SERVERS.values()):
                for worker in _below(server._process.pid):
                    peak[0] = max(peak[0], _peak(worker))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        into.append(peak[0])


def _below(process: int) -> list[int]:
    found = []
    try:
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_below(child)]
    except OSError:
        pass
    return found


def _peak(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def measure(run: Path, rounds: int) -> dict[str, Any]:
    """Measures the disputes about one training, both ways."""
    transcript = Transcript.open(run)
    step = transcript.steps - 1
    tape, leaf = costliest(transcript, step)
    opened = asking.trace(run, step, place=leaf, limits=LIMITS)
    behind = [secrets.token_bytes(32) for _ in opened.leaves[leaf:]]
    liar = replace(opened, leaves=(*opened.leaves[:leaf], *behind))
    asked, shown = moves.challenge(opened, step, own=True), Shown(opening=opened.opening or b"")
    said: list[tuple[int, Content]] = [
        (CHALLENGER, asked), (DEFENDER, moves.answer(liar, asked)), (CHALLENGER, shown), (DEFENDER, shown),
    ]  # fmt: skip
    claims = (asked, moves.challenge(liar, step, own=True))
    times: dict[str, list[float]] = {name: [] for name in ("judged", "parties", "sealed", "part")}
    memory: dict[str, list[int]] = {name: [] for name in ("judged", "parties", "sealed")}
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        court = Court(Path(directory), transcript, step)
        files = court.given(run, claims)
        size = sum(each.stat().st_size for each in files[0].rglob("*") if each.is_file())
        for _ in range(rounds):
            _timed(times["judged"], memory["judged"], lambda: ruling(play(said).ruling))
            _timed(times["parties"], memory["parties"], lambda: _parties(run, step, leaf))
            _timed(times["sealed"], memory["sealed"], lambda: court.ruled(files))
            _timed(times["part"], [], lambda: replay(run, steps=(step, step + 1), limits=LIMITS))
    least = {name: min(taken) for name, taken in times.items()}
    return {
        "steps": step, "operations": len(tape.nodes), "operation": tape.nodes[leaf - 1].op, "given": size,
        "seconds": {name: [round(each, 3) for each in taken] for name, taken in times.items()},
        "memory": {name: max(found) for name, found in memory.items()},
        "ratios": {
            "sealed / judged": round(least["sealed"] / least["judged"], 3),
            "sealed / all": round(least["sealed"] / (least["judged"] + least["parties"]), 3),
            "sealed / part": round(least["sealed"] / least["part"], 3),
        },
    }  # fmt: skip


def _parties(run: Path, step: int, leaf: int) -> None:
    """What both parties of an ordinary dispute do: a tree each, and an opening each."""
    for _ in range(2):
        asking.trace(run, step, limits=LIMITS)
        asking.trace(run, step, place=leaf, limits=LIMITS)


class Court:
    """Two parties who agreed on a dispute about one transcript."""

    def __init__(self, root: Path, transcript: Transcript, step: int) -> None:
        """Makes the terms."""
        self._root, self._keys = root, (SigningKey.generate(), SigningKey.generate())
        digest, signer = bytes.fromhex(transcript.digest), transcript.manifest.public
        self._subject = Subject(step=step, blind=secrets.token_bytes(32), challenger=digest, defender=digest)
        self._terms = agreed(
            self._keys, challenger_signer=signer, defender_signer=signer, subject=self._subject.commitment,
            inputs=1 << 30, memory=LIMITS.memory,
        )  # fmt: skip

    def given(self, run: Path, claims: tuple[Any, Any]) -> tuple[Path, Path]:
        """Gathers what both parties give."""
        at = (self._root / "0", self._root / "1")
        for out, claim in zip(at, claims, strict=True):
            sealed_files.gather(out, run, claim, self._subject.to_bytes())
        return at

    def ruled(self, files: tuple[Path, Path]) -> None:
        """Has the game played.

        Raises:
            RuntimeError: The ruling is another than that the defender, and no other party, lies.
        """
        worker_process.prepare()
        found = ruled(self._terms, ordered(self._terms, self._keys), files, time.monotonic() + 2 * RUN_S)
        if (found.challenger, found.defender) != ("admissible", "false"):
            raise RuntimeError(f"the ruling is {found}; the defender, and no other party, lies")


def agreed(keys: Keys, **changed: Any) -> DisputeTerms:
    """Returns terms that two parties agreed on: about nothing, unless that is said."""
    given: dict[str, Any] = {
        "challenger_signer": keys[0].public, "defender_signer": keys[1].public, "subject": bytes(32),
        "measurement": bytes(48), "inputs": 1 << 26, "memory": 1 << 28, "run_s": RUN_S, "clock_s": CLOCK_S,
        "leaves_after_s": 2 * RUN_S + CLOCK_S + SLACK_S,
    }  # fmt: skip
    return DisputeTerms(
        dispute="bench", attempt=0, challenger=keys[0].public, defender=keys[1].public, site=UEID, shows_class=False,
        dispute_bits=30, year_bits=100, **given | changed,
    )  # fmt: skip


def ordered(terms: DisputeTerms, keys: Keys) -> Order:
    """Has both parties take their seats, with nothing in them, and returns the order."""
    seats = [
        Seat.take(
            terms, key, nonce=secrets.token_bytes(32), key=secrets.token_bytes(32), commitment=secrets.token_bytes(32)
        ).to_cbor()
        for key in keys
    ]
    return Admission(terms=terms.to_cbor(), challenger=seats[0], defender=seats[1]).order()


def start(rounds: int) -> list[float]:
    """Returns the seconds from the command that starts a sealed worker to its attestation, and ends the worker."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        root, keys = Path(directory), (SigningKey.generate(), SigningKey.generate())
        building.build(root / "image")
        Launcher.issue(CertificateAuthority.create("Bench"), UEID).save(root / "launcher")
        terms = agreed(keys, measurement=images.load(root / "image").measurement)
        return [round(_started(root, terms, keys), 2) for _ in range(rounds)]


def _started(root: Path, terms: DisputeTerms, keys: Keys) -> float:
    (root / "order").write_bytes(ordered(terms, keys).to_cbor())
    command = [
        sys.executable, "-m", "weighbridge.cli", "site", "worker", "--order", str(root / "order"), "--identity",
        str(root / "launcher"), "--image", str(root / "image"), "--log", str(root / "starts"), "--memory", "1",
    ]  # fmt: skip
    began = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as running:
        assert running.stdout is not None
        if len(running.stdout.read(4)) != 4:
            raise RuntimeError("no worker was started; what it said stands above")
        taken = time.perf_counter() - began
        running.kill()
    return taken


def _timed(into: list[float], memory: list[int], work: Callable[[], object]) -> None:
    with watched(memory):
        begin = time.perf_counter()
        work()
        into.append(time.perf_counter() - begin)


if __name__ == "__main__":
    worker_process.prepare()
    measure_lengths(
        "sealed_disputes", __doc__, measure, bench_disputes.STEPS, 3, seed=SEED,
        checkpoint_every=bench_disputes.CHECKPOINT_EVERY, start=start(3),
    )  # fmt: skip
