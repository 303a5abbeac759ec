"""Writes the tables of docs/recognition.md from benchmarks/results/recognition.json and sensitivity.json.

`python -m benchmarks.recognition_page` replaces what stands between the page's marks; a test compares the two.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.page import measured_on, table

PAGE = Path(__file__).parents[1] / "docs" / "recognition.md"
_OF_SIZE = (
    "The same figures of models of ordinary size, with small batches, so that updates are a large part of a step:"
)
_SHOWN = 90
"""Characters of a reason that are shown."""


def recognition(result: dict[str, Any]) -> str:
    """Returns what is recognised, what that costs and leaves free, and the rest with its reasons."""
    rows, summary = result["trainings"], result["summary"]
    places: dict[str, list[dict[str, Any]]] = {"zoo": [], "models": [], "jobs": [], "examples": []}
    for row in rows:
        places["zoo" if "::" in row["name"] else row["name"].partition("/")[0]].append(row)
    places = {place: each for place, each in places.items() if each}
    sizes = [
        (row["name"].removeprefix("models/"), f"{row['cost']:.2f}", f"{row['noise']:.2g}", f"{row['freedom']:.2g}")
        for row in places.get("models", ())
    ]
    counted = [
        (place, str(len(each)), str(sum(r["recognised"] for r in each)), str(sum(r["steps"] for r in each)))
        for place, each in places.items()
    ]
    figures = [
        (what, f"{summary[key]['median']:.2g}", f"{summary[key]['largest']:.2g}")
        for key, what in (
            ("cost", "recognition of a step / its replay"),
            ("noise", "largest difference of a gradient / what is accepted"),
            ("freedom", "what the best attack within the acceptance moves / the update"),
        )
        if summary[key]
    ]
    reasons: Counter[str] = Counter()
    named: dict[str, list[str]] = {}
    for row in rows:
        if not row["recognised"]:
            reason = _general((row["reasons"] or ["no update"])[0])
            reasons[reason] += 1
            named.setdefault(reason, []).append(row["name"].rpartition("::")[2].removeprefix("test_"))
    rest = [(_cell(reason), str(count), _cell(", ".join(named[reason][:4]))) for reason, count in reasons.most_common()]
    return "\n\n".join(
        [
            measured_on(result),
            table(("programs", "trainings", "recognised", "steps looked at"), counted),
            table(("figure", "median", "largest"), figures),
            *([_OF_SIZE, table(("model", "cost", "noise", "freedom"), sizes)] if sizes else ()),
            "Not recognised, by the first reason:",
            table(("reason", "trainings", "which"), rest),
        ]
    )


def sensitivity(result: dict[str, Any]) -> str:
    """Returns how honest trainings respond, and from which size on an import is found."""
    zoo = result.get("zoo")
    rows = [_responses(name, told) for name, told in result["models"].items()]
    if zoo is not None:
        rows.append(_responses(f"zoo ({zoo['trainings']} trainings)", zoo))
    rows += [_responses(f"a training, and an import {size} times its update", told)
             for size, told in result["imports"].items()]  # fmt: skip
    untested = "; ".join(f"{reason} ({count})" for reason, count in (zoo or {}).get("untested", {}).items())
    why = f"\n\nUntested steps of the zoo: {untested}." if untested else ""
    head = ("program", "steps", "sensitive", "insensitive", "untested", "least carry", "least joint", "cost in steps")
    return f"{measured_on(result)}\n\n{table(head, rows)}{why}"


def _responses(name: str, told: dict[str, Any]) -> list[str]:
    outcomes = told["outcomes"]
    counts = [str(outcomes.get(each, 0)) for each in ("sensitive", "insensitive", "untested")]
    cost = told.get("cost_in_replayed_steps")
    least = [f"{told[key]:.2f}" if told[key] is not None else "" for key in ("least_carry", "least_joint")]
    return [name, str(told["steps"]), *counts, *least, "" if cost is None else f"{cost:.1f}"]


def _general(reason: str) -> str:
    """A reason without the names and numbers of one training."""
    text = re.sub(r"gradient of [\w.~/\[\]]+ ", "gradient of NAME ", reason)
    text = re.sub(r"\d[\d,]*(\.\d+)?(e[+-]\d+)?", "N", text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def render(page: str) -> str:
    """Returns the page with its tables as the result files give them.

    Raises:
        ValueError: The page lacks the place of a table.
    """
    for name, text_of in (("recognition", recognition), ("sensitivity", sensitivity)):
        result = machine.load(name)
        text = "Not measured yet." if result is None else text_of(result)
        place = re.compile(rf"(<!-- begin {name} -->\n).*?(\n<!-- end {name} -->)", re.DOTALL)
        if not place.search(page):
            raise ValueError(f"the page has no place for the table of {name}; add its begin and end marks")
        page = place.sub(lambda found, text=text: found[1] + text + found[2], page)
    return page


def main() -> None:
    """Rewrites the page."""
    PAGE.write_text(render(PAGE.read_text()))
    print(f"wrote the tables of {PAGE}")


if __name__ == "__main__":
    main()
