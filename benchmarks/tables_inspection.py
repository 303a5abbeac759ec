"""The tables of docs/benchmarks.md about whole inspections: honest ones, killed ones, and what they cost."""

from __future__ import annotations

from benchmarks.machine import BESIDE
from benchmarks.page import Result, measured_on, table


def inspection(result: Result) -> str:
    """What a whole inspection of a fleet costs the Verifier, phase by phase."""
    fleet_, drawn = result["fleet"], result["samples"]
    names = {
        "reports": f"{fleet_:,} reports of chips taken in", "closing": "draw committed to and closed, with its waits",
        "drawing": "drawn, once the beacon's value is there", "logs": f"{drawn:,} logs read, verified, judged, kept",
        "transcripts": "transcripts asked for, fetched, verified", "replays": "snapshots opened and replayed",
        "examination": "programs of the runs counted", "report": "judged, report made",
        "signed report": "report signed and sent",
    }  # fmt: skip
    rows = [
        (
            text, f"{m['wall_s']:,.1f}", f"{m['cpu_s']:,.1f}",
            f"{m['workers_cpu_s']:,.1f}",
            f"{m['peak_bytes'] / 1e6:,.0f}",
            f"{m['worker_peak_bytes'] / 1e6:,.0f}" if m.get("workers_cpu_s") else "",
        )
        for key, text in names.items()
        if (m := result["phases"].get(key))
    ]  # fmt: skip
    made, snapshots = result["made"], sum(result["snapshots"].values())
    sizes = (
        f"{fleet_:,} chips; {drawn:,} drawn from {result['strata']} strata, p = {result['p']:.3f}; "
        f"{result['replayed_chips']} of them with a recorded training each, with {snapshots} snapshots in all. The "
        f"logs drawn have {result['entries']:,} entries, {result['entries'] / drawn:.0f} a chip. "
        f"{result['verified']:,} chips counted as sampled, with {result['accusing']} findings but notes. The "
        f"database has {result['database_bytes'] / 1e6:,.0f} MB, the report {result['report_bytes'] / 1e6:.1f} MB; the "
        f"Verifier's process began with {result['started_bytes'] / 1e6:,.0f} MB. Verifying each entry once more, "
        f"by itself, takes {result['tokens_cpu_s']:.1f} s of processor. Besides: chips made in "
        f"{made['wall_s']:,.0f} s, and registered from a table in {result['registered']['wall_s']:,.0f} s. The "
        f"load average of the five minutes until they were made was {result['load_before']:.1f}, "
        f"on {result['cores']} cores."
    )
    head = ("phase", "seconds", "of the Verifier's processor", "of its workers", "peak MB", "largest worker, MB")
    return f"{measured_on(result)}\n\n{sizes}\n\n{table(head, rows)}"


def honest(result: Result) -> str:
    """Inspections of honest Provers, of a result file and of what lies beside it."""
    return "\n\n".join(_honest(each) for each in (result, *result.get(BESIDE, {}).values()))


def _honest(result: Result) -> str:
    first, end = result["seeds"]
    what = (
        "models", "arithmetic", "logs", "steps", "recorded on", "replayed on", "ends", "snapshots",
        "snapshots by logs", "logs asked for", "infos",
    )  # fmt: skip
    rows = [
        (name, "; ".join(f"{count} {kind}" for kind, count in result[name].items()) or "none")
        for name in what
        if name in result  # earlier soaks were of full logs and steps one by one
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


def verification_cost(result: Result) -> str:
    """Verification against training: what was measured, what plans cost, and larger runs."""
    runs = [
        (
            f"{name}, {run['rate']:g} a day", f"{run['days']:.1f}", run["replays"], run["replayed_steps"],
            f"{model['steps'] * model['plain_step_cpu_s']:.1f}",
            f"{run['recorded_step_cpu_s'] / model['plain_step_cpu_s']:.1f}", f"{run['replay_cpu_s']:.1f}",
            f"{run['rest_cpu_s']:.1f}",
            f"{(run['replay_cpu_s'] + run['rest_cpu_s']) / model['steps'] / model['plain_step_cpu_s']:.2f}",
        )
        for name, model in result["models"].items()
        for run in model["runs"]
    ]  # fmt: skip
    first = table(
        ("run", "chip-days", "replays", "steps replayed", "trained plainly, s", "recorded / plain", "replays, s",
         "rest of the inspection, s", "all / plain training"), runs,
    )  # fmt: skip
    plans = next(iter(result["models"].values()))["plans"]
    by_model = [
        {(plan["rate"], plan["samples"]): plan["cost"] for plan in model["plans"]}
        for model in result["models"].values()
    ]
    second = table(
        ("snapshots a chip and day", "chips drawn", "share", "p", *(f"cost, {name}" for name in result["models"])),
        [
            (
                f"{plan['rate']:g}", f"{plan['samples']:,}", f"{plan['share']:.2%}", f"{plan['p']:.3f}",
                *(f"{costs[plan['rate'], plan['samples']]:.1e}" for costs in by_model),
            )
            for plan in plans
        ],
    )  # fmt: skip
    third = table(
        ("run", "segments", "of which false", "replayed", "p", "cost"),
        [
            (name, each["segments"], each["false"], each["drawn"], f"{each['p']:.3f}", f"{each['cost']:.2f}")
            for name, model in result["models"].items()
            for each in model["segments"]
        ],
    )
    fourth = table(
        ("model", "replayed / plain", "hours between checkpoints", "cost"),
        [
            (each["model"], f"{each['ratio']:.2f}", f"{each['hours']:g}", f"{each['cost']:.1e}")
            for each in result["larger"]
        ],
    )
    any_ = result["larger"][0]
    said = f"{any_['share']:.0%} of the chips drawn, {any_['rate']:g} snapshots a day"
    period = (
        f"Runs of {next(iter(result['models'].values()))['steps']} steps, which last "
        f"{result['period_days']:g} days of the chip's clock. Before, {result['load_before']:.1f} other processes ran "
        f"on {result['cores']} cores on average."
    )
    fleet_ = f"In a fleet of {result['chips']:,} chips, of which the run needs {result['involved']}:"
    return (
        f"{measured_on(result)} {period}\n\n{first}\n\n{fleet_}\n\n{second}\n\nWhole segments of one run, chosen "
        f"at random:\n\n{third}\n\nExtrapolated ({said}):\n\n{fourth}"
    )


def flood(result: Result) -> str:
    """A Verifier under a flood: what calls took, and what the attackers tried."""
    calm, under = result["calls"]["calm"], result["calls"]["flood"]
    calls = table(
        ("call", "calls", "failed", "median, ms", "99th percentile, ms", "longest, ms", "median without flood, ms"),
        [
            (
                name, each["calls"], sum(each["failed"].values()), each["median_ms"], each["p99_ms"], each["max_ms"],
                calm[name]["median_ms"],
            )
            for name, each in under.items()
        ],
    )  # fmt: skip
    memory = result["resident_mib"]
    tried = {role: sum(counts.values()) for role, counts in result["tried"].items()}
    return (
        f"{measured_on(result)} {result['minutes']:g} minutes. The attackers began {tried['chip']:,} calls with a "
        f"chip's certificate and {tried['prover']:,} with a Prover's. The Verifier had {memory['before']:.0f} MiB in "
        f"memory before, at most {memory['flood']:.0f} MiB under the flood, and {memory['after']:.0f} MiB "
        f"afterwards.\n\n{calls}"
    )
