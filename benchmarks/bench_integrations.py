"""What it takes to record the examples of released libraries, and what it costs.

`python -m benchmarks.bench_integrations [--only NAME ...] [--repeats 3]` runs each example of docs/integrations.md as
it is, without the lines that record it, and under `weighbridge record` without them; replays both recordings in a
process with other instructions; and writes benchmarks/results/integrations.json and the page. Times are those of the
example's `main`, the plain and the recorded one in turn; the load of the machine before that stands beside them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import beside_cpu, integrations_page, machine
from weighbridge.transcript.job_record import rank_name
from weighbridge.transcript.reader import Transcript

EXAMPLES = Path(__file__).parents[1] / "examples"
ADDED = ("import prover", "with prover.follow(")
"""How the lines begin that record an example."""
MODULE = "weighbridge.cli"
CACHE = Path(__file__).parents[1] / ".pytest_cache" / "d" / "timm"
"""Where the tests keep it too."""


@dataclass(frozen=True)
class Subject:
    """An example.

    Attributes:
        name: Of its file.
        packages: Whose versions the table gives.
        apart: Whether it needs what `beside_cpu` installs, and its packages are those.
        ranks: On how many ranks it trains, each of which is a process that `torchrun` starts.
    """

    name: str
    packages: tuple[str, ...]
    apart: bool = False
    ranks: int = 1

    def command(self, module: str, *arguments: str) -> list[str]:
        """Returns the command that runs a module of this repository, on every rank if there are several."""
        starts = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks), "-m")
        return machine.command(module, *arguments) if self.ranks == 1 else machine.command(*starts, module, *arguments)

    def environment(self) -> machine.Environment:
        """Returns what is set for the process that trains."""
        return {**machine.HERE, **(beside_cpu.environment(CACHE) if self.apart else {})}

    def versions(self) -> dict[str, str]:
        """Returns the version of each of its packages."""
        pinned = dict(each.split("==") for each in beside_cpu.REQUIREMENTS) if self.apart else {}
        return {name: pinned.get(name) or importlib.metadata.version(name) for name in self.packages}


SUBJECTS = (
    Subject("trainer", ("transformers",)),
    Subject("trl_sft", ("trl", "peft")),
    Subject("accelerated", ("accelerate",)),
    Subject("lightning_fit", ("lightning",)),
    Subject("peft_lora", ("peft", "transformers")),
    Subject("diffusion", ("diffusers",)),
    Subject("timm_mixup", ("timm",), apart=True),
    Subject("workers", ("torch",)),
    Subject("fsdp2", ("torch",), ranks=2),
)


def plain(source: str) -> tuple[str, int]:
    """Returns an example as it would be unrecorded, and how many lines were added to it.

    Its block stays a block, so that nothing else changes; run as a script, it trains into the folder `out` beside it.
    """
    training = source.partition('\nif __name__ == "__main__":')[0]
    lines, added = [], 0
    for line in training.splitlines():
        if line.strip().startswith(ADDED):
            added += 1
            line = line[: len(line) - len(line.lstrip())] + "if True:" if line.startswith(" ") else ""
        lines.append("" if line.startswith("from weighbridge import replay") else line)
    begin = ['if __name__ == "__main__":', '    main(Path(__file__).with_name("out"))', ""]
    return "\n".join([*lines, "", *begin]), added


def replayed(run: Path) -> dict[str, Any]:
    """Replays a recording with other instructions, as the command does."""
    command = machine.command(MODULE, "replay", "--json", str(run))
    ended = subprocess.run(
        command, env={**os.environ, **machine.SSE2}, stdout=subprocess.PIPE, text=True, check=False
    )  # fmt: skip
    told = json.loads(ended.stdout) if ended.returncode in (0, 1) else {"verdict": "refused", "findings": []}
    findings = [each for rank in told.get("ranks", [told]) for each in rank["findings"]]
    above = sorted({finding["id"] for finding in findings if finding["severity"] != "info"})
    return {"exit_code": ended.returncode, "verdict": told["verdict"], "above_info": above}


def seconds(subject: Subject, script: Path, out: Path, environment: machine.Environment) -> float:
    """Runs a script's `main` in fresh processes; returns what the rank needed that ended last."""
    command = subject.command("benchmarks.integrations_job", str(script), str(out))
    ended = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True
    )  # fmt: skip
    times = [json.loads(line)["seconds"] for line in ended.stdout.splitlines() if line.startswith('{"seconds"')]
    return float(max(times))


def examine(subject: Subject, repeats: int) -> dict[str, Any]:
    """Runs one example in all three ways."""
    script = EXAMPLES / f"{subject.name}.py"
    with tempfile.TemporaryDirectory(prefix="weighbridge-integrations-") as directory:
        folder = Path(directory)
        text, added = plain(script.read_text())
        bare = folder / f"{subject.name}.py"
        bare.write_text(text)
        around = subject.environment()
        pairs = [
            (seconds(subject, bare, folder / "bare", around), seconds(subject, script, folder / "run", around))
            for _ in range(repeats)
        ]
        command = subject.command(MODULE, "record", "--out", str(folder / "unchanged"), "--seed", "7", str(bare))
        unchanged = subprocess.run(
            command, env={**os.environ, **around}, stdout=subprocess.DEVNULL, check=False
        )  # fmt: skip
        first = folder / "run" / (rank_name(0) if subject.ranks > 1 else "")
        return {
            "versions": subject.versions(),
            "lines": len(script.read_text().splitlines()),
            "added": added,
            "steps": Transcript.open(first).steps - 1,
            "plain_seconds": [round(a, 3) for a, _ in pairs],
            "recorded_seconds": [round(b, 3) for _, b in pairs],
            "slowdown": round(statistics.median(b for _, b in pairs) / statistics.median(a for a, _ in pairs), 2),
            "elsewhere": replayed(folder / "run"),
            "unchanged": {"exit_code": unchanged.returncode, "elsewhere": replayed(folder / "unchanged")}
            if not unchanged.returncode
            else {"exit_code": unchanged.returncode},
        }


def main(arguments: Sequence[str] | None = None) -> None:
    """Examines the examples and writes result file and page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[each.name for each in SUBJECTS])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    before = machine.load("integrations") or {"rows": {}}
    result = {**machine.about(), "threads": 1, "load": round(os.getloadavg()[0], 1), "rows": before["rows"]}
    for subject in SUBJECTS:
        if subject.name in options.only:
            result["rows"][subject.name] = examine(subject, options.repeats)
            print(subject.name, json.dumps(result["rows"][subject.name]), flush=True)
            machine.save("integrations", result)
    integrations_page.main()


if __name__ == "__main__":
    main()
