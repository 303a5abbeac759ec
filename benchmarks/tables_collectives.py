"""The tables of docs/benchmarks.md about collectives of jobs."""

from __future__ import annotations

from benchmarks.page import Result, measured_on, table

WORDS = {"gathered": "before", "shares": "now", "own": "PyTorch"}
RECIPES = {"ddp": "perceptron, DDP", "fsdp": "GPT-2, FSDP2"}


def _bytes(row: Result, way: str) -> str:
    """Returns what a rank sends, as it hands it to its group and, in brackets, as its sockets counted it; in MB."""
    found = row["ways"][way]
    wire = f"({found['socket_sent'] / 1e6:.3f})"
    return wire if way == "own" else f"{found['sent'] / 1e6:.3f} {wire}"


def _ratio(row: Result) -> str:
    return f"{row['ways']['gathered']['ms'] / row['ways']['shares']['ms']:.2f}"


def collectives(result: Result) -> str:
    """Bytes and times of collectives and of steps, before and now, against the number of ranks."""
    single = [
        (
            f"{row['name']}, {row['dtype']}", job["ranks"], f"{row['bytes'] / 1e6:.3f}",
            *(_bytes(row, way) for way in WORDS), *(f"{row['ways'][way]['ms']:.0f}" for way in WORDS), _ratio(row),
        )
        for row_number in range(len(result["jobs"][0]["collectives"]))
        for job in result["jobs"]
        for row in [job["collectives"][row_number]]
    ]  # fmt: skip
    head = ("collective", "ranks", "data, MB", *(f"{w}: MB sent" for w in WORDS.values()))
    steps = [
        (
            f"{RECIPES[row['recipe']]}, {row['dtype']}", job["ranks"], _bytes(row, "gathered"), _bytes(row, "shares"),
            *(f"{row['ways'][way]['ms']:.0f}" for way in ("gathered", "shares")), _ratio(row),
        )
        for row_number in range(len(result["jobs"][0]["steps"]))
        for job in result["jobs"]
        for row in [job["steps"][row_number]]
    ]  # fmt: skip
    sizes = [message["bytes"] for message in result["jobs"][0]["messages"]]
    ways = {"gathered": "before", "whole": "one message", "shares": "shares"}
    small = [
        (f"{words}, ms", job["ranks"], *(f"{message['ms'][way]:.2f}" for message in job["messages"]))
        for job in result["jobs"]
        for way, words in ways.items()
    ]
    return "\n\n".join(
        (
            f"{measured_on(result)} The ranks shared {result['cores_used']} of its cores.",
            table((*head, *(f"{w}: ms" for w in WORDS.values()), "before / now"), single),
            "One recorded step:",
            table(
                ("training", "ranks", "before: MB sent", "now: MB sent", "before: ms", "now: ms", "before / now"), steps
            ),
            "All-reduces of small float32 tensors, by bytes:",
            table(("way", "ranks", *(f"{size:,}" for size in sizes)), small),
        )
    )
