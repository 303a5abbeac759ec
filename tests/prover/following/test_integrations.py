"""The examples of released libraries: one line records them, and what it records replays on another kind of machine.

Each trains with accumulation of gradients, clipping, a schedule, evaluations and a saved checkpoint.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.prover.following.test_loops import OTHER_MACHINE
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

EXAMPLES = Path(__file__).parents[3] / "examples"


@dataclass(frozen=True)
class Example:
    """What an example is expected to record.

    Attributes:
        name: Its module.
        library: What it needs.
        batch: Names of what a step takes in.
        formulas: Names of formulas, read from its objects.
        saved: Where it saves what it has trained.
        steps: How many steps it records, the initialisation included.
    """

    name: str
    library: str
    batch: tuple[str, ...]
    formulas: frozenset[str]
    saved: str
    steps: int = 9


ADAM = frozenset({"lr", "decay", "adam_step", "adam_root"})
LORA = "adapter_model.safetensors"
TEXT = ("0.input_ids", "0.labels", "1.input_ids", "1.labels")
PAIRS = ("0.0", "0.1", "1.0", "1.1")

RECORDED = [
    Example("peft_lora", "peft", ("0.tensor", "1.tensor"), ADAM, f"run-adapter/{LORA}"),
    Example("trl_sft", "trl", TEXT, ADAM - {"decay"}, f"run-checkpoints/checkpoint-*/{LORA}"),
    Example("lightning_fit", "lightning", PAIRS, ADAM | {"momentum"}, "run-checkpoints/last.ckpt"),
    Example(
        "diffusion",
        "diffusers",
        ("0.tensor", "1.tensor"),
        ADAM | {"average"},
        "run-average/diffusion_pytorch_model.safetensors",
        steps=5,
    ),
    Example("workers", "torch", PAIRS, frozenset({"lr", "descent"}), "run-checkpoint.pt"),
]


def elsewhere(run: Path) -> dict[str, Any]:
    """Returns what `weighbridge replay` says in a process whose arithmetic has other instructions."""
    command = [sys.executable, "-W", "ignore", "-m", "weighbridge.cli", "replay", "--json", str(run)]
    ended = subprocess.run(command, env=os.environ | OTHER_MACHINE, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.filterwarnings("error::prover.following.notes.UndeclaredInputWarning")
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.soak] if each.name in ("diffusion", "trl_sft") else [])
        for each in RECORDED
    ],
)
def test_an_example_is_recorded_by_one_line(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(example.library, reason="of the extra `integrations`")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    try:
        importlib.import_module(example.name).main(tmp_path / "run")
    finally:
        sys.modules.pop(example.name, None)
    transcript = Transcript.open(tmp_path / "run")
    assert transcript.steps == example.steps
    taken = Tape.decode(transcript.tape(transcript.step(example.steps // 2).tape)).batch_views
    assert tuple(name for name, _ in taken if not name.endswith("attention_mask")) == example.batch
    assert {name for name, _ in transcript.step(0).formulas} >= example.formulas
    assert list(tmp_path.glob(example.saved))
    result = elsewhere(tmp_path / "run")
    assert result["verdict"] == "match"
    assert {finding["severity"] for finding in result["findings"]} == {"info"}


@pytest.mark.parametrize("name", [*(example.name for example in RECORDED), "timm_mixup", "fsdp2"])
def test_an_example_is_a_page_and_adds_one_line(name: str) -> None:
    lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
    assert len(lines) <= 60
    assert sum("prover" in line for line in lines) == 2  # the import, and the line
