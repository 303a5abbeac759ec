"""The table of docs/benchmarks.md about disputes."""

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
