"""Writes docs/economics.md: what replay and proofs cost, for runs of any size, with the arithmetic shown.

    python -m analysis.scripts.economics_page [--results benchmarks/results] [--out docs/economics.md]

Every figure in the page is read (published ones from `analysis/data/verification.csv`, measured ones from the result
files) or computed here. A test compares the page with what this script makes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from analysis import benchmark_results, economics
from analysis.catalog import System, load_systems
from analysis.number_texts import percent, seconds, size
from analysis.scripts.economics_runs import (
    BYTES_PER_PARAMETER,
    CHIP_DAY_COST,
    CHIP_FLOPS,
    COURSE_BYTES,
    GIGABYTE_MONTH,
    REPEAT_SHARE,
    RUN_DAYS,
    SEGMENT_STEPS,
    SKETCHED,
    fitted,
    inspected,
    recorded,
    regenerated,
    run,
)

SIZES = (1e21, 1e23, 1e25, 1e27)  # FLOPs


def page(results: Path) -> str:
    """Returns the page.

    Args:
        results: Directory of the benchmarks' result files.

    Raises:
        DetectionDomainError: A result or a catalogue is not what it should be.
    """
    machine, times = benchmark_results.step_times(results)
    shaped, logs = benchmark_results.log_sizes(results)
    stalled, stalls = benchmark_results.stalls(results)
    fits = {precision: fitted(rows) for precision, rows in logs.items()}
    records = recorded(logs)
    again_on, again = benchmark_results.regenerations(results)
    sketched_on, sketched = benchmark_results.sketches(results)
    widths = [row.shape.width for rows in logs.values() for row in rows]
    example, drawn = run(1e25, fits, records, sketched[SKETCHED]), inspected()
    environment = Environment(
        loader=PackageLoader("analysis"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters.update(g=figure, size=size, seconds=seconds, percent=percent)
    return environment.get_template("economics.md").render(
        systems=load_systems(),
        published=table(_PUBLISHED, [_published(system) for system in load_systems()]),
        machine=machine,
        times=table(_TIMES, [_times(each) for each in times]),
        shaped=shaped,
        fits=table(_FITS, [line for name, fit in fits.items() for line in _fits(name, fit)]),
        widths=(min(widths), max(widths)),
        stalled=stalled,
        stall=stalls[-1],
        records=table(_RECORDS, [_records(name, fit) for name, fit in records.items()]),
        again_on=again_on,
        again=table(_AGAIN, [_again(name, *ratios) for name, ratios in again.items()]),
        regenerated=regenerated(drawn["all_ranks"], *again[SKETCHED]),
        costs=table(_COSTS, [_costs(name, drawn["all_ranks"], *ratios) for name, ratios in again.items()]),
        runs=_runs(fits, records, sketched[SKETCHED]),
        sketched_on=sketched_on,
        sketched=table(_SKETCHED, [[name, percent(share), figure(1 / share)] for name, share in sketched.items()]),
        sketched_model=SKETCHED,
        sketched_share=sketched[SKETCHED],
        repeat_share=REPEAT_SHARE,
        example=example,
        inspected=drawn,
        chip_flops=CHIP_FLOPS,
        chip_day=CHIP_DAY_COST,
        gigabyte_month=GIGABYTE_MONTH,
        bytes_per_parameter=BYTES_PER_PARAMETER,
        segment_steps=SEGMENT_STEPS,
        run_days=RUN_DAYS,
    )


_PUBLISHED = ("system", "kind", "what was measured", "prover", "verifier", "evidence", "time over plain", "source")
_TIMES = ("model", "plain, ms", "computed wide", "recorded", "replayed", "as published")
_RECORDS = ("counted", "bytes of a step", "bytes more for each layer", "largest error")
_AGAIN = (
    "model", "recorded with logs on demand / plain", "log made later / plain", "log made later / recorded",
)  # fmt: skip
_COSTS = (
    "model", "for the inspection, chip-days", "the same / recording", "for repeats, chip-days", "the same / recording",
)  # fmt: skip
_SKETCHED = ("model", "sketched log / full log", "times smaller")
_FITS = ("counted", "a", "b", "c", "e", "i", "g", "largest error")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _published(system: System) -> list[str]:
    return [
        f"{system.name}, {system.published}",
        system.kind,
        f"{system.subject} ({system.note})" if system.note else system.subject,
        seconds(system.prover_seconds) if system.prover_seconds else "",
        seconds(system.verifier_seconds) if system.verifier_seconds else "",
        size(system.evidence_bytes) if system.evidence_bytes else "",
        figure(system.time_ratio) if system.time_ratio else "",
        f"[{system.source}]({system.link}), read {system.read}",
    ]


def _times(each: benchmark_results.StepTime) -> list[str]:
    ratios = (each.wide, each.recorded, each.replayed, each.published)
    return [each.model, figure(each.plain), *(figure(time / each.plain) for time in ratios)]


def _fits(name: str, fit: dict[str, economics.Counts]) -> list[list[str]]:
    return [
        [f"{name}, {what}", *(figure(f) for f in counts.factors), figure(counts.growth), percent(counts.worst)]
        for what, counts in fit.items()
    ]


def _records(name: str, fit: economics.RecordSize) -> list[str]:
    return [f"{name}, record", figure(fit.constant), figure(fit.per_layer), percent(fit.worst)]


def _again(name: str, recorded: float, later: float) -> list[str]:
    return [name, figure(recorded), figure(later), figure(later / recorded)]


def _costs(name: str, share: float, recorded: float, later: float) -> list[str]:
    cost = regenerated(share, recorded, later)
    return [
        f"{name} (extrapolated)",
        *(figure(cost["inspection"]), percent(cost["inspection_share"])),
        *(figure(cost["repeats"]), percent(cost["repeats_share"])),
    ]


def _runs(
    fits: dict[str, dict[str, economics.Counts]], records: dict[str, economics.RecordSize], sketched: float
) -> str:
    """Returns the table of runs, a column for each size."""
    found = [run(flops, fits, records, sketched) for flops in SIZES]

    def row(name: str, cell: Callable[[dict[str, Any]], str]) -> list[str]:
        return [name, *(cell(each) for each in found)]

    rows = [
        row("weights N", lambda r: figure(r["shape"].parameters)),
        row("tokens D", lambda r: figure(r["training"].tokens)),
        row("layers L and width d", lambda r: f"{figure(r['shape'].layers)}, {figure(r['shape'].width)}"),
        row("steps", lambda r: figure(r["steps"])),
        row("chip-days of training", lambda r: figure(r["chip_days"])),
        row("its cost", lambda r: figure(r["cost"])),
        row("chip-days to replay all of it as fast", lambda r: figure(r["chip_days"])),
        row("questions that bisect the steps of a dispute", lambda r: figure(r["rounds"])),
        row("a course, which each party names in their place", lambda r: size(COURSE_BYTES * r["steps"])),
        row("segments", lambda r: figure(r["segments"])),
        row("random segments that show 1 % false ones with 90 %", lambda r: figure(r["sampled_segments"])),
        row("the share of training recomputed for that", lambda r: percent(r["sampled_segments"] / r["segments"])),
        row("checkpoints", lambda r: size(r["checkpoint_bytes"])),
        row("their cost a month", lambda r: figure(r["checkpoint_month"])),
        row("batches", lambda r: size(r["batch_bytes"])),
    ]
    for name in fits:
        rows += [
            row(f"logs, {name} (extrapolated)", partial(_cell, "logs", name, size)),
            row("the same, bits an element", partial(_cell, "bits", name, figure)),
            row("the same, a chip and second", partial(_cell, "per_second", name, size)),
            row("the same, cost a month", partial(_cell, "month", name, figure)),
        ]
    for name in records:
        rows += [
            row(f"records with logs on demand, {name} (extrapolated)", partial(_cell, "records", name, size)),
            row("all that is kept then", partial(_cell, "kept", name, size)),
            row("the same, a chip and second", partial(_cell, "kept_per_second", name, size)),
            row("the same, cost a month", partial(_cell, "kept_month", name, figure)),
        ]
    rows += [
        row("sketched logs, bf16 (extrapolated)", lambda r: size(r["sketched"])),
        row("all that is kept then", lambda r: size(r["sketched_kept"])),
        row("the same, a chip and second", lambda r: size(r["sketched_per_second"])),
        row("the same, cost a month", lambda r: figure(r["sketched_month"])),
    ]
    for number, proving in enumerate(found[0]["proofs"]):
        label = f"{proving.system.name}, one machine (extrapolated)"
        rows.append([label, *(seconds(each["proofs"][number].seconds) for each in found)])
        rows.append(["the same, machines to keep up", *(figure(each["proofs"][number].machines) for each in found)])
    return table(["run of", *(f"{figure(flops)} FLOPs" for flops in SIZES)], rows)


def _cell(key: str, name: str, text: Callable[[float], str], found: dict[str, Any]) -> str:
    return text(found[key][name])


def figure(value: float) -> str:
    """Returns a number for the page: three digits, or whole with separators from a thousand to a million."""
    if 1e3 <= abs(value) < 1e6 or (float(value).is_integer() and abs(value) < 1e6):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def main(arguments: list[str] | None = None) -> None:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--out", type=Path, default=Path("docs/economics.md"))
    options = parser.parse_args(arguments)
    options.out.write_text(page(options.results), encoding="utf-8")
    print(options.out)


if __name__ == "__main__":
    main()
