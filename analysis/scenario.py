"""A scenario as a TOML file: a fleet, a violation, how chips are inspected, what that costs.

    title = "Chinchilla on a hundred thousand H100"

    [fleet]
    chips = 100_000
    chip = "NVIDIA H100 SXM5 80GB"    # from the catalogue; or chip-flops = 9.9e14, in FLOP/s

    [violation]
    model = "Chinchilla"              # from the catalogue; or flops = 5.76e23

    [inspection]
    probability = 0.9

`docs/analysis.md` lists every key. What is not given has the default of the command of the same name. An error names
the file and the key, and says what is allowed.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.catalog import Chip, Model, load_chips, load_models, named
from analysis.costs import SECONDS_PER_DAY
from analysis.domain import (
    DetectionDomainError,
    not_negative,
    positive,
    probability,
    share,
    whole,
)
from analysis.planning import CostModel
from analysis.unmonitored_chips import monitored_flops, unmonitored_flops

_LARGEST_FILE = 2**20
_LONGEST_TEXT = 2000


class ScenarioError(DetectionDomainError):
    """A scenario that is not what it should be; the message names file and key and says what is allowed."""


@dataclass(frozen=True)
class Replaying:
    """How the transcripts of a job are replayed.

    Attributes:
        job_chips: Chips of the job.
        steps: Steps of the job.
        segment_steps: Steps between two checkpoints.
        given_collectives: Whether one rank is replayed, with the collectives' results taken from the transcript.
    """

    job_chips: float
    steps: float
    segment_steps: float
    given_collectives: bool


@dataclass(frozen=True)
class Scenario:
    """What an analyst wants to know about.

    Attributes:
        title: One line for the head of a report.
        note: What else a reader should know.
        chips: Chips that are sampled from (C).
        chip_flops: FLOP/s of one; a is that times 86400.
        chip: Their entry in the catalogue, if they were named.
        unmonitored_chips: Further chips of the Prover's, of the same kind, that are not monitored.
        flops: Size of the violation in FLOPs (H), unmonitored chips not yet taken off.
        model: The model in the catalogue that says how large it is, if one was named.
        run_days: Length of the run in days (T).
        period_days: Monitoring period in days (T_m).
        rate: Snapshots per chip and day (f).
        wanted: Detection probability that is wanted (p).
        samples: Planned samples a period; None: as many as it takes.
        missed: Probability that the inspection of an involved chip that holds a snapshot shows nothing.
        withheld: Drawn chips a period that may stay unverified once the draw is known, whole.
        sample_cost: Cost of one sample.
        costs: What snapshots cost.
        budget: What inspections and snapshots may cost a year; None if no plan is wanted.
        replaying: How transcripts are replayed; None if that is not asked.
    """

    title: str
    note: str
    chips: float
    chip_flops: float
    chip: Chip | None
    unmonitored_chips: float
    flops: float
    model: Model | None
    run_days: float
    period_days: float
    rate: float
    wanted: float
    samples: float | None
    missed: float
    withheld: float
    sample_cost: float
    costs: CostModel
    budget: float | None
    replaying: Replaying | None

    @property
    def chip_flops_per_day(self) -> float:
        """FLOPs that one chip can do per day (a)."""
        return self.chip_flops * SECONDS_PER_DAY

    def monitored_flops(self) -> float:
        """Returns the part of the violation that has to run on monitored chips, in FLOPs.

        Raises:
            InfeasibleError: All of it fits on unmonitored chips.
        """
        free = unmonitored_flops(
            legacy_chips=0,
            legacy_flops_per_day=0,
            exempt_chips=self.unmonitored_chips,
            chip_flops_per_day=self.chip_flops_per_day,
            run_days=self.run_days,
        )
        return float(monitored_flops(flops_threshold=self.flops, unmonitored=free))

    def fleet(self) -> dict[str, Any]:
        """Returns the parameters that the formulas of `detection` and `periods` share, under their names.

        Raises:
            InfeasibleError: All of the violation fits on unmonitored chips.
        """
        return {
            "flops_threshold": self.monitored_flops(),
            "chip_flops_per_day": self.chip_flops_per_day,
            "chips": self.chips,
            "run_days": self.run_days,
            "period_days": self.period_days,
            "snapshot_rate_per_day": self.rate,
        }


def load(path: Path, *, models: Path | None = None, chips: Path | None = None) -> Scenario:
    """Reads a scenario.

    Args:
        path: A TOML file.
        models: A newer catalogue of models (`catalog.load_models`); None for the packaged one.
        chips: A newer catalogue of chips; None for the packaged one.

    Raises:
        ScenarioError: It cannot be read, is no TOML, lacks a key, has one that is not known, or a value out of range.
        CatalogError: A catalogue is not what it should be, or does not have what the scenario names.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ScenarioError(f"{path}: larger than {_LARGEST_FILE} bytes, so no scenario")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"{path}: not UTF-8; save it as UTF-8") from None
    return parse(text, str(path), models=models, chips=chips)


def parse(text: str, name: str = "scenario", *, models: Path | None = None, chips: Path | None = None) -> Scenario:
    """Returns the scenario that a text in TOML describes; arguments and errors otherwise as `load`.

    Args:
        text: The TOML.
        name: What to call it in messages.
        models: As for `load`.
        chips: As for `load`.
    """
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ScenarioError(f"{name}: no TOML: {str(error)[:200]}") from None
    try:
        return _scenario(content, models, chips)
    except DetectionDomainError as error:
        raise ScenarioError(f"{name}: {error}") from None


class _Table:
    """One table of the file: hands out values by key and, in the end, refuses unknown keys."""

    def __init__(self, content: Mapping[str, Any], name: str | None) -> None:
        found = content if name is None else content.get(name, {})
        if not isinstance(found, dict):
            raise ScenarioError(f"{name} must be a table: write [{name}] on a line of its own")
        self._content = found
        self._name = name
        self._asked: list[str] = []

    def _label(self, key: str) -> str:
        return key if self._name is None else f"{self._name}.{key}"

    def has(self, key: str) -> bool:
        return key in self._content

    def table(self, key: str) -> _Table:
        self._asked.append(key)
        return _Table(self._content, key)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
            raise ScenarioError(f"{self._label(key)} must be a text of at most {_LONGEST_TEXT} characters")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise ScenarioError(f"{self._label(key)} must be true or false, not {value!r:.40}")
        return value

    def number(self, key: str, check: Callable[[str, float], Any], default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ScenarioError(f"{self._label(key)} must be a number, not {value!r:.40}")
        try:
            return float(check(self._label(key), value))
        except OverflowError:
            raise ScenarioError(f"{self._label(key)} is too large a number") from None

    def number_if_there(self, key: str, check: Callable[[str, float], Any]) -> float | None:
        self._asked.append(key)
        return self.number(key, check) if self.has(key) else None

    def one_of(self, first: str, second: str) -> str:
        """Returns which of two keys is there; it must be exactly one."""
        self._asked += [first, second]
        if self.has(first) == self.has(second):
            raise ScenarioError(f"give exactly one of {self._label(first)} and {self._label(second)}")
        return first if self.has(first) else second

    def _value(self, key: str, default: Any) -> Any:
        self._asked.append(key)
        if key in self._content:
            return self._content[key]
        if default is None:
            raise ScenarioError(f"{self._label(key)} is missing")
        return default

    def finish(self) -> None:
        for key in self._content:
            if key not in self._asked:
                allowed = list(dict.fromkeys(self._asked))
                near = difflib.get_close_matches(key, allowed, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                raise ScenarioError(f"{self._label(key)!r:.80} is not a key; {hint}allowed are {', '.join(allowed)}")


def _whole(least: int) -> Callable[[str, float], Any]:
    return lambda name, value: whole(name, value, least)


def _above(unit: str) -> Callable[[str, float], Any]:
    return lambda name, value: positive(name, value, unit)


def _from_zero(unit: str) -> Callable[[str, float], Any]:
    return lambda name, value: not_negative(name, value, unit)


def _scenario(content: Mapping[str, Any], models: Path | None, chips: Path | None) -> Scenario:
    top = _Table(content, None)
    title, note = top.text("title"), top.text("note", "")

    fleet = top.table("fleet")
    count = fleet.number("chips", _whole(1))
    chip = None
    if fleet.one_of("chip", "chip-flops") == "chip":
        chip = named(load_chips(chips), fleet.text("chip"))
        speed = chip.flops_per_second
    else:
        speed = fleet.number("chip-flops", _above("FLOP/s"))
    unmonitored = fleet.number("unmonitored-chips", _whole(0), 0.0)
    fleet.finish()

    inspection = top.table("inspection")
    period = inspection.number("period-days", _above("days"), 30.0)
    rate = inspection.number("rate", _above("snapshots per chip and day"), 0.1)
    wanted = inspection.number("probability", probability, 0.9)
    samples = inspection.number_if_there("samples", _whole(1))
    missed = inspection.number("missed", share, 0.0)
    withheld = inspection.number("withheld", _whole(0), 0.0)
    inspection.finish()
    if samples is not None and samples > count:
        raise ScenarioError(f"inspection.samples = {samples:.0f} is more than fleet.chips = {count:.0f}")

    violation = top.table("violation")
    model = None
    if violation.one_of("model", "flops") == "model":
        model = named(load_models(models), violation.text("model"))
        flops = model.flops
    else:
        flops = violation.number("flops", _above("FLOPs"))
    days = violation.number("run-days", _above("days"), period)
    violation.finish()

    scenario = Scenario(
        title=title, note=note, chips=count, chip_flops=speed, chip=chip, unmonitored_chips=unmonitored, flops=flops,
        model=model, run_days=days, period_days=period, rate=rate, wanted=wanted, samples=samples, missed=missed,
        withheld=withheld, **_costs(top.table("costs"), period), replaying=_replaying(top, count),
    )  # fmt: skip
    top.finish()
    return scenario


def _costs(table: _Table, period: float) -> dict[str, Any]:
    sample = table.number("sample", _above("units of cost"), 250.0)
    model = CostModel(
        chip_day_cost=table.number("chip-day", _from_zero("units of cost"), 48.0),
        stall_seconds=table.number("stall-seconds", _from_zero("seconds"), 1.0),
        job_chips=int(table.number("job-chips", _whole(1), 1.0)),
        snapshot_bytes=table.number("snapshot-bytes", _from_zero("bytes"), 8e10),
        byte_year_cost=table.number("gigabyte-month", _from_zero("units of cost"), 0.02) * 12 / 1e9,
        kept_days=table.number("kept-days", _above("days"), period),
    )
    budget = table.number_if_there("budget", _above("units of cost"))
    table.finish()
    return {"sample_cost": sample, "costs": model, "budget": budget}


def _replaying(top: _Table, chips: float) -> Replaying | None:
    there = top.has("replay")
    table = top.table("replay")
    if not there:
        return None
    found = Replaying(
        job_chips=table.number("job-chips", _whole(1)),
        steps=table.number("steps", _whole(1)),
        segment_steps=table.number("segment-steps", _whole(1)),
        given_collectives=table.flag("given-collectives", False),
    )
    table.finish()
    if found.job_chips > chips:
        raise ScenarioError(f"replay.job-chips = {found.job_chips:.0f} is more than fleet.chips = {chips:.0f}")
    if found.segment_steps > found.steps:
        raise ScenarioError(
            f"replay.segment-steps = {found.segment_steps:.0f} is more than replay.steps = {found.steps:.0f}"
        )
    return found


def paper(model: str = "Chinchilla", chips: int = 10**5) -> Scenario:
    """Returns a scenario of the paper's table 1: T = T_m = 30 days, f = 0.1, p = 0.9, chips of 1e15 FLOP/s.

    Args:
        model: A model in the packaged catalogue.
        chips: Number of chips (C).

    Raises:
        CatalogError: The catalogue has no such model.
    """
    scenario = parse('title = "Table 1 of the paper"\n[fleet]\nchips = 1\nchip-flops = 1e15\n[violation]\nflops = 1\n')
    entry = named(load_models(), model)
    return replace(scenario, title=f"{model} on {chips:,} chips", chips=float(chips), flops=entry.flops, model=entry)
