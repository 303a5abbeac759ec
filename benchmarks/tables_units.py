"""The tables of docs/benchmarks.md about recordings and replays on models of matrix units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.page import Result, measured_on, table

LONG = "long"
"""The subject whose sums leave bounds that were measured elsewhere."""


def unit_replays(result: Result) -> str:
    """What was recorded on which unit and replayed on which: by subject, and by pair of units."""
    rows: list[Sequence[object]] = []
    for name, subject in result["subjects"].items():
        recordings, pairs = subject["recordings"].values(), subject["pairs"]
        rounded, logged, size = (sum(r[key] for r in recordings) for key in ("rounded", "logged", "log_bytes"))
        matched = [pair for pair in pairs if pair["verdict"] == "match"]
        followed = [pair["followed"] for pair in matched]
        rows.append((
            name, f"{len(matched)} of {len(pairs)}", f"{rounded // len(recordings):,}",
            f"{sum(pair['narrow'] for pair in matched) // len(matched):,}", f"{logged // len(recordings):,}",
            f"{8 * size / rounded:.3f}", f"{min(followed)} to {max(followed)}",
            f"{sum(pair['terms'] for pair in pairs) / 1e6:,.0f}",
        ))  # fmt: skip
    head = (
        "subject", "replays that matched", "roundings", "under calibrated bounds", "contested", "log bits a rounding",
        "really different", "million products",
    )  # fmt: skip
    honest = [pair for name, subject in result["subjects"].items() if name != LONG for pair in subject["pairs"]]
    total = sum(pair["rounded"] for pair in honest)
    mismatches = sum(pair["verdict"] != "match" for pair in honest)
    parts = [
        f"{measured_on(result)} Seed {result['seed']}. Without `{LONG}`: {len(honest)} replays, {total:,} roundings, "
        f"{mismatches} mismatches.",
        table(head, rows),
        "Roundings that would have come out otherwise without the log, of all subjects but "
        f"`{LONG}`; recorded on (rows), replayed on (columns):",
        _matrix(honest, lambda pairs: f"{sum(pair['followed'] for pair in pairs):,}"),
    ]
    if LONG in result["subjects"]:
        parts += [f"Verdicts of `{LONG}`:", _matrix(result["subjects"][LONG]["pairs"], _verdict)]
    return "\n\n".join(parts)


def unit_products(result: Result) -> str:
    """Products as a unit has them: their cost alone and in steps, and what they save in logs."""
    kernels: list[Sequence[object]] = [
        (" x ".join(f"{size:,}" for size in each["shape"]), *(f"{each[way]:.3f}" for way in _PRODUCTS))
        for each in result["products"]
    ]
    steps: list[Sequence[object]] = []
    logs: list[Sequence[object]] = []
    for name, model in result["models"].items():
        ratios = model["ratios"]
        steps += [
            (name, kind, *(f"{ratios[pair][key]:.2f}" for pair in pairs for key in ("median", "min")))
            for kind in ("full", "on-demand compiled")
            for pairs in [(f"{kind}, {_UNIT} / {kind}, mixed", f"{kind}, {_UNIT} / plain")]
        ]
        logs += [
            (name, policy, f"{log['logged']:,}", f"{log['bytes']:,}", f"{log['calibrated'] / log['rounded']:.1%}")
            for policy, log in model["logs"].items()
        ]
    ratio = ("ratio of medians", "of minima")
    return "\n\n".join([
        f"{measured_on(result)} Nanoseconds for each multiplication and addition of bfloat16 matrices, M x K x N:",
        table(("shape", "the unit's", "PyTorch, float32", "PyTorch, float64"), kernels),
        f"Processor time of steps recorded under `{_UNIT}`, over that under `mixed` and over plain steps:",
        table(("model", "logs", *(f"/ {base}: {each}" for base in ("mixed", "plain") for each in ratio)), steps),
        "Logs of three steps, and roundings under measured bounds:",
        table(("model", "policy", "entries", "bytes", "under measured bounds"), logs),
    ])  # fmt: skip


def truncating(result: Result) -> str:
    """Following and judging a truncating unit: products, single elements, and steps."""
    products: list[Sequence[object]] = [
        (" x ".join(f"{size:,}" for size in each["shape"]), *(f"{each[way]:.3f}" for way in _MODELLED))
        for each in result["products"]
    ]
    elements: list[Sequence[object]] = [
        (f"{each['terms']:,}", *(f"{each[unit]:,.0f}" for unit in _MODELLED[:2])) for each in result["elements"]
    ]
    steps: list[Sequence[object]] = []
    seen: list[Sequence[object]] = []
    for name, policies in result["models"].items():
        for policy, each in policies.items():
            unit = each.get("all")
            counts = ("-",) * 4 if unit is None else (
                f"{unit['overruled']:,}", f"{unit['expected']:,.0f}", f"{each['could']:,}",
                f"{each['replay_s'] / each['replay_unjudged_s']:.2f}",
            )  # fmt: skip
            steps.append((
                name, policy, f"{each['rounded']:,}", f"{each['logged']:,}", f"{each['log_bytes']:,}", *counts,
                f"{each['replay_s'] / policies['mixed']['replay_s']:.2f}",
            ))  # fmt: skip
            if unit is not None:
                seen += [(name, policy, f"{int(n):,}", f"{p:.0%}") for n, p in each["power"].items()]
    return "\n\n".join([
        f"{measured_on(result)} Nanoseconds for each multiplication and addition of bfloat16 matrices, M x K x N:",
        table(("shape", "model of a100", "model of h100", "sums and bounds", "PyTorch, float64"), products),
        "Single elements that a model judges in a second:",
        table(("terms", "a100", "h100"), elements),
        "One step: its log, flips (entries that overruled the replayer), and the processor time of its replay:",
        table(
            ("model", "policy", "roundings", "entries", "bytes", "flips", "expected", "could flip",
             "replay / without judging", "replay / `mixed`"), steps,
        ),
        f"Probability that a Prover is seen who suppresses {result['suppressed']} flips of a step, if only some "
        "elements are judged:",
        table(("model", "policy", "judged", "seen"), seen),
    ])  # fmt: skip


_MODELLED = ("a100", "h100", "replayer", "float64")
_UNIT = "unit-vdpbf16ps"
_PRODUCTS = ("unit", "float32", "float64")


def _verdict(pairs: Sequence[dict[str, Any]]) -> str:
    if not pairs:
        return "-"
    (pair,) = pairs
    return f"{pair['verdict']}, {pair['followed']}" if pair["verdict"] == "match" else str(pair["verdict"])


def _matrix(pairs: Sequence[dict[str, Any]], cell: Callable[[Sequence[dict[str, Any]]], str]) -> str:
    units = list(dict.fromkeys(pair["recorded"] for pair in pairs))
    rows = [
        [one, *(cell([p for p in pairs if (p["recorded"], p["replayed"]) == (one, other)]) for other in units)]
        for one in units
    ]
    return table(["recorded on", *units], rows)
