"""Inspects honest Provers, again and again: none may be accused, whatever they train, on what, and however it ends.

`python -m benchmarks.soak_honest [--inspections N] [--first N] [--workers N] [--continue]` makes N seeded inspections.
Each has a station of its own (chips, Prover and Verifier as processes, over mTLS). Its seed chooses the trainings
(model, precision, policy of bounds, instruction set and threads, kind of log, whether steps are compiled), which of
them crash, when, and whether they are resumed, whether one begins from what another left, or a job is spread over two
ranks, how many chips are drawn, and the instruction set that replays. Results go to benchmarks/results/honest.json;
with `--beside NAME` to a place of their own in it. `--continue` does what is left of a soak that was stopped.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support import sharded_runs

from benchmarks import machine
from benchmarks.soak_chip_crashes import RATE_PER_DAY, crash, finish
from weighbridge.cli.demo.station import RunningChip, station
from weighbridge.transcript.log_kinds import KINDS

SETS = {"native": machine.HERE, **machine.ELSEWHERE}
MODELS = {"tiny": 40, "perceptron": 20, "lstm": 15, "llama": 10, "gpt2": 10, "resnet": 8, "mlp-2m": 10, "gpt2-2m": 8}
"""Steps of each."""
ARITHMETIC = (("float32", "strict"), ("float32", "calibrated"), ("autocast", "calibrated"), ("bfloat16", "calibrated"))
ENDS = ("ends well", "ends well", "dies at a random time", "dies when a snapshot is signed", "dies and is resumed")
SHARDED = ("ddp", "fsdp", "tensor", "pipeline")
COUNTED = (
    "models", "arithmetic", "logs", "steps", "recorded on", "replayed on", "ends", "snapshots", "snapshots by logs",
    "logs asked for", "infos",
)  # fmt: skip
"""What is counted of all inspections."""


@dataclass(frozen=True, slots=True)
class Training:
    """One honest training.

    Attributes:
        model: Its model, or what kind of job over ranks it is.
        precision: As `honest_job` takes it.
        policy: The Recorder's.
        machine: What instruction set and threads it has.
        end: How it ends.
        moment: Seconds from its beginning to its death, if it dies at a random time.
        ask: The update at which its chip is asked for an interrupt, beside those that the chip takes by itself.
        place: Where in that update, as `honest_job` takes it.
        logs: The Recorder's.
        compiled: Whether steps are recorded as programs once they are known.
        from_first: Whether it begins from what the first training left.
    """

    model: str
    precision: str = "float32"
    policy: str = "strict"
    machine: str = "native"
    end: str = "ends well"
    moment: float = 0.0
    ask: int = 1
    place: str = "begin"
    logs: str = "full"
    compiled: bool = False
    from_first: bool = False

    @property
    def way(self) -> str:
        """How it is recorded, in words."""
        return f"{self.logs}, {'compiled' if self.compiled else 'one by one'}"

    @property
    def options(self) -> list[str]:
        """The job's options."""
        about = ("--model", self.model, "--precision", self.precision, "--policy", self.policy)
        recorded = ("--logs", self.logs, *(["--compile"] if self.compiled else []))
        return [*about, *recorded, "--steps", str(MODELS[self.model]), "--ask", str(self.ask), "--place", self.place]

    def run(self, run: Path, chip: RunningChip, base: Path) -> Counter[str]:
        """Trains, and dies if it has to; returns how steps were recorded by the start that came to the end, if any."""
        environment = SETS[self.machine]
        options = [*self.options, *(("--base", str(base)) if self.from_first else ())]
        if self.end != "ends well":
            signed = self.end == "dies when a snapshot is signed"
            crash(run, chip, "signed" if signed else f"{self.moment:.3f}", *options, environment=environment)
        if self.end in ("ends well", "dies and is resumed"):
            return Counter(finish(run, chip, *options, environment=environment))
        return Counter()


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one inspection is about; `of` makes it from a seed.

    Attributes:
        trainings: Each on a chip of its own.
        sharded: The kind of a job on two ranks, with two more chips; or none.
        idle: Chips without work.
        samples: Chips drawn.
        per_second: Interrupts of each chip.
        replayed_on: Instruction set of the replays.
        seed: Of the draw.
    """

    trainings: Sequence[Training]
    sharded: str
    idle: int
    samples: int
    per_second: float
    replayed_on: str
    seed: bytes

    @classmethod
    def of(cls, number: int, models: Iterable[str] = MODELS) -> Scenario:
        """Chooses everything by a seed."""
        choose, ways = random.Random(number), random.Random(f"logs {number}")  # so what seeds chose before stays
        names = sorted(models)
        trainings = []
        for _ in range(choose.choice((1, 1, 2))):
            precision, policy = choose.choice(ARITHMETIC)
            model = choose.choice(names)
            training = Training(
                model=model, precision=precision, policy=policy, machine=choose.choice(sorted(SETS)),
                end=choose.choice(ENDS), moment=choose.uniform(0.05, 3.0), ask=choose.randrange(MODELS[model]),
                place=choose.choice(("begin", "forward:{}", "backward:{}", "update")).format(round(choose.random(), 3)),
                logs=ways.choice(KINDS), compiled=ways.random() < 0.5,
            )  # fmt: skip
            trainings.append(training)
        first = trainings[0]
        if first.end == "ends well" and choose.random() < 0.3:
            trainings.append(replace(first, from_first=True))
        sharded = choose.choice(SHARDED) if choose.random() < 0.1 else ""
        idle = choose.choice((0, 1))
        chips = len(trainings) + 2 * bool(sharded) + idle
        return cls(
            trainings=trainings, sharded=sharded, idle=idle, samples=choose.randint(max(1, chips - 1), chips),
            per_second=choose.uniform(0.02, 0.1), replayed_on=choose.choice(sorted(SETS)), seed=choose.randbytes(16),
        )  # fmt: skip

    def inspect(self, out: Path) -> tuple[dict[str, Any], Counter[str]]:
        """Trains and inspects; returns the report, and how many steps were recorded in which way.

        Args:
            out: New directory for everything.
        """
        steps: Counter[str] = Counter()
        names = [f"job{number}" for number in range(len(self.trainings))]
        ranks = ["rank0", "rank1"] if self.sharded else []
        idle = [f"idle{number}" for number in range(self.idle)]
        speed = 86_400.0 * self.per_second / RATE_PER_DAY
        chips = [*names, *ranks, *idle]
        with station(out / "station", runs=out, chips=chips, rate_per_day=RATE_PER_DAY, clock_speed=speed) as running:
            by_name = {chip.name: chip for chip in running.chips}
            for name, training in zip(names, self.trainings, strict=True):
                steps += training.run(out / name, by_name[name], out / names[0])
            if self.sharded:
                sharded_runs.record([self.sharded], 2, out, [by_name[name].socket for name in ranks])
            environment = {name: value for name, value in SETS[self.replayed_on].items() if name != "OMP_WAIT_POLICY"}
            identifier = running.operator.start(
                samples=self.samples, seed=self.seed, flops_threshold=2.0, chip_flops_per_day=1.0, period_days=2.0,
                snapshot_rate_per_day=RATE_PER_DAY, replay_env=environment,
            )  # fmt: skip
            for _ in running.operator.watch(identifier):
                pass
            return running.operator.report(identifier), steps


def accusations(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the findings of a report that count against a party."""
    return [finding for finding in report["findings"] if finding["severity"] != "info"]


def examine(number: int) -> tuple[int, Scenario, dict[str, Any], Counter[str]]:
    """Makes the inspection of a seed; returns the seed, what it was about, the report, and how steps were recorded."""
    scenario = Scenario.of(number)
    with tempfile.TemporaryDirectory(prefix="weighbridge-honest-") as directory:
        return number, scenario, *scenario.inspect(Path(directory))


class Tally:
    """What came out of all inspections."""

    def __init__(self) -> None:
        self.inspections = 0
        self.accused: list[dict[str, Any]] = []
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in COUNTED}

    def add(self, number: int, scenario: Scenario, report: dict[str, Any], steps: Counter[str]) -> None:
        """Counts one inspection."""
        self.inspections += 1
        count = self.counts
        count["replayed on"][scenario.replayed_on] += 1
        for each in scenario.trainings:
            count["models"][each.model + (", from a parent" if each.from_first else "")] += 1
            count["arithmetic"][f"{each.precision} {each.policy}"] += 1
            count["recorded on"][each.machine] += 1
            count["ends"][each.end] += 1
            count["logs"][each.way] += 1
        if scenario.sharded:
            count["models"][f"{scenario.sharded} on 2 ranks"] += 1
        count["snapshots"].update(each["status"] for chip in report["chips"] for each in chip["snapshots"])
        count["steps"].update(steps)
        ways = {f"job{place}": each.way for place, each in enumerate(scenario.trainings)}
        for chip in report["chips"]:
            if chip["site"] in ways:
                count["snapshots by logs"].update(f"{ways[chip['site']]}: {s['status']}" for s in chip["snapshots"])
        for each in report["evidence"]["supplements"]["requests"]:
            count["logs asked for"].update(asked=each["end"] - each["begin"], came=each["came"])
        count["infos"].update(each["id"] for each in report["findings"] if each["severity"] == "info")
        self.accused += [{"seed": number, **each} for each in accusations(report)]

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Tally:
        """Reads what `to_json` returned."""
        tally = cls()
        tally.inspections, tally.accused = saved["inspections"], list(saved["accused"])
        for name, count in tally.counts.items():
            count.update(saved.get(name, {}))
        return tally

    def to_json(self) -> dict[str, Any]:
        """Returns plain data."""
        counts = {name: dict(sorted(count.items())) for name, count in self.counts.items()}
        return {"inspections": self.inspections, **counts, "accused": self.accused}


def main() -> int:
    """Runs the soak; returns 1 if a Prover was accused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inspections", type=int, default=200)
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--workers", type=int, default=2, help="inspections at a time")
    parser.add_argument("--continue", dest="again", action="store_true", help="go on where the last soak was stopped")
    parser.add_argument("--beside", default="", help="keep the result under this name, beside what the file has")
    options = parser.parse_args()
    begin = time.perf_counter()
    seeds = range(options.first, options.first + options.inspections)
    tally, left, before = Tally(), set(seeds), 0.0
    if options.again:
        saved = machine.load("honest", options.beside) or {}
        seeds = range(saved["seeds"][0], saved["seeds"][1] + 1)
        tally, left, before = Tally.of(saved), set(saved.get("left", ())), saved["seconds"]
    with ThreadPoolExecutor(options.workers) as pool, ExitStack() as interrupted:
        # Interrupted, it begins no further inspections.
        interrupted.callback(pool.shutdown, wait=False, cancel_futures=True)
        for future in as_completed([pool.submit(examine, number) for number in sorted(left)]):
            number, scenario, report, steps = future.result()
            tally.add(number, scenario, report, steps)
            left.remove(number)
            print(f"seed {number}: {len(accusations(report))} accusations, {tally.inspections} done", flush=True)
            for finding in accusations(report):
                print(scenario, finding, flush=True)
            result = {
                **machine.about(), "seeds": [seeds.start, seeds.stop - 1], "left": sorted(left), **tally.to_json(),
                "seconds": round(before + time.perf_counter() - begin, 1),
            }  # fmt: skip
            machine.save("honest", result, options.beside)
    return 1 if tally.accused else 0


if __name__ == "__main__":
    raise SystemExit(main())
