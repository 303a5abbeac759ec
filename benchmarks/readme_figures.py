"""The table of the README: what was measured, in one line each.

`python -m benchmarks.readme_figures` replaces what stands between `<!-- begin measured -->` and `<!-- end measured -->`
by what the result files say; a test compares the two.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import machine
from benchmarks.page import Result

PAGE = Path(__file__).parents[1] / "README.md"
_PLACE = re.compile(r"(<!-- begin measured -->\n).*?(<!-- end measured -->)", re.DOTALL)


def _checkpoints(result: Result) -> str:
    sets = [(model["totals"], name) for model in result.values() for name in model["totals"]["ours"]]
    tried = sum(totals["checkpoints"] for totals, _ in sets)
    ours = sum(totals["ours"][name]["not_matched"] for totals, name in sets)
    published = sum(totals["baseline"][name]["not_matched"] for totals, name in sets)
    return (
        f"{ours:,} of {tried:,} honest checkpoints differ on another instruction set; with the published method "
        f"{published:,}"
    )


def _honest(result: Result) -> str:
    return f"{len(result['accused'])} of {result['inspections']} honest inspections accuse a Prover"


def _attacks(result: Result) -> str:
    rows = result["rows"].values()
    caught = sum(1 for row in rows if row["caught"] == row["seeds"])
    return f"{caught} of {len(rows)} attacks are caught with every seed; the page says what the others gain"


def _logs(result: Result) -> str:
    ours = result["models"]["gpt2"]["ours"]
    return (
        f"a log has {ours['fp32 strict']['bits_per_element']:.4f} bits a rounded float32 of a small GPT-2, "
        f"{ours['bf16 calibrated']['bits_per_element']:.2f} a bfloat16"
    )


def _steps(result: Result) -> str:
    times = {name: result["models"][name]["milliseconds"] for name in ("gpt2-124m", "resnet50", "gpt2")}
    ratios = {name: each["recorded"]["median"] / each["plain"]["median"] for name, each in times.items()}
    return (
        f"a recorded step takes {ratios['gpt2-124m']:.1f} times a plain one for GPT-2 124 M, "
        f"{ratios['resnet50']:.1f} for ResNet-50, {ratios['gpt2']:.1f} for a toy GPT-2"
    )


def _compiled(result: Result) -> str:
    ratios = {
        name: model["cpu_ms"]["on_demand_compiled"]["median"] / model["cpu_ms"]["plain"]["median"]
        for name, model in result["models"].items()
    }
    return (
        f"a compiled step with logs on demand takes {ratios['gpt2-11m']:.1f} times a plain one for GPT-2 11 M, "
        f"{ratios['gpt2']:.1f} for a toy GPT-2"
    )


ROWS = (
    ("soak_checkpoints", _checkpoints, "[benchmarks](docs/benchmarks.md#honest-checkpoints)"),
    ("honest", _honest, "[benchmarks](docs/benchmarks.md#inspections-of-honest-provers)"),
    ("redteam", _attacks, "[attacks](docs/redteam.md)"),
    ("logs", _logs, "[benchmarks](docs/benchmarks.md#size-of-rounding-logs)"),
    ("steps", _steps, "[benchmarks](docs/benchmarks.md)"),
    ("compiled", _compiled, "[performance](docs/performance.md#compiled-steps)"),
)
"""Result file, what it says, and the page that has it whole."""


def _measured_on(result: Result) -> str:
    about = result if "processor" in result else next(iter(result.values()))
    return f"{about['processor']}, {about['date']}"


def render(page: str) -> str:
    """Returns the README with the table as the result files give it."""
    lines = ["| what was measured | on | more |", "|---|---|---|"]
    for name, said, link in ROWS:
        result = machine.load(name)
        if result is not None:
            lines.append(f"| {said(result)} | {_measured_on(result)} | {link} |")
    return _PLACE.sub(lambda place: place[1] + "\n".join(lines) + "\n" + place[2], page)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
    print(f"wrote the table of {PAGE}")
