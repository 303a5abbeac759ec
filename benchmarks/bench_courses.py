"""How a dispute finds the step, against the length of the training: messages, bytes and seconds.

`python -m benchmarks.bench_courses [--steps 100 1000 ...] [--rounds 3]`. Nothing is trained: two courses of random
digests part at a random step, and the game itself is played on them (`weighbridge.execution.dispute.game`), with signed
messages, up to where the step is known. What follows then is one step's, and does not depend on the training's length.

- *Made* is what a party needs for its course in ranges, *found* all of the referee: signatures, courses, ranges.
- *Binary* is a game that halves what is left with each question, one digest of 32 bytes from each party.

Results go to benchmarks/results/courses.json.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import time
from dataclasses import replace
from typing import Any

from analysis.economics import dispute_rounds
from benchmarks import machine
from weighbridge.attest.manifest import SigningKey
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER, Dispute
from weighbridge.execution.dispute.messages import Content, Course, read, signed
from weighbridge.execution.dispute.ranges import range_of, spoken

STEPS = (100, 1_000, 10_000, 100_000, 1_000_000)
DIGEST = 32
KEYS = (SigningKey.generate(), SigningKey.generate())


def play(steps: int) -> dict[str, Any]:
    """Plays one game until the step is known.

    Raises:
        RuntimeError: It found another step than that at which the courses part.
    """
    drawn = random.randrange(steps)
    honest = Course(terms=b"terms", states=secrets.token_bytes(DIGEST * steps), inputs=b"\x01" * (DIGEST * steps))
    behind = secrets.token_bytes(DIGEST * (steps - drawn))
    courses = (honest, replace(honest, states=honest.states[: DIGEST * drawn] + behind))
    begin = time.perf_counter()
    named = [spoken(each) for each in courses]
    made = (time.perf_counter() - begin) / 2
    dispute, sent, found = Dispute((KEYS[CHALLENGER].public, KEYS[DEFENDER].public)), list[int](), 0.0

    def post(party: int, content: Content) -> None:
        nonlocal found
        data = signed(dispute.head, content, KEYS[party]).data
        sent.append(len(data))
        begin = time.perf_counter()
        dispute.take(read(data))
        found += time.perf_counter() - begin

    for party, each in enumerate(named):
        post(party, each)
    if dispute.disputed_range is not None:
        for party, each in enumerate(courses):
            post(party, range_of(each, dispute.disputed_range))
    if dispute.step != drawn:
        raise RuntimeError(f"the game found step {dispute.step}, and the courses part at {drawn}")
    return {
        "messages": len(sent), "largest": max(sent), "bytes": sum(sent) // 2, "made": round(made, 4),
        "found": round(found, 4),
    }  # fmt: skip


def main() -> None:
    """Plays games about trainings of each length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    load, lengths = round(os.getloadavg()[0], 1), list[dict[str, Any]]()
    for steps in options.steps:
        games = [play(steps) for _ in range(options.rounds)]
        rounds = int(dispute_rounds(steps=steps))
        lengths.append({
            "steps": steps, "binary": {"messages": 2 * rounds, "bytes": DIGEST * rounds}, "games": games,
        })  # fmt: skip
        print(lengths[-1], flush=True)
    about = {**machine.about(), "load_before": load, "rounds": options.rounds}
    machine.save("courses", about | {"lengths": lengths})


if __name__ == "__main__":
    main()
