"""What programs say about themselves: honest trainings have no findings, each way of cheating has its own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.recordings import replay_here, train
from torch import Tensor, nn
from torch.nn import functional as F

from prover import Recorder, formulas
from verifier.checks import replay_outcome as replay_check
from verifier.checks import tapes as tapes_check
from verifier.model.facts import SnapshotFacts
from weighbridge.core.errors import Finding
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.program.tape_checks import check
from weighbridge.program.tape_policy import BUDGETS, IDS, TapePolicy
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

STOLEN = [torch.full((16, 8), 0.25), torch.ones(16), torch.full((4, 16), -0.5), torch.zeros(4)]
Update = Callable[..., None]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = net()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def update(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    F.cross_entropy(model(batch["x"]), batch["y"]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def batches(count: int = 4) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        {"x": torch.randn(4, 8, generator=generator), "y": torch.randint(0, 4, (4,), generator=generator)}
        for _ in range(count)
    ]


NO_BITS = TapePolicy(budgets={**BUDGETS, "values": 0.0})
DECLARED = formulas.constant(1e-2) | formulas.adamw()


def findings(path: Path, policy: TapePolicy | None = None) -> list[Finding]:
    """What the checks say about a transcript; `info` is not evidence against the Prover."""
    transcript = Transcript.open(path)
    _, found = check(transcript, lambda digest: Tape.decode(transcript.tape(digest)), policy or TapePolicy())
    return [finding for finding in found if finding.severity != "info"]


def ids(path: Path) -> set[str]:
    return {finding.id for finding in findings(path)}


def run(path: Path, step: Update, *, count: int = 4, **options: Any) -> Path:
    train(path, build, step, batches(count), **({"formulas": DECLARED} | options))
    return path


# -- honest ------------------------------------------------------------------------------------------------------------


def test_plain_training_has_no_findings(tmp_path: Path) -> None:
    assert findings(run(tmp_path / "run", update)) == []


def test_gpt2_with_schedule_average_accumulation_and_clipping_has_no_findings(tmp_path: Path) -> None:
    """A cosine with warm-up, gradients over two recorded steps, clipped, and an average of the weights beside."""
    transformers = pytest.importorskip("transformers")
    steps, every = 8, 2

    def make() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=16, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=None, eos_token_id=None
            )
        )
        model.loss_type = "ForCausalLM"
        decay = [p for p in model.parameters() if p.dim() > 1]
        rest = [p for p in model.parameters() if p.dim() <= 1]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95))
        return model, optimizer, copy.deepcopy(model)

    declared = formulas.cosine(3e-4, 10, warmup=2, minimum=3e-5, t=f"floor(t / {every})")
    declared |= formulas.adamw(betas=(0.9, 0.95), weight_decay=[0.1, 0.0], t=f"floor(t / {every})")
    generator = torch.Generator().manual_seed(1)
    with Recorder(tmp_path / "run", seed=2, formulas=declared) as recorder:
        with recorder.initialisation():
            model, optimizer, average = make()
        recorder.attach(model, optimizer, average=average)

        for t in range(1, steps + 1):
            ids = torch.randint(0, 16, (2, 8), generator=generator)
            with recorder.step({"ids": ids}):
                (model(input_ids=ids, labels=ids).loss / every).backward()
                if t % every == 0:
                    for group in optimizer.param_groups:
                        group["lr"] = 3e-4 * _cosine(t // every)
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    with torch.no_grad():
                        for a, p in zip(average.parameters(), model.parameters(), strict=True):
                            a.lerp_(p, 0.1)
    assert findings(tmp_path / "run") == []
    assert replay_here(tmp_path / "run")["verdict"] == "match"


def _cosine(t: int) -> float:
    """What `formulas.cosine(3e-4, 10, warmup=2, minimum=3e-5)` says of update t, as a program would compute it."""
    return t / 2 if t < 2 else 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1, (t - 2) / 8)))


def test_gradients_kept_in_place_targets_and_averages_are_no_overwrites(tmp_path: Path) -> None:
    def make() -> tuple[Any, ...]:
        model, target, average = net(), net(), net()
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), target, average

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: Any, target: nn.Module, average: nn.Module) -> None:
        optimizer.zero_grad(set_to_none=False)
        loss = F.mse_loss(model(batch["x"]), target(batch["x"]).detach())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.mul_(0.9).add_(p, alpha=0.1)
            target.load_state_dict(model.state_dict())

    train(tmp_path / "run", make, step, batches())
    assert findings(tmp_path / "run") == []


def test_an_average_of_a_model_with_batch_norm_copies_its_counter(tmp_path: Path) -> None:
    def make() -> tuple[Any, ...]:
        model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
        return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.swa_utils.AveragedModel(model)

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, average: Any) -> None:
        update(batch, model, optimizer)
        average.update_parameters(model)

    train(tmp_path / "run", make, step, batches())
    assert "tape.overwrite" not in ids(tmp_path / "run")


def test_declared_programs_that_ran_are_no_finding(tmp_path: Path) -> None:
    programs = Transcript.open(run(tmp_path / "rehearsal", update)).programs()
    assert findings(run(tmp_path / "run", update, programs=programs, seed=8)) == []


# -- cheating ----------------------------------------------------------------------------------------------------------


def stolen_after(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    update(batch, model, optimizer)
    with torch.no_grad():
        for p, s in zip(model.parameters(), STOLEN, strict=True):
            p.copy_(s)


def stolen_before_the_update(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What the optimizer adds afterwards depends on the old weights; the content does not."""
    F.cross_entropy(model(batch["x"]), batch["y"]).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for p, s in zip(model.parameters(), STOLEN, strict=True):
            p.copy_(s)
    optimizer.step()
    optimizer.zero_grad()


def stolen_in_pieces(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    update(batch, model, optimizer)
    with torch.no_grad():
        weight = next(model.parameters())
        weight[:, ::2].copy_(STOLEN[0][:, ::2])
        weight[:7, 1::2].copy_(STOLEN[0][:7, 1::2])
        weight[7:, 1::2].copy_(STOLEN[0][7:, 1::2])


@pytest.mark.parametrize("step", [stolen_after, stolen_before_the_update, stolen_in_pieces])
def test_other_weights_copied_over_the_trained_ones(tmp_path: Path, step: Update) -> None:
    found = findings(run(tmp_path / "run", step))
    assert {f.id for f in found} == {"tape.overwrite", "tape.free_input"}
    overwrites = [f for f in found if f.id == "tape.overwrite"]
    assert all(f.severity == "violation" and "model.0.weight" in f.found for f in overwrites)
    assert "an undeclared tensor" in overwrites[0].message
    assert replay_here(tmp_path / "run")["verdict"] == "match"  # the replay alone would have said nothing


def test_part_of_a_state_written_is_no_overwrite_yet(tmp_path: Path) -> None:
    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        update(batch, model, optimizer)
        with torch.no_grad():
            next(model.parameters())[0].zero_()

    assert findings(run(tmp_path / "run", step)) == []


def test_weights_that_come_in_the_batch(tmp_path: Path) -> None:
    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        update(batch, model, optimizer)
        with torch.no_grad():
            next(model.parameters()).copy_(batch["w"])

    several = [batch | {"w": STOLEN[0]} for batch in batches()]
    train(tmp_path / "run", build, step, several, formulas=DECLARED)
    (found,) = (f for f in findings(tmp_path / "run") if f.evidence["steps"] == 3)
    assert found.id == "tape.overwrite"
    assert found.found == "model.0.weight"
    assert "the batch" in found.message


def test_weights_that_lie_in_wait_as_state(tmp_path: Path) -> None:
    def make() -> tuple[Any, ...]:
        return *build(), net()

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, hidden: nn.Module) -> None:
        update(batch, model, optimizer)
        model.load_state_dict(hidden.state_dict())

    train(tmp_path / "run", make, step, batches(), formulas=DECLARED)
    found = findings(tmp_path / "run")
    assert {f.id for f in found} == {"tape.overwrite"}
    assert "state that no step trains" in found[0].message


def test_another_storage_under_the_name_of_the_weights(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", seed=1) as recorder:
        with recorder.initialisation():
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder.attach(model, optimizer)
        for t, batch in enumerate(batches()):
            with recorder.step(batch):
                update(batch, model, optimizer)
                if t == 2:
                    model[0].weight = nn.Parameter(batch["x"].sum() * 0 + STOLEN[0])
                    optimizer.param_groups[0]["params"][0] = model[0].weight
    assert "tape.overwrite" in ids(tmp_path / "run")


def test_an_edit_that_loads_weights(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", seed=1, formulas=DECLARED) as recorder:
        with recorder.initialisation():
            model, optimizer = build()
        recorder.attach(model, optimizer)
        for batch in batches():
            with recorder.step(batch):
                update(batch, model, optimizer)
        with recorder.edit(), torch.no_grad():
            for p, s in zip(model.parameters(), STOLEN, strict=True):
                p.copy_(s)
    found = findings(tmp_path / "run")
    assert {f.id for f in found} == {"tape.overwrite", "tape.free_input"}
    assert all(f.evidence["kind"] == "edit" for f in found)


def test_constants_written_one_by_one(tmp_path: Path) -> None:
    """No tensor enters, but the program holds the weights."""
    numbers = [i / 128 for i in range(128)]

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        update(batch, model, optimizer)
        with torch.no_grad():
            flat = next(model.parameters()).view(-1)
            for i, number in enumerate(numbers):
                flat[i].fill_(number)

    found = [f for f in findings(run(tmp_path / "run", step, count=2)) if f.id == "tape.overwrite"]
    assert found
    assert "constants of the program" in found[0].message


@pytest.mark.parametrize("numbers", [32, 33])
def test_a_tensor_that_is_neither_batch_nor_state(tmp_path: Path, numbers: int) -> None:
    """What is too little to be weights accuses nobody; it is told all the same."""
    secret = torch.randn(numbers)

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        update({"x": batch["x"] + secret[:8], "y": batch["y"]}, model, optimizer)

    path = run(tmp_path / "run", step)
    assert {(f.id, f.severity) for f in findings(path)} == (
        {("tape.free_input", "violation")} if numbers > 32 else set()
    )
    assert findings(path, TapePolicy(free_tensors=1000)) == []
    (told,) = [f for f in findings(path, TapePolicy(free_tensors=0)) if "bytes" in f.evidence]
    assert told.evidence["bytes"] == 4 * numbers  # in the first step; from then on it is state


def test_a_tensor_that_is_small_and_another_one_in_each_step(tmp_path: Path) -> None:
    """All of them together are what counts."""

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        update({"x": batch["x"] + torch.from_numpy(rng.standard_normal(8)).float(), "y": batch["y"]}, model, optimizer)

    rng = np.random.default_rng(1)
    assert ids(run(tmp_path / "few", step, count=2)) == set()
    assert ids(run(tmp_path / "many", step, count=6)) == {"tape.free_input"}


def test_a_message_in_the_learning_rate(tmp_path: Path) -> None:
    """Each step's rate carries two digits of the Prover's choice; the declared schedule does not have them."""

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 + int(batch["x"].abs().sum().item() * 100) % 100 / 1000)
        update(batch, model, optimizer)

    assert findings(run(tmp_path / "run", step)) == []  # in three steps it is no longer than a message of 1,024 bits
    found = findings(run(tmp_path / "long", step, count=20))
    assert [(f.id, f.severity) for f in found] == [("tape.free_input", "warning")]
    assert found[0].evidence["steps"] == 19
    assert "in operation" in found[0].found
    assert "aten::" not in found[0].message
    assert findings(tmp_path / "long", TapePolicy(free_values=1000)) == []
    assert [f.severity for f in findings(tmp_path / "run", NO_BITS)] == ["warning"]


def test_a_schedule_that_nobody_declared(tmp_path: Path) -> None:
    assert {f.id for f in findings(run(tmp_path / "run", update, formulas={}), NO_BITS)} == {"tape.free_input"}
    wrong = run(tmp_path / "wrong", update, formulas=formulas.constant(2e-2) | formulas.adamw())
    assert {f.id for f in findings(wrong, NO_BITS)} == {"tape.free_input"}


def test_one_formula_must_explain_a_value_in_every_step(tmp_path: Path) -> None:
    """A table of formulas, one for each step, would be the message itself."""

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        step.done += 1  # type: ignore[attr-defined]
        optimizer.param_groups[0]["lr"] = [0.1, 0.3, 0.2, 0.4][step.done - 1]  # type: ignore[attr-defined]
        update(batch, model, optimizer)

    def sgd() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = net()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    table = {f"step{i}": repr(-rate) for i, rate in enumerate([0.1, 0.3, 0.2, 0.4])}
    step.done = 0  # type: ignore[attr-defined]
    train(tmp_path / "table", sgd, step, batches(), formulas=table)
    assert {f.id for f in findings(tmp_path / "table", NO_BITS)} == {"tape.free_input"}


def test_a_program_that_was_not_declared(tmp_path: Path) -> None:
    programs = Transcript.open(run(tmp_path / "rehearsal", update)).programs()

    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        update(batch, model, optimizer)
        step.done += 1  # type: ignore[attr-defined]
        if step.done == 3:  # type: ignore[attr-defined]
            with torch.no_grad():
                next(model.parameters()).mul_(0.5)

    step.done = 0  # type: ignore[attr-defined]
    (found,) = findings(run(tmp_path / "run", step, programs=programs))
    assert found.id == "tape.undeclared"
    assert found.evidence == {"kind": "step", "steps": 1, "first": 3}


def test_payload_in_a_program_that_ran_once_is_counted(tmp_path: Path) -> None:
    def step(batch: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        update(batch, model, optimizer)
        for number in step.extra:  # type: ignore[attr-defined]
            batch["x"] * number

    step.extra = [i / 7 for i in range(100)]  # type: ignore[attr-defined]
    run(tmp_path / "run", step, count=1)
    result = replay_here(tmp_path / "run")
    (use,) = (use for use in result["tapes"].values() if use["kind"] == "step")
    assert use["once_bytes"] >= 800
    assert ids(tmp_path / "run") == set()
    assert {f.id for f in findings(tmp_path / "run", TapePolicy(once_bytes=500))} == {"tape.free_input"}


# -- in an inspection --------------------------------------------------------------------------------------------------


def test_findings_of_programs_stand_beside_the_replay() -> None:
    """The snapshot stays explained: that its program cheats is another matter."""
    found = [Finding(id=each, message="m", subject="tape 00") for each in (*IDS, "replay.mismatch")]
    result = ReplayResult(verdict="match", steps=(0, 1), state="00", findings=found)
    snapshot = cast(
        SnapshotFacts,
        SimpleNamespace(
            replayed=result,
            transcript=SimpleNamespace(id="ab"),
            verified=SimpleNamespace(token=SimpleNamespace(body={"safepoint": False})),
        ),
    )
    assert [f.id for f in tapes_check.check(snapshot)] == list(IDS)
    assert tapes_check.check(snapshot)[0].subject == "transcript ab: tape 00"
    assert [f.id for f in replay_check.check(snapshot)] == ["replay.mismatch"]
