"""The same training steps recorded here and made repeatable by a peer, Carbon (PyPI's alia-carbon), in one run.

`python -m benchmarks.bench_peer [--rounds N]`. Carbon computes each matrix product in float64 with compensated sums in
a fixed order, so that devices agree; it keeps no record, and covers matrix products and layer norms. So the models are
of these: small transformers by hand. Each way has a process of its own with one thread; rounds go through the ways in
turn. A step's time is the processor time of its process. The first steps are not counted. Ratios are of medians.

Besides, each way trains five steps from the same weights on every instruction set that this processor has, and the
result says whether the weights come out as the same bits: of plain steps, of Carbon's, and of recorded ones that are
replayed by their logs. Carbon is installed into a directory that no other process sees. Results go to
benchmarks/results/peer.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import machine
from benchmarks.models import Batch, Step
from prover import Recorder
from weighbridge.core.host_memory import keep_freed
from weighbridge.execution.replay import replay

SEED = 3
WAYS = ("plain", "carbon", "full", "on-demand", "on-demand, compiled")
SETS = {"SSE2": machine.SSE2, "AVX2": machine.AVX2, "this processor's": machine.HERE}
WIDTHS = {"0.9 M": (128, 4), "11 M": (384, 6)}
VOCABULARY, ROWS, LENGTH, HEADS = 256, 4, 64, 4
WARM, AGREED = 7, 5
REQUIREMENTS = Path(__file__).with_name("requirements-peer.txt")


class Block(nn.Module):
    """A block of a transformer with products and layer norms of its own, as Carbon asks for."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.entering, self.leaving = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Returns what follows from `x`, float32 of (rows, length, width)."""
        rows, length, width = x.shape
        parts = self.entering(self.first(x)).view(rows, length, 3, HEADS, width // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = torch.matmul(query, key.transpose(-2, -1)) * (width // HEADS) ** -0.5
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        seen = torch.matmul(scores.masked_fill(hidden, float("-inf")).softmax(-1), value)
        x = x + self.leaving(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    """A small language model."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.last, self.out = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the logits of int64 `tokens` of (rows, length)."""
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.out(self.last(x))
        return logits


def built(name: str) -> Step:
    """Makes a model with its optimizer and batches; its first weights come from `SEED`."""
    torch.manual_seed(SEED)
    model = Transformer(*WIDTHS[name])

    def batch(index: int) -> Batch:
        generator = torch.Generator().manual_seed(index)
        return {"tokens": torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=generator)}

    def loss(values: Batch) -> Tensor:
        tokens = values["tokens"]
        return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return Step(model, torch.optim.AdamW(model.parameters(), lr=1e-3), batch, loss)


def with_carbon(name: str, packages: Path) -> Step:
    """Makes the same model out of Carbon's layers, with the same first weights."""
    sys.path.insert(0, str(packages))
    import carbon

    made = built(name)
    for module in list(made.model.modules()):
        for key, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                other = carbon.DeterministicLinear(child.in_features, child.out_features)
            elif isinstance(child, nn.LayerNorm):
                other = carbon.CarbonLayerNorm(child.normalized_shape[0], eps=child.eps)
            else:
                continue
            other.load_state_dict(child.state_dict())
            setattr(module, key, other)
    carbon.enable(seed=SEED, warn=False)
    return Step(made.model, torch.optim.AdamW(made.model.parameters(), lr=1e-3), made.batch, made.loss)


def weights_of(model: nn.Module) -> str:
    """Returns the SHA-256 of all weights, in the order of their names."""
    found = hashlib.sha256()
    for _, t in sorted(model.state_dict().items()):
        found.update(t.contiguous().numpy().tobytes())
    return found.hexdigest()


def child(way: str, name: str, path: Path, packages: Path) -> None:
    """Is one of the processes: a step for every line on standard input; `digest` is answered with the weights'."""
    torch.set_num_threads(1)
    keep_freed()
    if way in ("plain", "carbon"):
        made = built(name) if way == "plain" else with_carbon(name, packages)
        _serve(made.model, lambda number: made.update(made.batch(number)))
        return
    logs = "full" if way == "full" else "on-demand"
    with Recorder(path, seed=SEED, checkpoint_every=1 << 20, logs=logs, device="cpu") as recorder:  # type: ignore[arg-type]
        with recorder.initialisation():
            made = built(name)
        recorder.attach(*made.attached)
        call = recorder.compile(made.update)

        def step(number: int) -> None:
            batch = made.batch(number)
            if way.endswith("compiled"):
                call(batch)
                if number >= WARM and call.reason:
                    raise SystemExit(f"step {number} did not run as a program: {call.reason}")
                return
            with recorder.step(batch):
                made.update(batch)

        _serve(made.model, step)


def _serve(model: nn.Module, step: Any) -> None:
    number = 0
    for line in sys.stdin:
        if line.startswith("digest"):
            print(json.dumps(weights_of(model)), flush=True)
            continue
        begin = time.process_time()
        step(number)
        print(json.dumps(time.process_time() - begin), flush=True)
        number += 1


class Trainee:
    """A process that trains one way, step by step."""

    def __init__(self, way: str, name: str, path: Path, packages: Path, environment: machine.Environment) -> None:
        given = ("--way", way, "--child", name, "--path", str(path), "--packages", str(packages))
        self._process = machine.start(
            "benchmarks.bench_peer", *given, environment=environment, stdin=subprocess.PIPE
        )  # fmt: skip

    def ask(self, word: str) -> Any:
        """Has it do a step, or say what its weights are."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a process that is measured died; its message is above")
        return json.loads(line)

    def end(self, *, orderly: bool = False) -> None:
        """Ends it; `orderly`: so that it closes its transcript."""
        if orderly:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(timeout=120)
        self._process.kill()
        self._process.wait()


def measured(name: str, rounds: int, packages: Path) -> dict[str, Any]:
    """Measures one model in all ways."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        trainees = {way: Trainee(way, name, Path(directory) / way, packages, machine.HERE) for way in WAYS}
        try:
            for _ in range(WARM + rounds):
                for way, trainee in trainees.items():
                    times[way].append(1e3 * trainee.ask("step"))
        finally:
            for trainee in trainees.values():
                trainee.end()
    counted = {way: taken[WARM:] for way, taken in times.items()}
    middle = {way: statistics.median(taken) for way, taken in counted.items()}
    return {
        "rounds": rounds,
        "cpu_ms": {
            way: {"median": round(middle[way], 2), "min": round(min(taken), 2)} for way, taken in counted.items()
        },
        "over_plain": {way: round(middle[way] / middle["plain"], 3) for way in WAYS},
    }


def agreeing(name: str, packages: Path) -> dict[str, bool]:
    """Says of each way whether five steps give the same weights on every instruction set."""
    found: dict[str, set[str]] = {"plain": set(), "carbon": set()}
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        run = Path(directory) / "run"
        for way, digests in found.items():
            for environment in SETS.values():
                trainee = Trainee(way, name, run, packages, environment)
                for _ in range(AGREED):
                    trainee.ask("step")
                digests.add(trainee.ask("digest"))
                trainee.end()
        trainee = Trainee("full", name, run, packages, machine.HERE)
        for _ in range(AGREED):
            trainee.ask("step")
        trainee.end(orderly=True)
        matched = {replay(run, env=environment).verdict for environment in SETS.values()}
    return {way: len(digests) == 1 for way, digests in found.items()} | {"recorded": matched == {"match"}}


def main() -> None:
    """Installs the peer beside everything, and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--packages", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if options.child:
        child(options.way, options.child, options.path, options.packages)
        return
    result: dict[str, Any] = {**machine.about(), "seed": SEED, "models": {}}
    with tempfile.TemporaryDirectory(prefix="weighbridge-peer-") as packages:
        install = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
        subprocess.run(
            [sys.executable, "-m", "pip", *install, "--target", packages, "-r", str(REQUIREMENTS)], check=True
        )
        for name in WIDTHS:
            found = measured(name, options.rounds, Path(packages))
            result["models"][name] = {**found, "same_bits": agreeing(name, Path(packages))}
            print(f"{name}: {json.dumps(result['models'][name])}", flush=True)
    machine.save("peer", result)


if __name__ == "__main__":
    main()
