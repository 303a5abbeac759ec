"""Rates that a program sets by hand follow from formulas that are read from its source; what has none is reported."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import prover
from tests.prover.following.test_by_hand import arrays, loss_of, update
from tests.prover.following.test_loops import OTHER_MACHINE, data, net
from weighbridge import replay
from weighbridge.transcript.reader import Transcript

STEPS = 8
warmup_iters, lr_decay_iters, min_lr, learning_rate, decay_lr = 2, 7, 1e-4, 1e-2, True


def get_lr(it: int) -> float:
    """As nanoGPT does."""
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    if it > lr_decay_iters:
        return min_lr
    decay_ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    assert 0 <= decay_ratio <= 1
    coeff = 0.5 * (1.0 + math.cos(math.pi * decay_ratio))
    return min_lr + coeff * (learning_rate - min_lr)


def called_before_the_batch() -> None:
    (x, y), model = arrays(), net()
    optimizer = torch.optim.AdamW(
        [{"params": [p], "weight_decay": 0.1 if p.dim() > 1 else 0.0} for p in model.parameters()], lr=learning_rate
    )
    iter_num = 0
    while True:
        lr = get_lr(iter_num) if decay_lr else learning_rate
        for param_group in optimizer.param_groups:
            param_group["lr"] = lr
        n = iter_num % 4 * 8
        update(optimizer, loss_of(model, x[n : n + 8], y[n : n + 8]))
        iter_num += 1
        if iter_num >= STEPS:
            break


def adjust_learning_rate(optimizer: torch.optim.Optimizer, epoch: float, args: Any) -> float:
    """As masked autoencoders do."""
    if epoch < args.warmup_epochs:
        lr = args.lr * epoch / args.warmup_epochs
    else:
        lr = args.min_lr + (args.lr - args.min_lr) * 0.5 * (
            1.0 + math.cos(math.pi * (epoch - args.warmup_epochs) / (args.epochs - args.warmup_epochs))
        )
    for param_group in optimizer.param_groups:
        if "lr_scale" in param_group:
            param_group["lr"] = lr * param_group["lr_scale"]
        else:
            param_group["lr"] = lr
    return float(lr)


def part_of_an_epoch() -> None:
    args = SimpleNamespace(lr=1e-2, min_lr=1e-4, warmup_epochs=1, epochs=2)
    model, loader = net(), DataLoader(data(), batch_size=8, shuffle=True)
    first, *others = model.parameters()
    optimizer = torch.optim.SGD([{"params": [first], "lr_scale": 0.5}, {"params": others}], lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        model.train()
        for data_iter_step, (x, y) in enumerate(loader):
            adjust_learning_rate(optimizer, data_iter_step / len(loader) + epoch, args)
            update(optimizer, loss_of(model, x, y))
        model.eval()
        with torch.no_grad():
            model(torch.zeros(1, 16))


def of_several_optimizers() -> None:
    """As modded-nanogpt does, momentum included."""
    (x, y), model = arrays(), net()
    weights = [p for p in model.parameters() if p.dim() > 1]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adam([p for p in model.parameters() if p.dim() < 2], lr=0.01, betas=(0.8, 0.95)),
        torch.optim.SGD(weights, lr=0.02, momentum=0.85, nesterov=True),
    ]
    for opt in optimizers:
        for group in opt.param_groups:
            group["initial_lr"] = group["lr"]
    for step in range(STEPS):
        for opt in optimizers:
            for group in opt.param_groups:
                group["lr"] = group["initial_lr"] * (1.0 if step < 4 else max(0.1, (STEPS - step) / 4))
        for group in optimizers[1].param_groups:
            frac = min(step / 5, 1)
            group["momentum"] = (1 - frac) * 0.85 + frac * 0.95
        n = step % 4 * 8
        loss_of(model, x[n : n + 8], y[n : n + 8]).backward()
        for opt in optimizers:
            opt.step()
        model.zero_grad(set_to_none=True)


def of_a_lambda() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    warm, total = 2, STEPS
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: (s + 1) / warm if s < warm else 0.5 * (1 + math.cos(math.pi * (s - warm) / (total - warm))),
    )
    for _ in range(2):
        for x, y in DataLoader(data(), batch_size=8):
            update(optimizer, loss_of(model, x, y))
            schedule.step()


def stepped_after_an_evaluation() -> None:
    """As PyTorch's examples do: the schedule goes on when the next step has begun already."""
    model = net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    training, validation = DataLoader(data(), batch_size=8, shuffle=True), DataLoader(data(16), batch_size=8)
    for _ in range(4):
        model.train()
        for x, y in training:
            update(optimizer, loss_of(model, x, y))
        model.eval()
        with torch.no_grad():
            for x, _ in validation:
                model(x)
        schedule.step()


@pytest.mark.parametrize(
    "program",
    [
        called_before_the_batch, part_of_an_epoch, of_several_optimizers, of_a_lambda, stepped_after_an_evaluation,
    ],
)  # fmt: skip
def test_rates_follow_from_formulas_that_are_read(tmp_path: Path, program: Callable[[], None]) -> None:
    with prover.follow(tmp_path / "run", seed=1) as run:
        program()
    assert not run.undeclared
    assert any(record.counts for record in Transcript.open(tmp_path / "run").records())
    result = replay(tmp_path / "run", env=OTHER_MACHINE)
    assert result.verdict == "match"
    assert [(f.id, f.message) for f in result.findings if f.severity != "info"] == []
    assert result.chosen.get("values", {"bits": 0})["bits"] == 0


@pytest.mark.finding("tape.free_input")
def test_rates_that_follow_from_nothing_are_reported(tmp_path: Path) -> None:
    """An attacker may spell anything with rates drawn at will, and so they are told from those of a schedule."""
    draw = random.Random(3)
    with prover.follow(tmp_path / "run", seed=1):
        (x, y), model = arrays(), net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(40):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * draw.random() / (1 + step)
            n = step % 4 * 8
            update(optimizer, loss_of(model, x[n : n + 8], y[n : n + 8]))
    findings = [f for f in replay(tmp_path / "run").findings if f.severity != "info"]
    assert {f.id for f in findings} == {"tape.free_input"}
