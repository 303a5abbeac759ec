"""The tables of docs/benchmarks.md about what a transcript may choose: roundings, their log, programs."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.machine import BESIDE
from benchmarks.page import Result, measured_on, table
from weighbridge.program.tape_policy import BUDGETS


def _bits(value: float) -> str:
    return f"{value:.5f}" if value < 0.1 else f"{value:.3f}"


def logs(result: Result) -> str:
    """Log sizes, ours and published."""
    rows: list[Sequence[object]] = []
    compared: list[Sequence[object]] = []
    for name, model in result["models"].items():
        for precision, m in model["ours"].items():
            share = m["logged"] / m["rounded"]
            rows.append((
                f"{name}, {precision}", f"{m['rounded'] // m['steps']:,}", f"{share:.2e}", _bits(m["bits_per_element"]),
                f"{m['log_bytes'] / m['steps'] / 1e3:,.1f}", f"{m['dense_bytes'] / m['steps'] / 1e3:,.0f}",
            ))  # fmt: skip
        p = model["published"]
        steps = 1e3 * p["steps"]
        compared.append((
            name, f"{p['rounded'] // p['steps']:,}", _bits(p["bits_per_element"]), f"{p['log_bytes'] / steps:,.0f}",
            f"{p['in_band']:.3f}", f"{p['compressed_bytes'] / steps:,.0f}", f"{p['adaptive_in_band']:.2e}",
            f"{p['adaptive_compressed_bytes'] / steps:,.1f}",
        ))  # fmt: skip
    ours = table(("model", "elements a step", "logged", "bits an element", "kB a step", "dense kB a step"), rows)
    theirs = table(
        ("model", "elements a step", "bits an element", "kB a step", "in the band", "zstd kB", "in the measured band",
         "zstd kB"), compared,
    )  # fmt: skip
    return f"{measured_on(result)}\n\n{ours}\n\nThe published method on the same models:\n\n{theirs}"


def logs_on_demand(result: Result) -> str:
    """What logs on demand save, and what a log costs later, of a result file and of what lies beside it."""
    return "\n\n".join(_logs_on_demand(each) for each in (result, *result.get(BESIDE, {}).values()))


def _logs_on_demand(result: Result) -> str:
    others = ("full", "wide", "plain")
    pairs = (*(f"on-demand / {other}" for other in others), "full / wide", "full / plain", "regenerated / full")
    rows = []
    for model, found in result["models"].items():
        kept, ratios = found["bytes_a_step"], {pair: found["ratios"].get(pair) for pair in pairs}
        times = [found["milliseconds"][way] for way in ("plain", "full", "on-demand")]
        ways = [f"{each['median']:,.0f} ({each['min']:,.0f})" for each in times]
        shown = [f"{each['median']:.2f} ({each['min']:.2f})" if each else "-" for each in ratios.values()]
        bytes_of = kept["full"]["rounding"], kept["on-demand"]["rounding"], kept["supplement"]["all"]
        sizes = [f"{each:,}" for each in bytes_of]
        rows.append([model, *ways, f"{found['hashing_milliseconds']:,.0f}", *shown, *sizes])
    head = [
        "model", "plain ms", "full ms", "on-demand ms", "hashing ms", *pairs, "log bytes a step, full", "on-demand",
        "supplement bytes",
    ]  # fmt: skip
    rounds = " or ".join(map(str, sorted({found["rounds"] for found in result["models"].values()})))
    return f"{measured_on(result)} Medians (and minima) of {rounds} steps.\n\n{table(head, rows)}"


def entries(result: Result) -> str:
    """Log entries beside their entropy, and what honest logs bring in."""
    costs: list[Sequence[object]] = []
    brought: list[Sequence[object]] = []
    for name, model in result["models"].items():
        for precision, m in model.items():
            costs.append((
                f"{name}, {precision}", f"{m['entries'] // m['steps']:,}", f"{m['bits_per_entry']:.2f}",
                f"{m['floor_per_entry']:.2f}", f"{m['encode_millions']:.1f}", f"{m['decode_millions']:.1f}",
            ))  # fmt: skip
            for place, r in m["replays"].items():
                brought.append((
                    f"{name}, {precision}, {place}", r["verdict"], f"{r['entries']:,}", f"{r['overruled']:,}",
                    f"{r['bits'] / r['rounded']:.1e}", f"{r['bits_in'] / r['rounded']:.1e}",
                    *(f"{p:.2g}" for p in r["p"].values()),
                ))  # fmt: skip
    head = ("model", "entries a step", "bits an entry", "floor", "encoded, M/s", "decoded, M/s")
    names = [
        name.replace("_", " ")
        for name in next(iter(next(iter(result["models"].values())).values()))["replays"]["here"]["p"]
    ]
    chosen = ("replay", "verdict", "entries", "overruled", "could bring in", "brought in", *(f"p: {n}" for n in names))
    return f"{measured_on(result)}\n\n{table(head, costs)}\n\n{table(chosen, brought)}"


def roundings(result: Result) -> str:
    """What honest logs are charged."""
    rows: list[Sequence[object]] = []
    for name, model in result["models"].items():
        for precision, m in model.items():
            for place, r in m["replays"].items():
                one, of = r["only_here"] + r["only_logged"], r["only_here"] + r["only_logged"] + r["both"]
                rows.append((
                    f"{name}, {precision}, {place}", r["verdict"], f"{r['rounded']:,}", f"{r['overruled']:,}",
                    f"{r['charged_bits']:,.1f}", f"{r['charged_step_bits']:,.1f}",
                    f"{r['charged_bits'] / r['rounded']:.1e}", f"{one:,} of {of:,}",
                ))  # fmt: skip
    head = ("replay", "verdict", "rounded", "overruled", "bits charged", "in one step", "for each element", "one-sided")
    totals = [
        (
            name, f"{t['trainings']}", f"{t['replays']}", t["inconclusive"], t["with_overruled"],
            f"{t['most_charged_bits']:,.1f}", f"{t['most_charged_step_bits']:,.1f}",
            f"{t['most_one_sided']:.1%} ({t['compared']})",
        )
        for name, t in (("models above", result["over_models"]), ("trainings of the zoo", result["over_zoo"]))
    ]  # fmt: skip
    over = ("maxima over", "trainings", "replays", "inconclusive", "with overruled", "bits charged", "in one step",
            "one-sided (replays compared)")  # fmt: skip
    return f"{measured_on(result)}\n\n{table(over, totals)}\n\n{table(head, rows)}"


def chosen_bits(result: Result) -> str:
    """What honest trainings chose, the budgets, and what counting costs."""
    shown = ("structure", "literals", "schedule", "edits", "generators")
    rows: list[Sequence[object]] = []
    zoo = result["zoo"].values()
    for name, m in [*result["models"].items(), ("all of the zoo, at most", None)]:
        if m is None:
            most = {channel: max((each["bits"].get(channel, 0.0) for each in zoo), default=0.0) for channel in shown}
            sizes: tuple[object, ...] = (max(each["operations"] for each in zoo), "", "")
            rows.append((name, *sizes, *(f"{most[channel]:,.0f}" for channel in shown)))
            continue
        share = m["examined_seconds"] / m["replay_seconds"]
        sizes = f"{m['operations']:,}", f"{m['replay_seconds']:.1f}", f"{share:.1%}"
        rows.append((name, *sizes, *(f"{m['bits'].get(channel, 0.0):,.0f}" for channel in shown)))
    rows.append(("budget", "", "", "", *(f"{BUDGETS[channel]:,.0f}" for channel in shown)))
    head = ("training", "operations", "replay, s", "examined", *shown)
    return f"{measured_on(result)}\n\n{table(head, rows)}"
