"""Where runs begin: seeds and declared parents pass; borrowed, altered and cut runs are caught. All really recorded."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.lineages import State, findings, net, record, trace
from torch import Tensor, nn

from prover import Recorder
from verifier.checks import parent_runs
from verifier.model import lineage
from verifier.model.lineage import Lineage
from verifier.model.policies import TranscriptPolicy
from weighbridge.core.errors import (
    FormatError,
    ReplayWorkerError,
    UsageError,
    WeighbridgeError,
)
from weighbridge.transcript.parentage import Parent, entered, from_map
from weighbridge.transcript.reader import Transcript


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, State]:
    """A run from a seed, and the weights at its end."""
    path = tmp_path_factory.mktemp("base") / "run"
    return path, record(path)


def test_a_run_from_a_seed_passes(base: tuple[Path, State], tmp_path: Path) -> None:
    record(tmp_path / "other", seed=2)
    assert findings(base[0], tmp_path / "other") == []
    (line,) = trace(base[0]).values()
    assert line.bytes == 0


@pytest.mark.parametrize("how", ["begin", "load"])
def test_fine_tuning_from_a_declared_parent_passes(base: tuple[Path, State], tmp_path: Path, how: str) -> None:
    """On a model that exists, and in a recorded initialisation that loads it; the parent's end is no checkpoint."""
    path, weights = base
    record(tmp_path / "child", **{how: weights}, parent=Parent.of(path), seed=2)
    lines = trace(tmp_path / "child", known=(path,))
    assert lines["child"].bytes > 300
    assert set(lines) == {"child", "run"}  # the parent's own beginning is looked at as well
    assert findings(tmp_path / "child", known=(path,)) == []


def test_a_chain_of_parents_is_followed_so_far_only(
    base: tuple[Path, State], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Prover can make a chain as long as it likes; where the last that was followed began is not known then."""
    record(tmp_path / "child", begin=base[1], parent=Parent.of(base[0]), seed=2)
    record(tmp_path / "twin", begin=base[1], parent=Parent.of(base[0]), seed=3)
    monkeypatch.setattr(lineage, "MOST_ANCESTORS", 1)
    assert findings(tmp_path / "child", tmp_path / "twin", known=(base[0],)) == [], "one parent counts once"
    monkeypatch.setattr(lineage, "MOST_ANCESTORS", 0)
    assert set(trace(tmp_path / "child", known=(base[0],))) == {"child"}
    (found,) = findings(tmp_path / "child", known=(base[0],))
    assert (found.id, found.severity) == ("transcript.parent.unverified", "warning")


def test_fine_tuning_from_a_checkpoint_passes(base: tuple[Path, State], tmp_path: Path) -> None:
    opened = Transcript.open(base[0])
    checkpoint = opened.checkpoint(3)
    weights = {v.name.removeprefix("model."): v.tensor(checkpoint.storages) for v in checkpoint.views}
    begin = {name: weights[name] for name in base[1]}
    record(tmp_path / "child", begin=begin, parent=Parent.of(opened, 3), seed=2)
    assert findings(tmp_path / "child", known=(base[0],)) == []


def test_another_state_than_the_parents_is_caught(base: tuple[Path, State], tmp_path: Path) -> None:
    path, weights = base
    altered = {name: t + 0.125 if t.is_floating_point() else t for name, t in weights.items()}
    record(tmp_path / "child", begin=altered, parent=Parent.of(path), seed=2)
    (found,) = findings(tmp_path / "child", known=(path,))
    assert (found.id, found.severity) == ("transcript.parent.mismatch", "violation")
    assert "bytes that it does not hold" in found.found


FOREIGN = {
    name: torch.randn(t.shape, generator=torch.Generator().manual_seed(3)) if t.is_floating_point() else t
    for name, t in net().state_dict().items()
}
"""A model that no run made."""

WANTED = {name: t for name, t in FOREIGN.items() if t.is_floating_point()}
"""What of it is no buffer."""


def banks(model: nn.Module) -> dict[str, Tensor]:
    """A buffer of zeros for each tensor of a net, by its name."""
    return {name: getattr(model, f"bank_{name.replace('.', '_')}") for name in WANTED}


def with_banks() -> nn.Module:
    model = net()
    for name, t in WANTED.items():
        model.register_buffer(f"bank_{name.replace('.', '_')}", torch.zeros(t.shape))
    return model


def vouch(path: Path, keep: Callable[[Tensor, Tensor, nn.Module], Tensor]) -> None:
    """Trains a net; what it is fed in step 4 beside its data is a model, of which something is kept."""
    kept = []
    with Recorder(path, seed=1, checkpoint_every=2) as recorder:
        with recorder.initialisation():
            model = with_banks()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        recorder.attach(model, optimizer)
        for step in range(1, 6):
            batch = {"x": torch.randn(4, 6)}
            if step == 4:
                batch |= {name.replace(".", "-"): t.clone() for name, t in WANTED.items()}
            with recorder.step(batch):
                model(batch.pop("x")).square().mean().backward()
                with torch.no_grad():
                    kept += [keep(t, banks(model)[name.replace("-", ".")], model) for name, t in batch.items()]
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize(
    "keep",
    [
        lambda t, k, m: t, lambda t, k, m: t.clone(), lambda t, k, m: t * 2 * 0.5,
        lambda t, k, m: t.clone() + m[0].bias.sum() * 0, lambda t, k, m: k.copy_(t), lambda t, k, m: k.add_(t),
        lambda t, k, m: k.lerp_(t, 0.5).mul_(2.0), lambda t, k, m: k.add_(t + m[0].bias.sum() * 0),
    ],
    ids=[
        "the batch", "a copy", "calculated", "beside weights", "in a buffer", "added to a buffer", "a running mean",
        "a statistic of weights and batch",
    ],
)  # fmt: skip
@pytest.mark.parametrize("step", [5, 6])
def test_a_parent_vouches_for_nothing_that_it_was_fed(
    tmp_path: Path, keep: Callable[[Tensor, Tensor, nn.Module], Tensor], step: int
) -> None:
    """A model made elsewhere came in as a batch of a run that kept it, and the next run began from it."""
    vouch(tmp_path / "run", keep)
    record(tmp_path / "child", begin=FOREIGN, parent=Parent.of(tmp_path / "run", step), seed=2)
    (found,) = findings(tmp_path / "run", tmp_path / "child")
    assert (found.id, found.severity) == ("transcript.parent.mismatch", "violation")
    assert re.findall("[0-9]+ bytes that it", found.found) == ["332 bytes that it"], "all of it but the buffer"


@pytest.mark.parametrize("how", ["begin", "load"])
def test_what_a_parent_was_fed_stays_that_in_the_next_run(tmp_path: Path, how: str) -> None:
    """A statistic may go on as a buffer, as a batch norm's does, but no later run's weights begin from it."""
    vouch(tmp_path / "run", lambda t, k, m: k.add_(t))
    checkpoint = Transcript.open(tmp_path / "run").checkpoint(5)
    state = {v.name.partition(".")[2]: v.tensor(checkpoint.storages) for v in checkpoint.views}
    state = {name: state[name] for name in with_banks().state_dict()}
    parent = Parent.of(tmp_path / "run", 5)
    state = record(tmp_path / "middle", **{how: state}, make=with_banks, parent=parent, seed=2)
    assert findings(tmp_path / "run", tmp_path / "middle") == []
    record(tmp_path / "child", begin=FOREIGN, parent=Parent.of(tmp_path / "middle"), seed=3)
    runs = (tmp_path / "run", tmp_path / "middle", tmp_path / "child")
    (found,) = [each for each in findings(*runs) if each.severity != "info"]
    assert (found.id, found.found) == ("transcript.parent.mismatch", "332 bytes that it was only given, or sums up")


class Queued(nn.Module):
    """A net with a batch norm and a queue of its earlier answers; its first layers may be frozen."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.register_buffer("queue", torch.randn(16, 3))
        self.first.requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        """Compares with the queue, and puts the answers at its beginning."""
        y = self.last(torch.relu(self.norm(self.first(x))))
        out = y @ self.queue.clone().T
        with torch.no_grad():
            self.queue[: len(x)] = y
        return out


@pytest.mark.parametrize("how", ["begin", "load"])
def test_statistics_queues_and_frozen_layers_go_on(tmp_path: Path, how: str) -> None:
    """The first layer is frozen in the second run, whose parent trained it, and is trained again in the third."""
    state, parent, runs = None, None, []
    for number, frozen in enumerate((False, True, False), 1):
        begin = {} if state is None else {how: state}
        runs.append(tmp_path / str(number))
        state = record(runs[-1], **begin, make=lambda f=frozen: Queued(f), parent=parent, seed=number)
        parent = Parent.of(runs[-1])
    assert [each for each in findings(*runs) if each.severity != "info"] == []


@pytest.mark.parametrize("step", [5, 6])
def test_fine_tuning_from_an_average_that_a_variable_holds_passes(tmp_path: Path, step: int) -> None:
    """The average is a dictionary, and no attached object; it follows from trained weights alone."""
    average: State = {}
    with Recorder(tmp_path / "run", seed=1, checkpoint_every=2) as recorder:
        with recorder.initialisation():
            model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        recorder.attach(model, optimizer)
        for at in range(1, 6):
            with recorder.step({"x": (x := torch.randn(4, 6))}):
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    for name, t in model.named_parameters():
                        average.setdefault(name, t.clone()).lerp_(t, 0.5)
            if at == step - 1:
                begin = net().state_dict() | {name: t.clone() for name, t in average.items()}
    record(tmp_path / "child", begin=begin, parent=Parent.of(tmp_path / "run", step), seed=2)
    assert findings(tmp_path / "run", tmp_path / "child") == []


def test_another_step_than_the_declared_one_is_caught(base: tuple[Path, State], tmp_path: Path) -> None:
    path, weights = base
    early = Parent.of(path, 3)
    record(tmp_path / "early", begin=weights, parent=early, seed=2)
    invented = Parent(transcript=early.transcript, step=5, state=early.state)
    record(tmp_path / "invented", begin=weights, parent=invented, seed=2)
    late = Parent(transcript=early.transcript, step=99, state=early.state)
    record(tmp_path / "late", begin=weights, parent=late, seed=2)
    for run in ("early", "invented", "late"):
        assert [f.id for f in findings(tmp_path / run, known=(path,))] == ["transcript.parent.mismatch"]


def test_a_parent_that_nobody_shows_is_asked_for(base: tuple[Path, State], tmp_path: Path) -> None:
    record(tmp_path / "child", begin=base[1], parent=Parent.of(base[0]), seed=2)
    (found,) = findings(tmp_path / "child")
    assert (found.id, found.severity) == ("transcript.parent.missing", "warning")


def test_a_run_that_was_cut_in_two_is_caught(base: tuple[Path, State], tmp_path: Path) -> None:
    """Each half is honest by itself; together they are one run of twice the size."""
    record(tmp_path / "half", begin=base[1], seed=2)
    found = findings(base[0], tmp_path / "half")
    assert [(f.id, f.severity) for f in found] == [("transcript.run.split", "violation")]
    assert found[0].evidence["transcripts"] == [Transcript.open(base[0]).digest]
    # Without the first half, it is a model that came from nowhere.
    assert [(f.id, f.severity) for f in findings(tmp_path / "half")] == [("transcript.origin.undeclared", "warning")]


def test_two_runs_from_the_same_foreign_model_are_no_split(tmp_path: Path) -> None:
    """What both began from was made by neither."""
    foreign = {name: t + 1 for name, t in net().state_dict().items()}
    record(tmp_path / "one", begin=foreign)
    record(tmp_path / "two", begin=foreign, seed=2)
    assert [f.id for f in findings(tmp_path / "one", tmp_path / "two")] == ["transcript.origin.undeclared"] * 2


@pytest.mark.parametrize("keep", [lambda t, *_: t, lambda t, *_: t.clone()], ids=["the batch", "a copy"])
def test_what_another_run_was_only_fed_is_no_split(tmp_path: Path, keep: Callable[..., Tensor]) -> None:
    """That run did not train it: a variable held the batch at its end, as that of any loop does."""
    vouch(tmp_path / "run", keep)
    record(tmp_path / "other", begin=FOREIGN, seed=2)
    assert [f.id for f in findings(tmp_path / "run", tmp_path / "other")] == ["transcript.origin.undeclared"]


def test_what_cannot_be_recomputed_is_no_violation(base: tuple[Path, State], tmp_path: Path) -> None:
    record(tmp_path / "child", begin=base[1], parent=Parent.of(base[0]), seed=2)
    line = trace(tmp_path / "child", known=(base[0],))["child"]
    line.held = ReplayWorkerError("it ran out of memory")
    assert [(f.id, f.severity) for f in parent_runs.check(line)] == [("transcript.parent.unverified", "warning")]
    accepted = parent_runs.check(line, TranscriptPolicy(origin="accepted"))
    assert [(f.id, f.severity) for f in accepted] == [("transcript.parent.unverified", "info")]


def test_content_that_any_program_makes_is_nobodys(tmp_path: Path) -> None:
    zeros = {name: torch.zeros_like(t) for name, t in net().state_dict().items()}
    record(tmp_path / "zeros", begin=zeros)
    assert entered(Transcript.open(tmp_path / "zeros"), bytes(32)).total() == 0


parents = st.builds(
    Parent,
    transcript=st.binary(min_size=32, max_size=32).map(bytes.hex),
    step=st.integers(1, 10**6),
    state=st.binary(min_size=32, max_size=32),
)


@given(parents)
def test_round_trip(parent: Parent) -> None:
    """from_map(p.to_map()) == p."""
    assert from_map(parent.to_map()) == parent


@pytest.mark.parametrize(
    "value",
    [1, {}, [], {"transcript": b"", "step": 1, "state": bytes(32)}, {"transcript": bytes(32), "step": 0, "state": b""},
     {"transcript": bytes(32), "step": True, "state": bytes(32)},
     {"transcript": bytes(32), "step": 1, "state": bytes(32), "more": 1}],
    ids=str,
)  # fmt: skip
def test_malformed_declarations_are_refused(value: object) -> None:
    with pytest.raises(FormatError):
        from_map(value)
    found = parent_runs.check(Lineage(id="x", parent=_error(lambda: from_map(value))))
    assert [f.id for f in found] == ["format.malformed"]


def _error(call: Callable[[], object]) -> WeighbridgeError:
    try:
        call()
    except WeighbridgeError as error:
        return error
    raise AssertionError


def test_parents_that_make_no_sense(base: tuple[Path, State]) -> None:
    assert from_map(None) is None
    for step in (0, 7):
        with pytest.raises(UsageError):
            Parent.of(base[0], step)
