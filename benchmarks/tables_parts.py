"""The tables of docs/performance.md: where the time of a recorded step goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.page import Result, measured_on, table


def parts(result: Result) -> str:
    """Processor time of recorded, compiled and replayed steps part by part, and what the state costs."""
    models = result["models"]
    recorded = {name: found["recorded"] for name, found in models.items()}
    return "\n\n".join((
        measured_on(result),
        "Recorded operation by operation, with full logs:",
        _by_part(models, "recorded"),
        "Recorded as programs, with logs on demand:",
        _by_part(models, "compiled"),
        "Replayed as programs, from the latter:",
        _by_part(models, "replayed"),
        "The limit of the machine beside them:",
        table(("model", *_LIMIT), [(name, *_limit(found)) for name, found in models.items()]),
        "The state beside the recorded step, and a checkpoint:",
        table(("model", *_STATE), [(name, *_state(found)) for name, found in recorded.items()]),
    ))  # fmt: skip


def _by_part(models: Result, way: str) -> str:
    steps = {name: found[way]["step_cpu_ms"] for name, found in models.items()}
    names = {part: None for found in models.values() for part in found[way]["parts_cpu_ms"]}
    rows: list[Sequence[object]] = [("**whole step**", *(f"**{step:,.0f}**" for step in steps.values()))]
    for part in names:
        spent = {name: found[way]["parts_cpu_ms"].get(part, 0.0) for name, found in models.items()}
        rows.append((part, *(f"{_ms(ms)} ({100 * ms / steps[name]:.1f} %)" for name, ms in spent.items())))
    return table(("ms of processor time (share)", *models), rows)


_LIMIT = (
    "GFLOP", "MB of operands and results", "float64 products, GFLOP/s", "copies within 64 KiB, 1, 16, 256 MiB, GB/s",
    "**limit, ms**", "recorded / limit", "compiled / limit", "replayed / limit",
)  # fmt: skip


def _limit(found: Result) -> Sequence[str]:
    limit = found["replayed"]["limit"]
    return (
        f"{limit['gflop']:,.2f}", f"{limit['megabytes']:,.0f}", f"{limit['gflop_per_s']:.1f}",
        ", ".join(f"{rate:.0f}" for rate in limit["gigabytes_per_s"].values()), _ms(limit["ms"]),
        *(f"{found[way]['step_cpu_ms'] / limit['ms']:.1f}" for way in ("recorded", "compiled", "replayed")),
    )  # fmt: skip


def programs(result: Result) -> str:
    """Replayed steps as straight-line programs and operation by operation, beside the recorded ones."""
    rows: list[Sequence[object]] = []
    for name, found in result["models"].items():
        for kind in ("full", "on-demand"):
            one = found[kind]
            ratios = [_ratio(one["ratios"][each]) for each in _PROGRAMS]
            rows.append(
                (name, kind, *map(_time, map(one.get, _WAYS)), *ratios, one["operations"], one["listed"],
                 one["widened"])
            )  # fmt: skip
    head = (
        "model", "log", "recorded, ms", "operation by operation, ms", "program, ms",
        "operation by operation / recorded", "**program / recorded** (aim 1.0)", "program / operation by operation",
        "operations", "in lists", "rounded at once",
    )  # fmt: skip
    return "\n\n".join((measured_on(result), table(head, rows)))


def compiled(result: Result) -> str:
    """Steps that run as programs while they are recorded, beside those one by one and plain ones."""
    rows: list[Sequence[object]] = []
    for name, m in result["models"].items():
        times = [_time(m["cpu_ms"].get(way)) for way in _COMPILED]
        rows.append((name, *times, *(_ratio(m["ratios"].get(each)) for each in _COMPILED_RATIOS), _AIMS.get(name, "")))
    head = (
        "model", "plain, ms", "wide, ms", "full, ms", "full, compiled, ms", "on-demand, ms", "on-demand, compiled, ms",
        *_COMPILED_RATIOS.values(), "aim",
    )  # fmt: skip
    return "\n\n".join((measured_on(result), table(head, rows)))


def _time(taken: Mapping[str, float] | None) -> str:
    return "" if taken is None else f"{taken['median']:,.1f} ({taken['min']:,.1f})"


def _ratio(found: Mapping[str, float] | None) -> str:
    """A ratio of medians, and of minima."""
    return "" if found is None else f"{found['median']:.2f} ({found['min']:.2f})"


_PROGRAMS = ("one_by_one / recorded", "program / recorded", "program / one_by_one")
_COMPILED = ("plain", "wide", "full", "full_compiled", "on_demand", "on_demand_compiled")
_COMPILED_RATIOS = {
    "full_compiled / full": "full: compiled / one by one",
    "on_demand_compiled / on_demand": "on-demand: compiled / one by one",
    "on_demand / full": "on-demand / full",
    "on_demand / wide": "on-demand / wide",
    "on_demand_compiled / wide": "**on-demand, compiled / wide**",
    "on_demand_compiled / plain": "on-demand, compiled / plain",
}
_AIMS = {
    "gpt2": "1.5 x wide", "resnet": "1.5 x wide", "gpt2-11m": "1.25 x wide",
    "resnet50": "1.25 x wide, 2.5 x plain", "gpt2-124m": "1.25 x wide, 2.5 x plain",
    "gpt2-11m, bf16 autocast": "0.6 x full, 3 x plain",
}  # fmt: skip

_WAYS = ("recorded", "one_by_one", "program")

_STATE = (
    "state, MB", "digest, ms", "mark, ms", "before: two digests", "now: a digest, two marks", "checkpoint before, ms",
    "now, ms", "of processor time, ms", "one every 100 steps",
)  # fmt: skip


def _state(found: Result) -> Sequence[str]:
    digest, mark, step = found["digest_of_state_cpu_ms"], found["mark_of_state_cpu_ms"], found["step_cpu_ms"]
    whole = step - digest - 2 * mark
    before, now = 2 * digest / (whole + 2 * digest), (digest + 2 * mark) / step
    return (
        f"{found['state_megabytes']:,.0f}", _ms(digest), _ms(mark), f"{100 * before:.1f} % of a step",
        f"{100 * now:.1f} %", f"{found['checkpoint_takes_ms']:,.0f}", f"{found['checkpoint_holds_up_ms']:,.0f}",
        f"{found['checkpoint_cpu_ms']:,.0f}", f"{found['checkpoint_cpu_ms'] / step:.1f} % of a step",
    )  # fmt: skip


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def peer(result: Result) -> str:
    """Recorded steps beside those that a peer makes repeatable, and which of them give the same bits elsewhere."""
    rows: list[Sequence[object]] = []
    for name, m in result["models"].items():
        bits = m["same_bits"]
        for way, taken in m["cpu_ms"].items():
            same = bits.get(way, bits["recorded"] if way == "full" else None)
            said = "" if same is None else "yes" if same else "no"
            rows.append(
                (name, way, f"{taken['median']:,.1f} ({taken['min']:,.1f})", f"{m['over_plain'][way]:.2f}", said)
            )
    head = ("model", "way", "a step, ms", "**over plain**", "same bits on every instruction set")
    return "\n\n".join((measured_on(result), table(head, rows)))
