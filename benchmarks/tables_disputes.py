"""The tables of docs/benchmarks.md about disputes."""

from __future__ import annotations

from benchmarks.page import Result, measured_on, table


def disputes(result: Result) -> str:
    """What a dispute takes, beside replays."""
    sizes, times = [], []
    for each in result["trainings"]:
        sent, ratios = each["bytes"], each["ratios"]
        sizes.append((
            each["steps"], f"{each['operations']:,}", each["operation"], sum(each["messages"].values()),
            each["bisection"],
            *(f"{sent[name] / 1e3:,.1f}" for name in ("course", "leaves", "opening", "challenger", "defender", "file")),
            f"{sent['transcript'] / 1e3:,.0f}",
        ))  # fmt: skip
        names = ("judged / part", "judged / whole", "worker / part", "judged / worker", "tree / part")
        times.append((each["steps"], each["part_steps"], *(f"{ratios[name]:.2f}" for name in names)))
    head = (
        "steps", "operations", "disputed operation", "messages", "rounds of bisection", "course kB", "leaves kB",
        "opening kB", "challenger kB", "defender kB", "file kB", "transcript kB",
    )  # fmt: skip
    ratios_of = (
        "steps", "steps of the part", "judged / part", "judged / whole", "worker / part", "judged / worker",
        "tree / part",
    )  # fmt: skip
    busy = f"Before, {result['load_before']:.1f} other processes ran on {result['cores']} cores on average."
    return (
        f"{measured_on(result)} {busy} Minima of {result['rounds']} rounds.\n\n{table(head, sizes)}\n\n"
        f"Times beside each other:\n\n{table(ratios_of, times)}"
    )


def narrowed(result: Result) -> str:
    """What a dispute about one operation takes, judged by a chunk of the result and whole."""
    rows = []
    for each in result["disputes"]:
        for way in ("whole", "part"):
            if (found := each.get(way)) is None:  # no party can open that much
                continue
            rows.append((
                each["model"], f"{each['operation']} {'x'.join(map(str, each['shape']))}",
                "whole" if way == "whole" else f"1 of {each['chunks']:,} chunks", f"{found['opening'] / 1e3:,.1f}",
                "0.0" if way == "whole" else f"{each['parts'] / 1e3:,.1f}", f"{found['sent'] / 1e3:,.1f}",
                f"{max(found['peak']) / 1e6:,.0f}", f"{min(found['executed']):.2f}", f"{min(found['judged']):.2f}",
            ))  # fmt: skip
    head = (
        "model", "operation", "judged", "opening kB", "parts kB", "challenger kB", "memory MB", "executed s",
        "judged s",
    )  # fmt: skip
    busy = f"Before, {result['load_before']:.1f} other processes ran on {result['cores']} cores on average."
    times = f"Times are minima of {result['rounds']} rounds, memory the largest."
    return (
        f"{measured_on(result)} {busy} {times}\n\n{table(head, rows)}\n\n"
        f"The step, with the start of each worker:\n\n{_trees(result['steps'])}"
    )


def _trees(steps: dict[str, Result]) -> str:
    rows = []
    for name, each in steps.items():
        tree, replay = (min(each["seconds"][way]) for way in ("tree", "replay"))
        rows.append((
            name, f"{each['operations']:,}", f"{each['transcript'] / 1e6:,.0f}", f"{tree:.1f}", f"{replay:.1f}",
            f"{tree / replay:.2f}",
        ))  # fmt: skip
    return table(("model", "operations", "transcript MB", "tree s", "replay s", "tree / replay"), rows)


def memory(result: Result) -> str:
    """What a dispute about a chip's memory takes."""
    rows = []
    names = ("digest", "claim", "doubt", "layer", "referee")
    for each in result["storages"]:
        times = each["seconds"]
        rows.append((
            f"{each['size'] / 1024:,.0f}", *each["messages"], *(f"{sent / 1e3:,.1f}" for sent in each["bytes"]),
            *(f"{times[name]:.4f}" if name in times else "" for name in names),
        ))  # fmt: skip
    head = (
        "storage KiB", "challenger's messages", "defender's messages", "challenger kB", "defender kB", "digest s",
        "claim s", "doubt s", "layer s", "referee s",
    )  # fmt: skip
    busy = f"Before, {result['load_before']:.1f} other processes ran on {result['cores']} cores on average."
    return f"{measured_on(result)} {busy} Minima of {result['rounds']} rounds.\n\n{table(head, rows)}"


def courses(result: Result) -> str:
    """How a dispute finds the step, against the length of the training."""
    rows = []
    for each in result["lengths"]:
        games = each["games"]
        rows.append((
            f"{each['steps']:,}", games[0]["messages"], f"{max(game['largest'] for game in games) / 1e3:,.1f}",
            f"{max(game['bytes'] for game in games) / 1e3:,.1f}", f"{min(game['made'] for game in games):.2f}",
            f"{min(game['found'] for game in games):.3f}", each["binary"]["messages"], each["binary"]["bytes"],
        ))  # fmt: skip
    head = (
        "steps", "messages", "largest kB", "a party's kB", "made s", "found s", "messages if halved",
        "a party's bytes if halved",
    )  # fmt: skip
    return f"{measured_on(result)} Minima of {result['rounds']} games.\n\n{table(head, rows)}"


def sealed(result: Result) -> str:
    """What a dispute in a sealed worker takes beside an ordinary one."""
    rows = []
    for each in result["trainings"]:
        least = {name: min(taken) for name, taken in each["seconds"].items()}
        rows.append((
            each["steps"], f"{each['given'] / 1e6:,.1f}",
            *(f"{least[name]:.2f}" for name in ("judged", "parties", "sealed")),
            *(f"{each['ratios'][name]:.2f}" for name in ("sealed / judged", "sealed / all", "sealed / part")),
            *(f"{each['memory'][name] / 1e6:,.0f}" for name in ("judged", "parties", "sealed")),
        ))  # fmt: skip
    head = (
        "steps", "a party gives MB", "judged s", "parties s", "sealed s", "sealed / judged",
        "sealed / judged and parties", "sealed / part", "judged MB", "parties MB", "sealed MB",
    )  # fmt: skip
    busy = f"Before, {result['load_before']:.1f} other processes ran on {result['cores']} cores on average."
    start = f"A worker was attested {min(result['start']):.0f} to {max(result['start']):.0f} s after its start."
    return (
        f"{measured_on(result)} {busy} Times are minima of {result['rounds']} rounds, memory the largest. {start}\n\n"
        f"{table(head, rows)}"
    )
