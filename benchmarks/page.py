"""Parts of docs/benchmarks.md that all its tables share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Result = dict[str, Any]


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns a table in Markdown; the first column is text, the others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def measured_on(result: Result) -> str:
    """Returns the line that says when and on what a result was measured."""
    threads = "1 thread" if result["threads"] == 1 else f"{result['threads']} threads"
    return (
        f"{result['date']}: {result.get('processor', result['machine'])}, {result['capability']}, {threads}, "
        f"torch {result['torch']}."
    )
