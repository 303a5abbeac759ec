"""The tables of docs/performance.md: where the time of a recorded step goes."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.page import Result, measured_on, table


def parts(result: Result) -> str:
    """Processor time of a recorded step part by part, and what its state costs before and now."""
    models = result["models"]
    steps = {name: found["step_cpu_ms"] for name, found in models.items()}
    names = {part: None for found in models.values() for part in found["parts_cpu_ms"]}
    rows: list[Sequence[object]] = [("**whole step**", *(f"**{step:,.0f}**" for step in steps.values()))]
    for part in names:
        spent = {name: found["parts_cpu_ms"].get(part, 0.0) for name, found in models.items()}
        rows.append((part, *(f"{_ms(ms)} ({100 * ms / steps[name]:.1f} %)" for name, ms in spent.items())))
    return "\n\n".join((
        measured_on(result),
        table(("ms of processor time (share)", *models), rows),
        "The state beside it, and a checkpoint:",
        table(("model", *_STATE), [(name, *_state(found)) for name, found in models.items()]),
    ))  # fmt: skip


def programs(result: Result) -> str:
    """Replayed steps as straight-line programs and operation by operation, beside the recorded ones."""
    rows: list[Sequence[object]] = []
    for name, found in result["models"].items():
        for kind in ("full", "on-demand"):
            one = found[kind]
            times = [f"{one[way]['median']:,.1f} ({one[way]['min']:,.1f})" for way in _WAYS]
            ratios = [
                f"{one[key]:.2f}"
                for key in ("one_by_one_over_recorded", "program_over_recorded", "program_over_one_by_one")
            ]
            rows.append((name, kind, *times, *ratios, one["operations"], one["listed"], one["widened"]))
    head = (
        "model", "log", "recorded, ms", "operation by operation, ms", "program, ms",
        "operation by operation / recorded", "**program / recorded**", "program / operation by operation",
        "operations", "in lists", "rounded at once",
    )  # fmt: skip
    return "\n\n".join((measured_on(result), table(head, rows)))


def compiled(result: Result) -> str:
    """Steps that run as programs while they are recorded, beside those one by one and plain ones."""
    rows: list[Sequence[object]] = []
    for name, m in result["models"].items():
        taken = [m["cpu_ms"].get(way) for way in _COMPILED]
        times = ["" if each is None else f"{each['median']:,.1f} ({each['min']:,.1f})" for each in taken]
        ratios = [m.get(f"{one}_over_{other}") for one, other in _COMPILED_RATIOS]
        rows.append((name, *times, *("" if each is None else f"{each:.2f}" for each in ratios)))
    head = (
        "model", "plain, ms", "wide, ms", "full, ms", "full, compiled, ms", "on-demand, ms", "on-demand, compiled, ms",
        "full: compiled / one by one", "on-demand: compiled / one by one", "on-demand / wide",
        "**on-demand, compiled / wide**", "on-demand, compiled / plain",
    )  # fmt: skip
    return "\n\n".join((measured_on(result), table(head, rows)))


_COMPILED = ("plain", "wide", "full", "full_compiled", "on_demand", "on_demand_compiled")
_COMPILED_RATIOS = (
    ("full_compiled", "full"), ("on_demand_compiled", "on_demand"), ("on_demand", "wide"),
    ("on_demand_compiled", "wide"), ("on_demand_compiled", "plain"),
)  # fmt: skip

_WAYS = ("recorded", "one_by_one", "program")

_STATE = (
    "state, MB", "digest, ms", "mark, ms", "before: two digests", "now: a digest, two marks", "checkpoint before, ms",
    "now, ms",
)  # fmt: skip


def _state(found: Result) -> Sequence[str]:
    digest, mark, step = found["digest_of_state_cpu_ms"], found["mark_of_state_cpu_ms"], found["step_cpu_ms"]
    whole = step - digest - 2 * mark
    before, now = 2 * digest / (whole + 2 * digest), (digest + 2 * mark) / step
    return (
        f"{found['state_megabytes']:,.0f}", _ms(digest), _ms(mark), f"{100 * before:.1f} % of a step",
        f"{100 * now:.1f} %", f"{found['checkpoint_takes_ms']:,.0f}", f"{found['checkpoint_holds_up_ms']:,.0f}",
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
