"""The tables of docs/benchmarks.md about sketches in place of rounding logs."""

from __future__ import annotations

from typing import Any

from benchmarks.page import Result, measured_on, table
from benchmarks.sketches.sizes import AIM, MARGINS


def _kilobytes(size: float, besides: float, full: float) -> str:
    return f"{size / 1e3:,.1f} (1/{full / (size + besides):,.0f})"


def _differences(name: str, found: dict[str, Any]) -> tuple[object, ...]:
    seen = found["places"][found["fitted_to"]]
    contested, differing = sum(seen["contested"]), sum(seen["differing"])
    spread = [f"{value:.2f}" for value in seen["dispersion"].values() if value is not None]
    others = ", ".join(
        f"{place}: {sum(each['differing']):,}" for place, each in found["places"].items() if place != found["fitted_to"]
    )
    steps = found["steps"]
    return (
        name, f"{found['weights']:,}", f"{seen['outputs']}", f"{seen['elements']:,}", f"{contested // steps:,}",
        f"{differing // steps:,}", f"{differing / contested:.1e}", f"{seen['far']}", f"{seen['most_in_one']}",
        ", ".join(spread), others,
    )  # fmt: skip


def sketches(result: Result) -> str:
    """What differs, what each scheme takes for it, and what became of the sketches."""
    models = result["models"]
    differences = [_differences(name, found) for name, found in models.items()]
    sizes: list[tuple[object, ...]] = []
    for name, found in models.items():
        besides, full = found["bytes_of_fp32_outputs"], found["full_bytes"]
        for margin in MARGINS:
            each = found["bytes"][f"{margin:g}"]
            row = [_kilobytes(value, besides, full) for value in each.values()]
            sizes.append((f"{name}, {margin:g} times", f"{full / 1e3:,.0f}", *row))
    schemes = next(iter(models.values()))["bytes"]["1"]
    work = [
        (
            name, f"1/{found['smaller_by']:.0f}", f"{found['largest_margin']:.1f}",
            f"{found['made']['nanoseconds']:.0f}", f"{found['made']['seconds']:.2f}",
            f"{found['followed']['steps']} of {found['steps']}",
            f"{found['followed']['decoded']} of {found['followed']['outputs']}", f"{found['followed']['changed']:,}",
            f"{found['followed']['search'] / found['steps']:.2f}",
            f"{found['followed']['seconds'] / found['steps']:.2f}", f"{1e3 * found['followed']['slowest']:.0f}",
            f"{found['held_out']['too_many']} of {found['held_out']['outputs']}",
            f"{found['held_out']['least_tail_times_outputs']:.2g}",
            f"{found['freedom_bits']['sketches']:,}", f"{found['freedom_bits']['full']:,}",
        )
        for name, found in models.items()
    ]  # fmt: skip
    return "\n\n".join((
        f"{measured_on(result)} Replayed with SSE2 kernels.",
        table(
            ("model", "weights", "16-bit outputs a step", "their elements", "contested", "differ", "share",
             "by more than one", "most in one output", "variance / mean in blocks of 64, 1,024, 16,384",
             "differ elsewhere"), differences,
        ),
        "Kilobytes of a step, and in brackets the share of the full log, what the log says of 32-bit outputs included:",
        table(("model, margin", "full log", *schemes), sizes),
        "Two stages at work:",
        table(
            ("model", "smaller", f"largest margin for 1/{AIM:.0f}", "making, ns an element", "making, s a step",
             "steps replayed", "outputs set right", "elements", "search, s a step", "decoding, s a step", "slowest, ms",
             "too many, held out", "least tail times outputs", "bits that sketches can bring in", "full log"), work,
        ),
    ))  # fmt: skip


def sketched_logs(result: Result) -> str:
    """What recordings with sketches keep and cost, and what became of them elsewhere."""
    pairs = ("sketch / full", "sketch / on-demand", "on-demand / full")
    rows = []
    for model, found in result["models"].items():
        times = [found["milliseconds"][kind] for kind in ("full", "on-demand", "sketch")]
        ratios = [found["ratios"][pair] for pair in pairs]
        replays = found["replays"]["sketch"], found["replays"]["full"]
        rows.append((
            model, *(f"{each['median']:,.0f} ({each['min']:,.0f})" for each in times),
            *(f"{each['median']:.2f} ({each['min']:.2f})" for each in ratios),
            *(f"{found['bytes_a_step'][kind]:,}" for kind in ("full", "sketch")), f"1/{found['smaller_by']:.0f}",
            *(f"{each['verdict']}, {each['overruled']:,}, {each['charged_bits']:,.0f}" for each in replays),
            *(f"{each['seconds']:,.0f}" for each in replays),
        ))  # fmt: skip
    head = (
        "model", "full ms", "on-demand ms", "sketch ms", *pairs, "log bytes a step, full", "sketch", "share",
        "replayed by sketches: verdict, overruled, bits charged", "by logs", "s, by sketches", "s, by logs",
    )  # fmt: skip
    rounds = " or ".join(map(str, sorted({found["rounds"] for found in result["models"].values()})))
    return f"{measured_on(result)} Medians (and minima) of {rounds} steps.\n\n{table(head, rows)}"
