"""Writes the table of docs/integrations.md from benchmarks/results/integrations.json.

`python -m benchmarks.integrations_page` replaces what stands between the page's marks; a test compares the two.
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.page import measured_on, table

PAGE = Path(__file__).parents[1] / "docs" / "integrations.md"
HEAD = (
    "example", "releases", "changed lines", "steps", "recorded", "replays elsewhere", "findings above info",
    "plain, s", "recorded, s", "slowdown", "no changed line",
)  # fmt: skip
IDLE = 0.5
"""Load of the machine below which a time counts as measured on an idle one."""


def row(name: str, told: dict[str, Any]) -> list[str]:
    """Returns the cells of one example."""
    unchanged = told["unchanged"]
    return [
        f"[{name}.py](../examples/{name}.py)",
        ", ".join(f"{package} {version}" for package, version in told["versions"].items()),
        str(told["added"]),
        str(told["steps"]),
        "yes" if told["steps"] else "no",
        _replay(told["elsewhere"]),
        ", ".join(told["elsewhere"]["above_info"]) or "0",
        f"{statistics.median(told['plain_seconds']):.2f}",
        f"{statistics.median(told['recorded_seconds']):.2f}",
        f"{told['slowdown']:.1f}",
        _replay(unchanged["elsewhere"]) if "elsewhere" in unchanged else f"exit code {unchanged['exit_code']}",
    ]


def _replay(told: dict[str, Any]) -> str:
    return f"{told['verdict']}, exit code {told['exit_code']}"


def render(page: str) -> str:
    """Returns the page with the table as the result file gives it.

    Raises:
        ValueError: The page lacks the place of the table.
    """
    result = machine.load("integrations")
    text = "Not measured yet: `python -m benchmarks.bench_integrations`."
    if result is not None:
        load = result["load"]
        busy = f" Other work ran meanwhile (load {load}), so the times are only an indication." if load > IDLE else ""
        rows = [row(name, told) for name, told in result["rows"].items()]
        text = f"{measured_on(result)}{busy}\n\n{table(HEAD, rows)}"
    place = re.compile(r"(<!-- begin integrations -->\n).*?(\n<!-- end integrations -->)", re.DOTALL)
    if not place.search(page):
        raise ValueError("the page has no place for the table; add its begin and end marks")
    return place.sub(lambda found: found[1] + text + found[2], page)


def main() -> None:
    """Rewrites the page."""
    PAGE.write_text(render(PAGE.read_text()))
    print(f"wrote the table of {PAGE}")


if __name__ == "__main__":
    main()
