"""How what a run keeps depends on a model's shape: rounded elements and bytes of GPT-2s, one thing varied.

`python -m benchmarks.bench_shapes` records two updates of each shape from random weights: in float32 under strict and
probabilistic bounds and with products in blocks, and in bfloat16 under calibrated bounds and with the products of a
matrix unit; once with full logs, and once with logs on demand, of which only records stay. `analysis.economics` fits
the counts and extrapolates them to runs too large to record here; `docs/economics.md` shows how well the fit describes
what was measured.

Results go to benchmarks/results/shapes.json (eight minutes).
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks import machine
from prover import Recorder
from weighbridge.transcript.reader import Transcript

SEED = 11
STEPS = 2
POLICIES = {
    "fp32 strict": ("strict", torch.float32),
    "fp32 probabilistic": ("probabilistic", torch.float32),
    "fp32 blocked-256": ("blocked-256", torch.float32),
    "bf16 calibrated": ("calibrated", torch.bfloat16),
    "bf16 unit": ("unit-vdpbf16ps", torch.bfloat16),
}


@dataclass(frozen=True)
class Shape:
    """A GPT-2: layers, width, attention heads, tokens in a row, rows in a batch, tokens in the vocabulary."""

    layers: int = 2
    width: int = 128
    heads: int = 4
    context: int = 64
    rows: int = 4
    vocabulary: int = 256


SHAPES = (
    Shape(),
    Shape(layers=1), Shape(layers=4),
    Shape(width=64), Shape(width=256), Shape(width=512, rows=1), Shape(width=1024, layers=1, rows=1),
    Shape(width=2048, layers=1, rows=1),
    Shape(heads=1), Shape(heads=8),
    Shape(context=128, rows=2), Shape(context=256, rows=1),
    Shape(vocabulary=4096),
)  # fmt: skip


def record(shape: Shape, precision: str, path: Path, logs: Literal["full", "on-demand"]) -> int:
    """Records updates of one shape; returns the number of its parameters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    policy, weights = POLICIES[precision]
    torch.manual_seed(SEED)
    config = GPT2Config(
        vocab_size=shape.vocabulary, n_positions=shape.context, n_embd=shape.width, n_layer=shape.layers,
        n_head=shape.heads, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(weights).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with Recorder(path, seed=SEED, checkpoint_every=STEPS + 1, policy=policy, logs=logs) as recorder:
        recorder.attach(model, optimizer)
        for number in range(STEPS):
            tokens = np.random.RandomState(number).randint(0, shape.vocabulary, (shape.rows, shape.context))
            batch = {"input_ids": torch.from_numpy(tokens)}
            with recorder.step(batch):
                logits = model(input_ids=batch["input_ids"]).logits[:, :-1].float()
                torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["input_ids"][:, 1:].flatten()).backward()
                optimizer.step()
                optimizer.zero_grad()
    return sum(parameter.numel() for parameter in model.parameters())


def measure(shape: Shape, precision: str) -> dict[str, Any]:
    """Returns counts and bytes of all updates of one shape together."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        full, without = Path(directory) / "full", Path(directory) / "on-demand"
        parameters = record(shape, precision, full, "full")
        record(shape, precision, without, "on-demand")
        transcript = Transcript.open(full)
        records = [transcript.step(number) for number in range(transcript.steps)]
        size, kept, tapes = (
            sum(file.stat().st_size for file in folder.iterdir())
            for folder in (full / "rounding", without / "steps", without / "tapes")
        )
    return {
        **asdict(shape),
        "parameters": parameters,
        "steps": STEPS,
        "rounded": sum(record.rounded for record in records),
        "logged": sum(record.logged for record in records),
        "log_bytes": size,
        "record_bytes": kept,
        "tape_bytes": tapes,
    }


def main() -> None:
    """Measures every shape."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    result: dict[str, Any] = {**machine.about(), "seed": SEED, "precisions": {}}
    for precision in POLICIES:
        found = result["precisions"][precision] = []
        for shape in SHAPES:
            found.append(measure(shape, precision))
            print(precision, found[-1], flush=True)
    machine.save("shapes", result)


if __name__ == "__main__":
    main()
