"""What docs/economics.md says of runs: their sizes and costs by the rules that the page states."""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis import benchmark_results, economics, scenario_answers
from analysis.attribute_sampling import sample_size_exact

CHIP_FLOPS = 1e15  # FLOP/s, as in the paper
CHIP_DAY_COST = 48.0  # as `weighbridge analysis plan` assumes
GIGABYTE_MONTH = 0.02  # the same
BYTES_PER_PARAMETER = 12.0  # float32 weights and AdamW's two moments
COURSE_BYTES = 64  # a step of what a party to a dispute names: digests of its state and of what it begins with
SEGMENT_STEPS = 100  # steps between two checkpoints
RUN_DAYS = 90.0
FALSE_SHARE = 0.01  # of segments, trained otherwise than the transcript says
WANTED = 0.9
REPEAT_SHARE = 0.02  # q: segments that are repeated while the run goes on, as docs/recording.md's example has it
SKETCHED = "gpt2-11m, bf16 autocast"  # the largest model whose logs were sketched
SKETCHED_LOGS = "bf16 calibrated"  # what takes its place
GROWTHS = tuple(float(power) for power in np.round(np.arange(0, 2.01, 0.05), 2))


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
    flops: float, fits: dict[str, dict[str, economics.Counts]], sizes: dict[str, economics.RecordSize], sketched: float
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
    sketches = sketched * logs[SKETCHED_LOGS]
    with_sketches = all_kept[SKETCHED_LOGS.split()[0]] + sketches
    part = (SEGMENT_STEPS + 1) / 2
    return {
        "chips": chips,
        "records": records,
        "kept": all_kept,
        "kept_per_second": {precision: total / (chip_days * 86400) for precision, total in all_kept.items()},
        "kept_month": {precision: total / 1e9 * GIGABYTE_MONTH for precision, total in all_kept.items()},
        "sketched": sketches,
        "sketched_kept": with_sketches,
        "sketched_per_second": with_sketches / (chip_days * 86400),
        "sketched_month": with_sketches / 1e9 * GIGABYTE_MONTH,
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
        "repeated_per_second": {
            precision: REPEAT_SHARE * total / (chip_days * 86400) for precision, total in logs.items()
        },
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


def regenerated(share: float, recorded: float, later: float) -> dict[str, float]:
    """Returns what making logs later costs the Prover of a run of 1e25 FLOPs: chip-days, and shares of recording it.

    Args:
        share: The share of the training whose logs an inspection asks for.
        recorded: How many times as long as plain training recording takes.
        later: The same of making the logs later.
    """
    plain = 1e25 / (CHIP_FLOPS * 86400)
    return {
        "plain": plain,
        "recorded": recorded,
        "later": later,
        "inspection": share * later * plain,
        "inspection_share": share * later / recorded,
        "repeats": REPEAT_SHARE * later * plain,
        "repeats_share": REPEAT_SHARE * later / recorded,
    }
