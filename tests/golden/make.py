"""Records the transcripts and documents that every later version must still read: `python tests/golden/make.py OUT`.

Run it with the code whose files are wanted (its root as PYTHONPATH), and never over what is committed already: a file
made today shows nothing about yesterday's format. It therefore uses few names, and such as outlive a rearrangement.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from firmware_sim import Shim
from prover import Job, Recorder, formulas
from prover.recipes.digits import Digits
from prover.recipes.recipe import commit, train
from weighbridge.cli.demo.station import station
from weighbridge.transcript.data import DataCommitment
from weighbridge.transcript.parentage import Parent

STEPS = 3
ROWS = 4
RULES = """
format = 1
id = "golden"
version = 1
title = "An old rule set"

[[rules]]
id = "small"
title = "No run above 1e20 FLOPs"
holds = "runs.all(r, r.flops < threshold)"
threshold = 1e20
"""
DIGITS = Digits(width=2, batch_size=4)


class CrashError(Exception):
    """Cuts off a recording."""


def vectors(number: int, width: int = 8, classes: int = 4) -> dict[str, Tensor]:
    """A batch of noise."""
    generator = torch.Generator().manual_seed(number)
    return {
        "x": torch.randn(ROWS, width, generator=generator),
        "y": torch.randint(0, classes, (ROWS,), generator=generator),
    }


def committed(first: int, steps: int = STEPS) -> DataCommitment:
    """Commits to the records of so many batches."""
    batches = map(vectors, range(first, first + steps))
    records = [{name: rows[i] for name, rows in batch.items()} for batch in batches for i in range(ROWS)]
    return DataCommitment.over(records, range(len(records)))


def classifier() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))


def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]) -> None:
    F.cross_entropy(model(batch["x"]), batch["y"]).backward()
    optimizer.step()
    optimizer.zero_grad()


def digits(out: Path) -> nn.Module:
    """Strict policy, convolutions and batch norm, a data commitment with an order seed; returns the model."""
    data = commit(DIGITS, seed=3, steps=STEPS)
    with Recorder(out, seed=3, data=data, checkpoint_every=2, metadata={"purpose": "golden"}) as recorder:
        return train(DIGITS, recorder, steps=STEPS, seed=3)


def fine_tuned(out: Path, parent: Path, model: nn.Module) -> None:
    """The net of `digits` with its weights, its run declared as the parent."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder(out, seed=4, checkpoint_every=2, parent=Parent.of(parent)) as recorder:
        recorder.attach(model, optimizer)
        for step in range(2):
            batch = DIGITS.batch(range(4 * step, 4 * step + 4))
            with recorder.step(batch):
                F.cross_entropy(model(batch["image"]), batch["label"]).backward()
                optimizer.step()
                optimizer.zero_grad()


class Language(nn.Module):
    """A transformer of one block over twelve symbols."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(12, 16), nn.Embedding(8, 16)
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.mix, self.out = nn.Linear(16, 48), nn.Linear(16, 12)
        self.between = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.symbols(ids) + self.places(torch.arange(ids.shape[1]))
        q, k, v = self.mix(self.first(x)).view(*ids.shape, 3, 2, 8).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        logits: Tensor = self.out(x + self.between(self.second(x)))
        return logits


def bfloat16(out: Path) -> None:
    """Calibrated policy, autocast to bfloat16, AdamW and a schedule by declared formulas."""
    generator = torch.Generator().manual_seed(5)
    declared = formulas.constant(1e-2) | formulas.adamw()
    with Recorder(out, seed=5, policy="calibrated", checkpoint_every=2, formulas=declared) as recorder:
        with recorder.initialisation():
            model = Language()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        recorder.attach(model, optimizer)
        for _ in range(STEPS):
            ids = torch.randint(0, 12, (ROWS, 9), generator=generator)
            with recorder.step(ids):
                with torch.autocast("cpu", torch.bfloat16):
                    logits = model(ids[:, :-1])
                    loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()


def _without_logs(out: Path, seed: int, **options: Any) -> None:
    """The transformer by autocast to bfloat16, without formulas or clipping."""
    generator = torch.Generator().manual_seed(seed)
    with Recorder(out, seed=seed, policy="calibrated", checkpoint_every=2, device="cpu", **options) as recorder:
        with recorder.initialisation():
            model = Language()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        recorder.attach(model, optimizer)
        for _ in range(STEPS):
            ids = torch.randint(0, 12, (ROWS, 9), generator=generator)
            with recorder.step(ids):
                with torch.autocast("cpu", torch.bfloat16):
                    logits = model(ids[:, :-1])
                    loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()


def on_demand(out: Path) -> None:
    """Logs on demand, by autocast to bfloat16, with the supplements of all steps."""
    _without_logs(out, 10, logs="on-demand")
    weighbridge("regenerate", out)
    out.with_name(f"{out.name}.key").unlink()


def sketch(out: Path) -> None:
    """Sketches of the outputs in 16 bits, and no logs of these."""
    _without_logs(out, 12, logs="sketch")
    out.with_name(f"{out.name}.key").unlink()


def chance(out: Path) -> None:
    """Dropout and other random operations, a generator of the program's own, and an edit between two steps."""
    noise = torch.Generator().manual_seed(3)
    with Recorder(out, seed=6, checkpoint_every=2) as recorder:
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.25), nn.GELU(), nn.Linear(16, 4))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        recorder.attach(model, optimizer)
        for step in range(STEPS):
            batch = vectors(step)
            with recorder.step(batch):
                order = torch.randperm(ROWS)
                x = batch["x"][order] + 0.1 * torch.randn(ROWS, 8, generator=noise)
                kept = torch.bernoulli(torch.full((ROWS, 1), 0.75)) + torch.rand(ROWS, 1)
                drawn = torch.multinomial(torch.softmax(model(x).detach(), 1), 1).flatten()
                loss = F.cross_entropy(model(x * kept), batch["y"][order]) + 0.1 * F.cross_entropy(model(x), drawn)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if step == 1:
                with recorder.edit(), torch.no_grad():
                    model[3].weight.mul_(0.5).add_(0.01 * torch.randn(4, 16))


def _resumable(out: Path, stop: int | None) -> None:
    """Trains, and crashes inside step `stop` if there is one."""
    with Recorder(out, seed=7, data=committed(100, 5), checkpoint_every=2, resume=True) as recorder:
        with recorder.initialisation():
            model = classifier()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        recorder.attach(model, optimizer)
        for step in range(recorder.updates, 5):
            batch = vectors(100 + step)
            with recorder.step(batch):
                if step == stop:
                    raise CrashError
                update(model, optimizer, batch)


def resumed(out: Path) -> None:
    """A recording that a crash cut off in its fourth step."""
    try:
        _resumable(out, 3)
    except CrashError:
        _resumable(out, None)


def rank(out: Path, number: int, ranks: int) -> None:
    """One rank of a data-parallel training."""
    store = out.parent / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=ranks)
    job = Job.from_environment()
    declared = formulas.constant(1e-2) | formulas.adamw()
    data = committed(200 + 10 * number)
    with Recorder(out, seed=8, job=job, data=data, formulas=declared, checkpoint_every=2) as recorder:
        with recorder.initialisation():
            model = nn.parallel.DistributedDataParallel(classifier())
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        recorder.attach(model, optimizer)
        for step in range(STEPS):
            batch = vectors(200 + 10 * number + step)
            with recorder.step(batch):
                update(model, optimizer, batch)
    dist.destroy_process_group()


def job(out: Path) -> None:
    """A data-parallel job on two ranks."""
    command = [sys.executable, __file__, str(out)]
    processes = [subprocess.Popen([*command, str(number), "2"]) for number in range(2)]
    if any([process.wait() for process in processes]):
        raise RuntimeError("a rank failed")
    (out.parent / "store").unlink(missing_ok=True)


def on_chip(out: Path, socket: Path) -> None:
    """A training on a chip, with a snapshot in its second step and one in its third."""
    declared = formulas.constant(1e-2) | formulas.adamw()
    with (
        Shim.connect(str(socket)) as chip,
        Recorder(out, seed=9, chip=chip, data=committed(300), checkpoint_every=2, formulas=declared) as recorder,
    ):
        with recorder.initialisation():
            model = classifier()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        chip.declare_weights(model.parameters())
        recorder.attach(model, optimizer)
        model.register_forward_hook(lambda *_: chip.request_snapshot() if recorder.step_number > 1 else None)
        for step in range(STEPS):
            batch = vectors(300 + step)
            with recorder.step(batch):
                update(model, optimizer, batch)


def inspection(out: Path, work: Path) -> None:
    """An inspection of two chips, one of which trains: `on-chip`, the signed report, the draw, the chip's log."""
    runs = work / "runs"
    runs.mkdir()
    with station(
        work / "station", runs=runs, chips=["trains", "idle"], rate_per_day=0.1, clock_speed=3600.0
    ) as running:
        on_chip(runs / "on-chip", running.chips[0].socket)
        identifier = running.operator.start(
            samples=2, seed=b"", flops_threshold=2.6e21, chip_flops_per_day=8.64e19, period_days=30,
            snapshot_rate_per_day=0.1, replay_env={"OMP_NUM_THREADS": "1"}, cutoff_s=3.0,
        )  # fmt: skip
        for stage in running.operator.watch(identifier):
            print(stage.stage, stage.message, flush=True)
        (out / "report.dsse").write_bytes(running.operator.signed_report(identifier))
        for name, content in running.operator.draw(identifier):
            path = out / "draw" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        home = work / "station"
        address = (home / "chips" / "trains" / "address").read_text()
        credentials, manufacturer = home / "operator" / "credentials", home / "manufacturer" / "authority.pem"
        weighbridge(
            "chip", "log", "export", address, out / "chip-log", "--credentials", credentials,
            "--manufacturer", manufacturer,
        )  # fmt: skip
        database = home / "verifier" / "registry.sqlite"
        weighbridge("registry", "log", "export", out / "registry-log", "--db", database)
        (out / "keys").mkdir()
        (out / "keys" / "manufacturer.pem").write_bytes(manufacturer.read_bytes())
        for path in database.parent.glob(f"{database.name}.*.pub"):
            (out / "keys" / path.name.removeprefix(f"{database.name}.")).write_bytes(path.read_bytes())
    os.rename(runs / "on-chip", out / "on-chip")


def rule_set(out: Path, work: Path) -> None:
    """A rule set that two parties signed."""
    out.mkdir()
    (work / "rules.toml").write_text(RULES)
    keys = [work / f"{name}.key" for name in "ab"]
    public = [weighbridge("rules", "key", key).split()[-1] for key in keys]
    parties = [f'{name} = "{key}"' for name, key in zip("ab", public, strict=True)]
    (out / "parties.toml").write_text("\n".join(["quorum = 2", "[parties]", *parties, ""]))
    signers = [each for key in keys for each in ("--key", key)]
    weighbridge("rules", "sign", work / "rules.toml", *signers, "--out", out / "rules.dsse")


def weighbridge(*arguments: str | Path) -> str:
    """Runs the command line; returns what it wrote."""
    command = [sys.executable, "-m", "weighbridge.cli", *map(str, arguments)]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def made(out: Path) -> Iterator[str]:
    """Makes everything in a new directory; yields the names."""
    model = digits(out / "digits")
    yield "digits"
    fine_tuned(out / "fine-tuned", out / "digits", model)
    yield "fine-tuned"
    for make in (bfloat16, chance, resumed, job, on_demand, sketch):
        make(out / make.__name__.replace("_", "-"))
        yield make.__name__


def main(out: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    out.mkdir()
    begin = time.monotonic()
    for name in made(out):
        print(f"{time.monotonic() - begin:6.1f} s  {name}", flush=True)
    weighbridge("transcript", "export", out / "digits", out / "digits-minimal", "--minimal")
    (work := out.with_name(f"{out.name}.work")).mkdir()
    rule_set(out / "rules", work)
    inspection(out, work)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(Path(sys.argv[1]).resolve())
    else:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        rank(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
