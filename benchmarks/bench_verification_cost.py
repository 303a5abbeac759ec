"""What verification costs beside the training that it verifies, against how often and how many chips are inspected.

`python -m benchmarks.bench_verification_cost [--steps 240]`. Small models are trained plainly, and then recorded on a
chip whose clock runs so fast that the training lasts a monitoring period of 30 days, at several snapshot rates; each
time the chip is inspected by the Verifier's own code, which replays to every snapshot. Processor seconds of both are
measured in the same run: of the training without any recording, and of everything that the Verifier and its workers do.

From these follow, for plans of `analysis` that catch a run with given probabilities, the cost of verification for each
unit of training. What is arithmetic and what extrapolation is said in docs/benchmarks.md. Results go to
benchmarks/results/verification_cost.json and the plot to docs/figures/verification-cost.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from analysis.detection import detection_probability_hypergeometric, samples_needed_hypergeometric
from analysis.hypergeometric import least_drawn, seen_probability
from benchmarks import machine
from benchmarks.bench_inspection import served
from benchmarks.meter import seconds
from firmware_sim.device import builtin_image, provision
from firmware_sim.process import ChipProcess
from verifier.inspection import Inspection
from verifier.model.facts import Plan
from verifier.model.policies import NO_SEGMENTS
from verifier.model.reference_values import ChipLimits, FirmwarePolicy
from verifier.registry import Chip, Registry
from verifier.store.cache import Cache
from weighbridge.attest.firmware_image import FirmwareSigner
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.execution.replay import replay

MODELS = ("gpt2", "resnet")
RATES = (0.05, 0.1, 0.3)
"""Snapshots per chip and day; the paper has 0.1."""
PERIOD_DAYS = 30.0
STEPS, CHECKPOINT_EVERY = 240, 12
CHIPS, INVOLVED = 100_000, 230
"""The fleet of the plans; and on how many of its chips the run must be, to be worth catching."""
CHIP_FLOPS_PER_DAY = 8.64e19
PROBABILITIES = (0.5, 0.9, 0.99)
FALSE_SHARE = 0.1
"""Of a run's segments, in the plans that replay whole segments."""
DAY_S = 86_400.0
CHECKPOINT_HOURS = (0.5, 2.0)
"""Time between two checkpoints of real runs, in the extrapolation."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "verification-cost.svg"


@dataclass(frozen=True)
class Site:
    """A directory with what an inspection needs."""

    path: Path
    manufacturer: CertificateAuthority
    authority: CertificateAuthority
    image: bytes

    @classmethod
    def make(cls, path: Path) -> Site:
        """Makes authorities, credentials and firmware."""
        manufacturer, authority = CertificateAuthority.create("Manufacturer"), CertificateAuthority.create("Site")
        for role in ("chip", "prover"):
            authority.issue_role(role, role).save(path / role)
        image = FirmwareSigner.issue(manufacturer).sign(builtin_image())
        (path / "firmware.img").write_bytes(image)
        (path / "runs").mkdir()
        return cls(path, manufacturer, authority, image)

    @contextmanager
    def chip(self, name: str, rate_per_day: float, clock_speed: float) -> Iterator[tuple[ChipProcess, bytes]]:
        """Runs a new chip; yields its process and its UEID."""
        home = self.path / "chips" / name
        ueid = provision(home, self.manufacturer, image=self.image)
        with ChipProcess(home, self.path / "chip", rate_per_day=rate_per_day, clock_speed=clock_speed) as process:
            yield process, ueid

    def record(self, name: str, chip: ChipProcess, model: str, steps: int) -> dict[str, Any]:
        """Records a training on a chip."""
        return job(
            model=model, seed=1, steps=steps, run=str(self.path / "runs" / name), socket=str(chip.socket),
            checkpoint_every=CHECKPOINT_EVERY,
        )  # fmt: skip

    def inspect(self, name: str, chip: Chip, rate: float) -> tuple[dict[str, Any], dict[str, float]]:
        """Inspects one chip; returns the report, and the processor seconds of the Verifier and its workers by stage."""
        registry, seed = Registry(self.path / f"{name}.sqlite"), bytes(32)
        registry.register(chip)
        plan = Plan(
            samples=1, seed=seed, flops_threshold=CHIP_FLOPS_PER_DAY, chip_flops_per_day=CHIP_FLOPS_PER_DAY,
            period_days=PERIOD_DAYS, snapshot_rate_per_day=rate, replay_env=ENVIRONMENT,
            segments=NO_SEGMENTS,  # what is measured is what each snapshot costs
        )  # fmt: skip
        registry.start_inspection(name, seed=seed, plan=plan.to_json(), chips=[chip.ueid])
        stages: list[tuple[str, float]] = [("log", used())]

        def progress(stage: str, done: int, total: int, message: str) -> None:
            if stages[-1][0] != stage:
                stages.append((stage, used()))

        inspection = Inspection(
            identifier=name, plan=plan, registry=registry, cache=Cache(self.path / f"{name}-cache"),
            credentials=self.authority.issue_role("verifier", "verifier"),
            manufacturer=self.manufacturer.certificate,
            firmware=FirmwarePolicy.of(
                [self.path / "firmware.img"], self.manufacturer.certificate, limits=ChipLimits(clock_speed=1e9)
            ),
            progress=progress,
        )  # fmt: skip
        report = inspection.run()
        registry.close()
        spent: Counter[str] = Counter()
        for (stage, begun), (_, ended) in zip(stages, [*stages[1:], ("", used())], strict=True):
            spent[stage] += ended - begun  # type: ignore[assignment]
        return report, {stage: round(each, 3) for stage, each in spent.items()}


def used() -> float:
    """Processor seconds of this process, of its replay workers and of what else it started and has ended."""
    return sum(seconds())


def job(**options: Any) -> dict[str, Any]:
    """Runs a training in a process of its own; see `benchmarks.inspected_job`."""
    return dict(machine.ask("benchmarks.inspected_job", json.dumps(options), environment=machine.HERE))


def measure(path: Path, steps: int, models: Sequence[str] = MODELS, rates: Sequence[float] = RATES) -> dict[str, Any]:
    """Trains, records, inspects, and returns what all that cost."""
    site = Site.make(path)
    prover = served(
        "serve prover", "--runs", str(path / "runs"), "--credentials", str(path / "prover"),
        address_file=path / "prover.address",
    )  # fmt: skip
    with prover as (address, _):
        return {model: measured(site, model, steps, rates, address) for model in models}


def measured(site: Site, model: str, steps: int, rates: Sequence[float], prover: str) -> dict[str, Any]:
    """Measures one model."""
    plain = job(model=model, seed=1, steps=steps)
    with site.chip(f"{model}-pace", 0.0, 1.0) as (chip, _):
        pace = site.record(f"{model}-pace", chip, model, max(20, steps // 8))["step_wall_s"]
    speed = PERIOD_DAYS * DAY_S / (steps * pace)
    runs = []
    for number, rate in enumerate(rates):
        name = f"{model}-{number}"
        with site.chip(name, rate, speed) as (chip, ueid):
            recorded = site.record(name, chip, model, steps)
            report, stages = site.inspect(name, Chip(ueid=ueid, address=chip.address, prover_address=prover), rate)
        runs.append(one(rate, recorded, recorded["wall_s"] * speed / DAY_S, report, stages))
    first, last = 1 + CHECKPOINT_EVERY, 1 + steps // CHECKPOINT_EVERY // 2 * CHECKPOINT_EVERY
    replayed = {end: replay_cpu(site.path / "runs" / f"{model}-0", end) for end in (first, last)}
    return {
        "steps": steps, "checkpoint_every": CHECKPOINT_EVERY, "plain_step_cpu_s": plain["step_cpu_s"],
        "replay_step_cpu_s": round((replayed[last] - replayed[first]) / (last - first), 6),
        "segment_cpu_s": round(replayed[first], 3), "runs": runs,
    }  # fmt: skip


def one(
    rate: float, recorded: Mapping[str, Any], days: float, report: Mapping[str, Any], stages: Mapping[str, float]
) -> dict[str, Any]:
    """Returns what one inspected run came to."""
    snapshots = [each for chip in report["chips"] for each in chip["snapshots"]]
    replays = [each["replay"] for each in snapshots if each["replay"]]
    return {
        "rate": rate, "days": round(days, 2), "recorded_step_cpu_s": recorded["step_cpu_s"],
        "snapshots": dict(Counter(each["status"] for each in snapshots)),
        "findings": dict(Counter(each["id"] for each in report["findings"])),
        "replays": len(replays), "replayed_steps": sum(each["steps"][1] - each["steps"][0] for each in replays),
        "replay_cpu_s": round(stages.get("replay", 0.0) + stages.get("open", 0.0), 3),
        "rest_cpu_s": round(sum(s for name, s in stages.items() if name not in ("open", "replay")), 3),
    }  # fmt: skip


def replay_cpu(run: Path, end: int) -> float:
    """Processor seconds of replaying the steps 1 to before `end`, with the start of the worker."""
    begun = used()
    if (verdict := replay(run, steps=(1, end), env=ENVIRONMENT).verdict) != "match":
        raise RuntimeError(f"the replay ended in {verdict}")
    return used() - begun


def plans(model: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns, for each measured rate and probability, the samples needed and the cost for each unit of training.

    A chip that is drawn costs what `chip_cost` says; one that is not costs nothing.
    """
    run = dict(
        flops_threshold=INVOLVED * CHIP_FLOPS_PER_DAY * PERIOD_DAYS, chip_flops_per_day=CHIP_FLOPS_PER_DAY, chips=CHIPS,
        run_days=PERIOD_DAYS,
    )  # fmt: skip
    found = []
    for each in model["runs"]:
        for wanted in PROBABILITIES:
            samples = float(
                samples_needed_hypergeometric(probability=wanted, snapshot_rate_per_day=each["rate"], **run)
            )
            p = float(detection_probability_hypergeometric(samples=samples, snapshot_rate_per_day=each["rate"], **run))
            found.append(
                {
                    "rate": each["rate"], "samples": int(samples), "share": samples / CHIPS, "p": p,
                    "cost": samples / CHIPS * chip_cost(model, each["rate"]),
                }
            )  # fmt: skip
    return found


def chip_cost(model: Mapping[str, Any], rate: float) -> float:
    """Processor time of inspecting a chip, over that of the plain training that it did in the period.

    As many replays as snapshots are due, each at what one took on average in all measured runs, and what else an
    inspection of one chip took. So chance in the number of snapshots of a run is not in it.
    """
    runs = model["runs"]
    each = sum(run["replay_cpu_s"] for run in runs) / sum(run["replays"] for run in runs)
    rest = sum(run["rest_cpu_s"] for run in runs) / len(runs)
    return float((rate * PERIOD_DAYS * each + rest) / (model["steps"] * model["plain_step_cpu_s"]))


def segments(model: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns how many whole segments of a run show false ones, with what probability, and what they cost."""
    count = model["steps"] // model["checkpoint_every"]
    false = max(1, round(FALSE_SHARE * count))
    plain = model["steps"] * model["plain_step_cpu_s"]
    found = []
    for wanted in PROBABILITIES:
        drawn = int(least_drawn(population=count, marked=false, shown=1.0, wanted=wanted))
        p = float(seen_probability(population=count, marked=false, drawn=drawn, shown=1.0))
        cost = drawn * model["segment_cpu_s"] / plain
        found.append({"segments": count, "false": false, "drawn": drawn, "p": p, "cost": cost})
    return found


def larger(results: Mapping[str, Any], share: float, rate: float) -> list[dict[str, Any]]:
    """Extrapolates to runs whose checkpoints are hours apart, where starting a worker costs nothing beside the replay.

    Each snapshot is replayed from the checkpoint before it, half the time between two on average. Cost for each unit of
    training: share of chips drawn, times snapshots a day, times that half, times replayed over plain time of a step.

    Args:
        results: The models of `steps.json`, by name.
        share: Of the chips that is drawn.
        rate: Snapshots per chip and day.
    """
    return [
        {
            "model": name, "ratio": ratio, "hours": hours, "share": share, "rate": rate,
            "cost": share * rate * hours / 2 / 24 * ratio,
        }
        for name, each in results.items()
        for ratio in (each["milliseconds"]["replayed"]["median"] / each["milliseconds"]["plain"]["median"],)
        for hours in CHECKPOINT_HOURS
    ]  # fmt: skip


def plot(models: Mapping[str, Any]) -> None:
    """Draws detection probability against cost: a line for each model and rate, as the share of drawn chips grows."""
    matplotlib.rcParams.update({"svg.hashsalt": "verification-cost", "font.size": 9})
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    shares = [10 ** (step / 10) / CHIPS for step in range(10, 46)]
    for style, (name, model) in zip(("-", "--"), models.items(), strict=False):
        for colour, each in enumerate(model["runs"]):
            p = detection_probability_hypergeometric(
                samples=[round(share * CHIPS) for share in shares],
                flops_threshold=INVOLVED * CHIP_FLOPS_PER_DAY * PERIOD_DAYS, chip_flops_per_day=CHIP_FLOPS_PER_DAY,
                chips=CHIPS, run_days=PERIOD_DAYS, snapshot_rate_per_day=each["rate"],
            )  # fmt: skip
            costs = [share * chip_cost(model, each["rate"]) for share in shares]
            label = f"{name}, {each['rate']:g} snapshots a day"
            axes.plot(costs, p, style, color=f"C{colour}", label=label)
    axes.set(xscale="log", xlabel="verification / training, processor time", ylabel="detection probability")
    axes.legend(frameon=False, loc="upper left")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, format="svg", metadata={"Date": None, "Creator": None})


def main() -> None:
    """Measures, writes the result, draws the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    load = os.getloadavg()[1]
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        models = measure(Path(directory), options.steps)
    for model in models.values():
        model["plans"], model["segments"] = plans(model), segments(model)
    steps = machine.load("steps")
    result = {
        **machine.about(), "load_before": load, "seconds": round(time.perf_counter() - begun, 1),
        "period_days": PERIOD_DAYS, "chips": CHIPS, "involved": INVOLVED, "models": models,
        "larger": [] if steps is None else larger(steps["models"], share=0.01, rate=0.1),
    }  # fmt: skip
    machine.save("verification_cost", result)
    plot(models)
    print(result)


if __name__ == "__main__":
    main()
