"""The tables of docs/benchmarks.md about recording and replay: times, differences, long runs, hostile tapes."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.machine import BESIDE
from benchmarks.page import Result, measured_on, table


def steps(result: Result) -> str:
    """Step times and their ratios."""
    ways = ("plain", "wide", "bare", "noted", "recorded", "replayed", "published")
    rows: list[Sequence[object]] = []
    for name, m in result["models"].items():
        cells = [
            f"{t['median']:,.0f} ({t['min']:,.0f} to {t['max']:,.0f})" for t in (m["milliseconds"][way] for way in ways)
        ]
        pairs = (
            ("recorded", "wide"),
            ("bare", "wide"),
            ("noted", "wide"),
            ("recorded", "bare"),
            ("replayed", "recorded"),
            ("published", "wide"),
        )
        rows.append((name, *cells, *(f"{m[f'{a}_over_{b}']:.2f}" for a, b in pairs)))
    quotients = (
        "recorded / wide", "bare / wide", "noted / wide", "recorded / bare", "replayed / recorded", "published / wide"
    )  # fmt: skip
    head = ("model", *(f"{way} ms" for way in ways), *quotients)
    return f"{measured_on(result)} Medians of {_rounds(result)} steps (least to most).\n\n{table(head, rows)}"


def _rounds(result: Result) -> str:
    return " or ".join(sorted({str(m["rounds"]) for m in result["models"].values()}))


def differences(result: Result) -> str:
    """What differs between instruction sets with and without the log."""
    rows = [
        (
            f"{name}, {place}", m["steps"], f"{m['weights']:,}", f"{e['plain_weights_differing']:,}",
            f"{e['rounded_weights_differing']:,}", _or_none(e["first_step_differing_without_log"]),
            f"{m['rounded_per_step'] * m['steps']:,}", f"{e['roundings_changed_by_log']:,}",
            f"{e['verdict']}, {'same' if e['same_state'] else 'another'} state",
        )
        for name, m in result["models"].items()
        for place, e in m["elsewhere"].items()
    ]  # fmt: skip
    head = (
        "model", "updates", "weights", "differ: plain", "differ: rounded, no log", "first step to differ",
        "roundings", "changed by the log", "with the log",
    )  # fmt: skip
    return f"{measured_on(result)}\n\n{table(head, rows)}"


def settings(result: Result) -> str:
    """Roundings that went otherwise under each setting of the libraries, and whether all replays matched."""
    models = result["models"]
    ways = list(next(iter(models.values()))["replays"])
    rows: list[Sequence[object]] = [
        (
            way,
            *(
                f"{m['replays'][way]['followed']:,}" if m["replays"][way]["matched"] else "DIFFERS"
                for m in models.values()
            ),
        )
        for way in ways
    ]
    rows.append(("roundings of each replay", *(f"{m['rounded']:,}" for m in models.values())))
    rows.append(("of them in the log", *(f"{m['logged']:,}" for m in models.values())))
    replays = [each for m in models.values() for each in m["replays"].values()]
    matched = sum(each["matched"] for each in replays)
    total = sum(m["rounded"] * len(m["replays"]) for m in models.values())
    says = (
        f"{matched} of {len(replays)} replays matched, {total:,} roundings, {result['updates']} updates of each model."
    )
    return f"{measured_on(result)} {says}\n\n{table(('setting', *models), rows)}"


def _or_none(step: int | None) -> str:
    return "none" if step is None else str(step)


def checkpoints(result: Result) -> str:
    """Honest checkpoints that did not match, ours and published."""
    rows: list[Sequence[object]] = []
    for name, m in result.items():
        totals = m["totals"]
        for place in totals["ours"]:
            mine, theirs = totals["ours"][place], totals["baseline"][place]
            rows.append((
                f"{name}, {place}", f"{m['parameters']:,}", f"{totals['checkpoints']:,}", mine["not_matched"],
                f"{mine['roundings_that_differed']:,}", theirs["not_matched"],
                theirs["not_matched_but_for_attention_biases"],
            ))  # fmt: skip
    head = (
        "model", "parameters", "checkpoints", "ours: not matched", "roundings changed by the log",
        "published: not matched", "of which not only in attention biases",
    )  # fmt: skip
    first = next(iter(result.values()))
    return f"{measured_on(first)}\n\n{table(head, rows)}"


def soak(result: Result) -> str:
    """Full sizes and long runs."""
    rows = [
        (
            name, f"{m['parameters']:,}", m["updates"], f"{m['rounded']:,}", m["log_bits_per_rounded_element"],
            "; ".join(_replay(r) for r in m["replays"]), m["date"],
        )
        for name, m in result.items()
    ]  # fmt: skip
    head = ("run", "parameters", "updates", "rounded elements", "log bits an element", "replays", "date")
    return f"{measured_on(next(iter(result.values())))}\n\n{table(head, rows)}"


def _replay(replay: Result) -> str:
    if "device" not in replay:
        return f"error: {replay['message']}"
    return f"{replay['device'].split()[1].rstrip(',')}: {replay['verdict']}, {replay['roundings_that_differed']:,}"


def resume(result: Result) -> str:
    """Kills and resumptions, of a result file and of what lies beside it."""
    said = [_resumed(each) for each in (result, *result.get(BESIDE, {}).values())]
    return "\n\n".join(said)


def _resumed(result: Result) -> str:
    ways = result.get("ways", {"full, one by one": result})  # earlier soaks were of one way
    rows = [
        (
            way, each["programs"], each["killed"], each["resumed"], len(each["different"]), each["replayed"],
            each.get("steps_as_programs", 0),
        )
        for way, each in ways.items()
    ]  # fmt: skip
    head = ("logs, steps", "runs", "kills", "resumed", "different", "replayed", "steps that are programs")
    about = (
        f"{measured_on(result)} Seed {result['seed']}, width {result.get('width', 16):,}, {result['seconds']:,.0f} s."
    )
    return f"{about}\n\n{table(head, rows)}"


def fuzz(result: Result) -> str:
    """Outcomes of hostile tapes."""
    codes = sorted({code for counts in result["outcomes"].values() for code in counts})
    rows = [
        (f"`{code}`" if "." in code else code, *(f"{counts.get(code, 0):,}" for counts in result["outcomes"].values()))
        for code in codes
    ]
    gaps = f"{result['seeds'][1] - result['seeds'][0]:,} cases, {len(result['gaps'])} gaps."
    return f"{measured_on(result)} {gaps}\n\n{table(('outcome', *result['outcomes']), rows)}"


def export_size(result: Result) -> str:
    """Sizes of minimal copies."""
    parts = ("tapes", "rounding", "steps")
    rows = [
        (
            name, f"{m['parameters']:,}", m["steps"], f"{m['bytes_before'] / 1e6:,.1f}",
            f"{m['bytes_after'] / 1e6:,.2f}", *(f"{m['after'][part] / 1e3:,.0f}" for part in parts), m["verdict"],
        )
        for name, m in result["models"].items()
    ]  # fmt: skip
    head = (
        "model", "parameters", "steps", "whole MB", "minimal MB", "of which tapes, kB", "rounding logs, kB",
        "records, kB", "replay of the copy",
    )  # fmt: skip
    return f"{measured_on(result)}\n\n{table(head, rows)}"


def cells(result: Result) -> str:
    """Checks of sharded jobs against the number of ranks, and what chunks find."""
    rows = [
        (
            m["ranks"], f"{m['whole_job_seconds']:.2f}", f"{m['cell_seconds']:.2f}", m["chunks_of_cell"],
            f"{m['chunk_check_milliseconds']:.2f}", f"{m['chunk_opening_bytes']:,}",
        )
        for m in result["jobs"]
    ]  # fmt: skip
    head = (
        "ranks",
        "whole job, s",
        "one cell, s",
        "chunks in the cell",
        "check of a chunk, ms",
        "opened bytes a chunk",
    )
    power = result["power"]
    found = table(
        ("chunks", "caught", "1 - (1 - q)^k"),
        [(row["chunks"], f"{row['caught']:.3f}", f"{row['formula']:.3f}") for row in power["rows"]],
    )
    return (
        f"{measured_on(result)}\n\n{table(head, rows)}\n\nOf {power['chunks']} chunks of an all-reduce, "
        f"{power['false_chunks']} were false on all ranks; k random chunks, {power['trials']} times:\n\n{found}"
    )


def memorisation(result: Result) -> str:
    """Tests without a replay: areas under their ROC curves, and what they find at a few false alarms."""
    rows = [
        (
            f"{test}, {name}: {kind}", f"{roc['area']:.2f}", f"{roc['found at 0.01']:.2f}",
            f"{roc['found at 0.05']:.2f}", f"{roc['honest']} / {roc['forged']}",
        )
        for name, subject in result["subjects"].items()
        for test in ("memorisation", "continuity")
        for kind, roc in subject[test].items()
    ]  # fmt: skip
    head = ("test, training: forgery", "area", "found at 1 % false", "found at 5 % false", "honest / forged")
    return f"{measured_on(result)}\n\n{table(head, rows)}"
