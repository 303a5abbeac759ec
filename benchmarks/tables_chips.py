"""The tables of docs/benchmarks.md about chips and fleets of them: snapshots, crashes, the registry, the draw."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.page import Result, measured_on, table


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
    ways = list(next(iter(result["kernels"].values())))
    kernels = table(
        ("kernel of 16 numbers, us", *ways),
        [(name, *(each[way] for way in ways)) for name, each in result["kernels"].items()],
    )
    shares = ", ".join(f"{share:.1e} at {name}" for name, share in result["overhead"].items())
    signed = (
        f"Tokens on one core: {t['signed_per_second']:,} signed and {t['verified_per_second']:,} verified a second; "
        f"{t['logged_durably_per_second']:,} a second asked for by a workload, signed and made durable."
    )
    return (
        f"{measured_on(result)}\n\n{rates}\n\n{stalls}\n\nShare of a chip's time for the largest of these: {shares}."
        f"\n\n{steps_}\n\n{kernels}\n\n{signed}"
    )


def _pair(digests: Result, *names: str) -> list[str]:
    return [f"{digests['gigabytes_per_second'][name]:.2f}" for name in names]


def chip_crashes(result: Result) -> str:
    """Honest jobs that crashed on chips."""
    kinds = "; ".join(f"{count} {name}" for name, count in result["snapshots"].items())
    rows = [(
        "benchmarks.honest_job", result["jobs"], result["resumed"], kinds, result["accused"],
        result["verified_chips"], f"{result['seconds']:,.0f}",
    )]  # fmt: skip
    head = ("program", "crashed", "resumed", "snapshots", "violations found", "chips verified", "seconds")
    return f"{measured_on(result)} Seed {result['seed']}.\n\n{table(head, rows)}"


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


def recording_work(result: Result) -> str:
    """What recording itself makes a chip count."""
    rows = [
        (
            f"{row['model']}, {row['precision']} {row['policy']}", f"{row['tape_flops']:,}", f"{row['chip_flops']:,}",
            f"{row['chip_flops'] / row['tape_flops']:.2f}",
            "-" if row["for_each"] is None else f"{row['for_each']:.1f}",
        )
        for row in result["rows"]
    ]  # fmt: skip
    head = ("model", "FLOPs of the tapes", "FLOPs counted", "ratio", "beside, for each result in 16 bits")
    return f"{measured_on(result)} {result['steps']} steps each.\n\n{table(head, rows)}"
