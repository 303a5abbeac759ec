"""Writes the tables of docs/benchmarks.md from the result files.

`python -m benchmarks.tables` replaces what stands between `<!-- begin NAME -->` and `<!-- end NAME -->`, so that no
figure in the page is typed by hand; a test compares the page with the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.page import Result, measured_on, table
from benchmarks.tables_inspection import inspection, verification_cost
from weighbridge.program.tape_policy import BUDGETS

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


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
    """Kills and resumptions."""
    rows = [(
        "benchmarks.resume_job", result["programs"], result["killed"], result["resumed"], len(result["different"]),
        result["replayed"], f"{result['seconds']:,.0f}",
    )]  # fmt: skip
    head = ("program", "runs", "kills", "resumed", "different", "replayed", "seconds")
    return f"{measured_on(result)} Seed {result['seed']}.\n\n{table(head, rows)}"


def fuzz(result: Result) -> str:
    """Outcomes of hostile tapes."""
    codes = sorted({code for counts in result["outcomes"].values() for code in counts})
    rows = [
        (f"`{code}`" if "." in code else code, *(f"{counts.get(code, 0):,}" for counts in result["outcomes"].values()))
        for code in codes
    ]
    gaps = f"{result['seeds'][1] - result['seeds'][0]:,} cases, {len(result['gaps'])} gaps."
    return f"{measured_on(result)} {gaps}\n\n{table(('outcome', *result['outcomes']), rows)}"


def chip(result: Result) -> str:
    """Digests, stalls, recording under interrupts, tokens."""
    d, s, t = result["digests"], result["steps"], result["tokens"]
    rates = table(
        ("GB a second", "blake3 package", "storage digest", "ratio"),
        [
            (f"all {result['cores']} cores, one storage of {d['mebibytes']} MiB",
             *_pair(d, "package_all_cores", "ours_all_cores"), f"{d['ours_over_package_all_cores']:.2f}"),
            ("one core, storages of 1 MiB", *_pair(d, "package_one_core_by_mebibyte", "ours_one_core_by_mebibyte"),
             f"{d['ours_over_package_one_core']:.2f}"),
        ],
    )  # fmt: skip
    stalls = table(
        ("memory", "stall ms, median", "least", "most"),
        [(f"{r['mebibytes']} MiB", r["median_ms"], r["min_ms"], r["max_ms"]) for r in result["stalls"]],
    )
    steps_ = table(
        ("step", "ms, median", "least"), [(name, ms, s["min_ms"][name]) for name, ms in s["median_ms"].items()]
    )
    shares = ", ".join(f"{share:.1e} at {name}" for name, share in result["overhead"].items())
    signed = (
        f"Tokens on one core: {t['signed_per_second']:,} signed and {t['verified_per_second']:,} verified a second; "
        f"{t['logged_durably_per_second']:,} a second asked for by a workload, signed and made durable."
    )
    return (
        f"{measured_on(result)}\n\n{rates}\n\n{stalls}\n\nShare of a chip's time for the largest of these: {shares}."
        f"\n\n{steps_}\n\n{signed}"
    )


def _pair(digests: Result, *names: str) -> list[str]:
    return [f"{digests['gigabytes_per_second'][name]:.2f}" for name in names]


def fleet(result: Result) -> str:
    """What each chip of a fleet costs."""
    names = {
        "provision": "provisioned", "register": "registered", "first_contact": "asked who it is, off before",
        "later_contact": "asked who it is again", "inspect": f"inspected ({result['samples']} drawn)",
    }  # fmt: skip
    rows = [(text, f"{result[key]['wall_ms']:.1f}", f"{result[key]['cpu_ms']:.1f}") for key, text in names.items()]
    sizes = (
        f"{result['chips']:,} chips in one process: {result['chip_bytes'] / 1e3:.0f} kB of memory and "
        f"{result['chip_disk_bytes'] / 1e3:.0f} kB on the disk each, and {result['server_bytes'] / 1e6:.0f} MB for the "
        f"process. {result['verified']} of {result['samples']} drawn chips counted as sampled, with "
        f"{result['findings']} findings."
    )
    head = ("each chip", "ms", "of which this process computed")
    return f"{measured_on(result)}\n\n{sizes}\n\n{table(head, rows)}"


def simulator(result: Result) -> str:
    """Ten years of simulated fleets."""
    rows = [
        (
            case["case"], f"{case['involved']:,}", f"{case['samples']:,}", case["histories"],
            f"{case['inspected'] / 1e6:,.2f}", f"{case['seconds']:.1f}", f"{case['cpu_seconds']:.1f}",
            f"{case['peak_bytes'] / 2**30:.2f}",
            f"{case['found']:.3f} [{case['low']:.3f}, {case['high']:.3f}]", f"{case['formula']:.3f}",
        )
        for case in result["cases"]
    ]  # fmt: skip
    head = (
        "case", "chips at work", "drawn a month", "histories", "million inspected", "seconds", "processor seconds",
        "peak GiB", f"found in time, {result['confidence']:.0%} interval", "formula",
    )  # fmt: skip
    load = max(case["load_before"] for case in result["cases"])
    about = (
        f"{result['chips']:,} chips, {result['days']:,.0f} days, {result['workers']} threads of the simulator on "
        f"{result['cores']} cores. The load average before a case, which counts the case before it, was at most "
        f"{load:.1f}."
    )
    return f"{measured_on(result)} {about}\n\n{table(head, rows)}"


def registry(result: Result) -> str:
    """What a chip registry costs."""
    found, asked, out = result["events"], result["queries"], result["tables"]
    each = asked["looked_up"]
    rows: list[Sequence[object]] = [
        (text, f"{m['wall_s'] * by:,.{digits}f}", f"{m['cpu_s'] * by:,.{digits}f}")
        for text, m, by, digits in (
            (f"{found['statements']:,} statements signed", found["sign"], 1, 1),
            ("submitted: verified, logged, applied", found["submit"], 1, 1),
            ("root of the log, after a start", asked["root"], 1, 2),
            ("1,000 chips with their histories looked up", asked["look_ups"], 1000 / each, 2),
            (f"{result['drawn']:,} chips drawn of all", asked["draw"], 1, 1),
            ("audit", asked["audit"], 1, 1),
            ("whole log verified, tables compared", result["anew"]["deep_audit"], 1, 1),
            ("all chips exported as CSV", out["export"], 1, 1),
            ("and imported into another registry", out["import"], 1, 1),
        )
    ]
    peaks = ", ".join(
        f"{result[part]['peak_bytes'] / 1e6:,.0f} MB ({text})"
        for part, text in (
            ("events", "statements"), ("queries", "look-ups, draw, audit"), ("anew", "whole log"), ("tables", "CSV"),
        )
    )  # fmt: skip
    sizes = (
        f"{result['chips']:,} chips in lots of {result['lot']:,}, each made, tested, sold and installed: a database of "
        f"{found['database_bytes'] / 1e6:,.0f} MB. Peak memory of each process: {peaks}, of which "
        f"{found['imports_bytes'] / 1e6:,.0f} MB are imported libraries."
    )
    return f"{measured_on(result)}\n\n{sizes}\n\n{table(('work', 'seconds', 'of processor'), rows)}"


def draw(result: Result) -> str:
    """The cost of a draw that neither side can steer."""
    names = {
        "population": "population sorted", "commit": "divided, samples allocated, committed to",
        "close": "heads closed",
        "open": "drawn", "probability": "p, against the worst spread",
        "read": "record read again",
        "verify": "and recomputed",
    }  # fmt: skip
    rows = [
        (text, f"{m['wall_s']:.1f}", f"{m['cpu_s']:.1f}", f"{m['peak_bytes'] / 1e6:,.0f}")
        for text, m in ((text, result["steps"][key]) for key, text in names.items())
    ]
    sizes = (
        f"{result['chips']:,} chips in {result['strata']} strata; {result['samples']:,} drawn at random, "
        f"{result['certain']:,} without a head drawn with certainty; p = {result['p']:.3f}. The record has "
        f"{result['record_bytes'] / 1e6:,.0f} MB; {result['findings']} findings."
    )
    head = ("step", "seconds", "of processor", "most memory by its end, MB")
    return f"{measured_on(result)}\n\n{sizes}\n\n{table(head, rows)}"


def chip_crashes(result: Result) -> str:
    """Honest jobs that crashed on chips."""
    kinds = "; ".join(f"{count} {name}" for name, count in result["snapshots"].items())
    rows = [(
        "benchmarks.honest_job", result["jobs"], result["resumed"], kinds, result["accused"],
        result["verified_chips"], f"{result['seconds']:,.0f}",
    )]  # fmt: skip
    head = ("program", "crashed", "resumed", "snapshots", "violations found", "chips verified", "seconds")
    return f"{measured_on(result)} Seed {result['seed']}.\n\n{table(head, rows)}"


def honest(result: Result) -> str:
    """Inspections of honest Provers."""
    first, end = result["seeds"]
    rows = [
        (what, "; ".join(f"{count} {name}" for name, count in result[what].items()) or "none")
        for what in ("models", "arithmetic", "recorded on", "replayed on", "ends", "snapshots", "infos")
    ]
    sizes = (
        f"{result['inspections']:,} inspections (of seeds {first} to {end}) in {result['seconds'] / 60:,.0f} minutes: "
        f"**{len(result['accused'])} findings against any party**, violations and warnings together."
    )
    return f"{measured_on(result)}\n\n{sizes}\n\n{table(('what', 'how many'), rows)}"


def verifier_kills(result: Result) -> str:
    """Inspections whose Verifier was killed."""
    first, end = result["seeds"]
    at = "; ".join(f"{count} {name}" for name, count in result["stages"].items())
    rows = [(
        result["chips"], end - first, result["kills"], at, len(result["different"]),
        f"{result['undisturbed_seconds']:,.0f}", f"{result['seconds']:,.0f}",
    )]  # fmt: skip
    head = ("chips", "inspections", "kills", "at the stage", "other reports", "seconds undisturbed", "seconds in all")
    return f"{measured_on(result)} Seeds {first} to {end - 1}.\n\n{table(head, rows)}"


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


def chip_power(result: Result) -> str:
    """Power cuts of a chip."""
    idle = sum(each["problem"] == "nothing was logged" for each in result["wrong"])
    rows = [(
        result["kills"], f"{result['entries']:,}", f"{result['besides_boots']:,}", f"{result['held_by_witness']:,}",
        len(result["wrong"]) - idle, idle, f"{result['seconds']:,.0f}",
    )]  # fmt: skip
    head = (
        "power cuts", "entries", "besides those of boots", "held by the witness", "wrong", "cut before any was logged",
        "seconds",
    )  # fmt: skip
    return f"{measured_on(result)} Seed {result['seed']}.\n\n{table(head, rows)}"


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


TABLES: dict[str, Callable[[Result], str]] = {
    "logs": logs,
    "chosen_bits": chosen_bits,
    "entries": entries,
    "roundings": roundings,
    "steps": steps,
    "differences": differences,
    "soak_checkpoints": checkpoints,
    "soak": soak,
    "resume": resume,
    "soak_chip": chip_power,
    "chip": chip,
    "chip_crashes": chip_crashes,
    "honest": honest,
    "soak_verifier_kills": verifier_kills,
    "fleet": fleet,
    "simulator": simulator,
    "registry": registry,
    "draw": draw,
    "fuzz": fuzz,
    "export_size": export_size,
    "cells": cells,
    "memorisation": memorisation,
    "inspection": inspection,
    "inspection_small": inspection,
    "verification_cost": verification_cost,
}
"""By name of the result file and of the place in the page."""


def render(page: str) -> str:
    """Returns the page with every table as the result files give it.

    Raises:
        ValueError: The page lacks the place of a table.
    """
    for name, make in TABLES.items():
        result = machine.load(name)
        text = make(result) if result else f"Not measured yet: `python -m benchmarks.{module(name)}`."
        place = re.compile(f"(<!-- begin {name} -->\n).*?(\n<!-- end {name} -->)", re.DOTALL)
        if not place.search(page):
            raise ValueError(f"the page has no place for the table {name!r}; add its begin and end marks")
        page = place.sub(lambda found, text=text: found[1] + text + found[2], page)  # type: ignore[misc]
    return page


def module(name: str) -> str:
    """Returns the script that makes a result file."""
    other = {"resume": "soak_resume", "fuzz": "soak_fuzz"}
    other |= {"chip_crashes": "soak_chip_crashes", "honest": "soak_honest", "inspection_small": "bench_inspection"}
    return other.get(name, name if name.startswith(("soak", "export")) else f"bench_{name}")


def main() -> None:
    """Rewrites the page."""
    PAGE.write_text(render(PAGE.read_text()))
    print(f"wrote the tables of {PAGE}")


if __name__ == "__main__":
    main()
