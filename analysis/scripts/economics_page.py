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

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from analysis import benchmark_results, economics, scenario_answers
from analysis.attribute_sampling import sample_size_exact
from analysis.catalog import System, load_systems
from analysis.number_texts import percent, seconds, size

SIZES = (1e21, 1e23, 1e25, 1e27)  # FLOPs
CHIP_FLOPS = 1e15  # FLOP/s, as in the paper
CHIP_DAY_COST = 48.0  # as `weighbridge analysis plan` assumes
GIGABYTE_MONTH = 0.02  # the same
BYTES_PER_PARAMETER = 12.0  # float32 weights and AdamW's two moments
COURSE_BYTES = 64  # a step of what a party to a dispute names: digests of its state and of what it begins with
SEGMENT_STEPS = 100  # steps between two checkpoints
RUN_DAYS = 90.0
FALSE_SHARE = 0.01  # of segments, trained otherwise than the transcript says
WANTED = 0.9
GROWTHS = tuple(float(power) for power in np.round(np.arange(0, 2.01, 0.05), 2))


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
    widths = [row.shape.width for rows in logs.values() for row in rows]
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
        again=table(_AGAIN, [[name, *map(figure, ratios)] for name, ratios in again.items()]),
        runs=_runs(fits, records),
        example=run(1e25, fits, records),
        inspected=inspected(),
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
_AGAIN = ("model", "recorded with logs on demand / plain", "log made later / plain")
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


def _runs(fits: dict[str, dict[str, economics.Counts]], records: dict[str, economics.RecordSize]) -> str:
    """Returns the table of runs, a column for each size."""
    found = [run(flops, fits, records) for flops in SIZES]

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
    for number, proving in enumerate(found[0]["proofs"]):
        label = f"{proving.system.name}, one machine (extrapolated)"
        rows.append([label, *(seconds(each["proofs"][number].seconds) for each in found)])
        rows.append(["the same, machines to keep up", *(figure(each["proofs"][number].machines) for each in found)])
    return table(["run of", *(f"{figure(flops)} FLOPs" for flops in SIZES)], rows)


def _cell(key: str, name: str, text: Callable[[float], str], found: dict[str, Any]) -> str:
    return text(found[key][name])


def fitted(rows: tuple[benchmark_results.LogSize, ...]) -> dict[str, economics.Counts]:
    """Returns what describes the rounded elements and the log bytes of recorded shapes."""
    shapes = [row.shape for row in rows]
    return {
        "elements": economics.fit_counts(shapes, [row.elements for row in rows]),
        "bytes": economics.fit_counts(shapes, [row.log_bytes for row in rows], growths=GROWTHS),
    }


def recorded(logs: dict[str, tuple[benchmark_results.LogSize, ...]]) -> dict[str, economics.RecordSize]:
    """Returns what describes the sizes of step records, which depend on types and not on bounds: once for each type."""
    found: dict[str, economics.RecordSize] = {}
    for precision, rows in logs.items():
        kind = precision.split()[0]
        sizes = economics.fit_records([row.shape for row in rows], [row.record_bytes for row in rows])
        if kind not in found or sizes.worst > found[kind].worst:
            found[kind] = sizes
    return found


def run(
    flops: float, fits: dict[str, dict[str, economics.Counts]], sizes: dict[str, economics.RecordSize]
) -> dict[str, Any]:
    """Returns the sizes and costs of a compute-optimal run, by the rules that the page states."""
    training = economics.compute_optimal(flops)
    shape, steps = training.shape, training.steps
    chip_days = flops / (CHIP_FLOPS * 86400)
    checkpoints = steps / SEGMENT_STEPS

    def kept(log_bytes: float, count: float, tokens: float, record_bytes: float = 0.0) -> float:
        return float(
            economics.transcript_bytes(
                record_bytes=record_bytes,
                log_bytes=log_bytes,
                parameters=shape.parameters,
                bytes_per_parameter=BYTES_PER_PARAMETER,
                checkpoints=count,
                tokens=tokens,
            )
        )

    proofs = scenario_answers.proofs(flops, RUN_DAYS)
    logs = {precision: fit["bytes"].of(shape) * steps for precision, fit in fits.items()}
    elements = {precision: fit["elements"].of(shape) * steps for precision, fit in fits.items()}
    chips = chip_days / RUN_DAYS
    records = {precision: fit.of(shape) * steps * max(1.0, chips) for precision, fit in sizes.items()}
    all_kept = {precision: kept(0.0, checkpoints, training.tokens, each) for precision, each in records.items()}
    part = (SEGMENT_STEPS + 1) / 2
    return {
        "chips": chips,
        "records": records,
        "kept": all_kept,
        "kept_per_second": {precision: total / (chip_days * 86400) for precision, total in all_kept.items()},
        "kept_month": {precision: total / 1e9 * GIGABYTE_MONTH for precision, total in all_kept.items()},
        "log_of_snapshot": {precision: total / steps * part for precision, total in logs.items()},
        "flops": flops,
        "training": training,
        "shape": shape,
        "steps": steps,
        "chip_days": chip_days,
        "cost": chip_days * CHIP_DAY_COST,
        "checkpoints": checkpoints,
        "checkpoint_bytes": kept(0.0, checkpoints, 0.0),
        "batch_bytes": kept(0.0, 0.0, training.tokens),
        "elements": elements,
        "logs": logs,
        "bits": {precision: 8 * logs[precision] / elements[precision] for precision in logs},
        "per_second": {precision: total / (chip_days * 86400) for precision, total in logs.items()},
        "month": {precision: total / 1e9 * GIGABYTE_MONTH for precision, total in logs.items()},
        "checkpoint_month": kept(0.0, checkpoints, 0.0) / 1e9 * GIGABYTE_MONTH,
        "rounds": float(economics.dispute_rounds(steps=steps)),
        "segments": checkpoints,
        "sampled_segments": float(
            sample_size_exact(
                population=np.round(checkpoints), defects=np.ceil(FALSE_SHARE * checkpoints), probability=WANTED
            )
        ),
        "log_share": {name: total / 1e9 * GIGABYTE_MONTH / (chip_days * CHIP_DAY_COST) for name, total in logs.items()},
        "proofs": proofs,
        "fastest": min(each.machines for each in proofs) / (chip_days / RUN_DAYS),
    }


def inspected() -> dict[str, float]:
    """Returns what an inspection recomputes of a run of 1e25 FLOPs on a fleet of 1e6 chips."""
    training = economics.compute_optimal(1e25)
    job = float(np.ceil(1e25 / (CHIP_FLOPS * 86400) / RUN_DAYS))
    chips, samples, rate, period = 1e6, 1000.0, 0.1, 30.0
    shared = {
        "samples": samples * RUN_DAYS / period, "chips": chips, "job_chips": job, "snapshots_per_chip": rate * period,
        "segment_steps": SEGMENT_STEPS, "steps": training.steps,
    }  # fmt: skip
    return {
        "chips": chips,
        "samples": samples,
        "rate": rate,
        "period": period,
        "job": job,
        "drawn": samples * RUN_DAYS / period * job / chips,
        "snapshots": samples * RUN_DAYS / period * job / chips * rate * period,
        "all_ranks": float(economics.replayed_fraction(**shared, ranks_replayed=job)),
        "one_rank": float(economics.replayed_fraction(**shared, ranks_replayed=1)),
    }


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
