"""Memory roots of a real step: those made little by little are those of the whole memory, and a changed bit shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from support.disputed import record
from support.operator_examples import Example
from support.recording_store import RecordingStore
from support.single_steps import SingleStep
from support.workers_here import workers_here

from weighbridge.core.memory_map import Held, MemoryMap
from weighbridge.execution import memory_roots
from weighbridge.execution.dispute import asking
from weighbridge.execution.dispute.tracing import Tracing
from weighbridge.execution.executor import Executor
from weighbridge.execution.memory_roots import MemoryRoots, held, slots_of
from weighbridge.execution.worker_process import Limits
from weighbridge.numerics.conformance.bound_policy import named
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

aten = torch.ops.aten


@pytest.fixture(scope="module")
def run(recordings: RecordingStore) -> Transcript:
    return Transcript.open(recordings.get("disputed", record))


def _whole(tape: Tape, slots: Mapping[int, torch.Tensor]) -> bytes:
    made = MemoryMap(slots_of(tape))
    for slot, data in slots.items():
        made.put(slot, held(data))
    return made.root()


def _roots(run: Transcript, flip: bool = False) -> tuple[list[bytes], list[bytes]]:
    """Executes a step; returns roots made little by little and of the whole memory. `flip` changes a bit of state."""
    step = run.checkpoint_steps[0]
    entry = run.step(step)
    tape = Tape.decode(run.tape(entry.tape))
    executor = Executor("cpu", run.draft["seed"], 1 << 30)
    executor.load(run.checkpoint(step))
    if flip:
        next(data for name, data in executor.state.items() if "weight" in name)[0] ^= 1
    roots, whole = MemoryRoots(tape), list[bytes]()

    def before(index: int, slots: Mapping[int, torch.Tensor]) -> None:
        roots(index, slots)
        whole.append(_whole(tape, slots))

    executor.before = before
    executor.run(
        tape, entry.tape, entry, run.log(step), run.batch(step), run.undeclared(step), stop=0 if flip else None
    )
    return roots.roots, whole


def test_roots_made_little_by_little_are_those_of_the_whole_memory(run: Transcript) -> None:
    roots, whole = _roots(run)
    assert roots == whole
    assert 10 < len(set(roots)) < len(roots), "operations change memory, and views do not"


def test_one_bit_of_the_state_changes_the_first_root(run: Transcript) -> None:
    assert _roots(run, flip=True)[0][0] != _roots(run)[0][0]


@pytest.mark.parametrize("name", ["bfloat16", "digits", "fine-tuned", "on-demand", "resumed"])
def test_what_was_hashed_as_a_result_is_not_hashed_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree is the same, and less is hashed for it."""
    at, hashed = Path(__file__).parents[2] / "golden" / name, list[int]()
    step, hash_of = Transcript.open(at).steps - 1, memory_roots.held

    def counted(data: torch.Tensor) -> Held:
        hashed.append(data.numel())
        return hash_of(data)

    def leaves() -> tuple[bytes, ...]:
        with workers_here():
            return asking.trace(at, step, limits=Limits(4 << 30, 600)).leaves

    monkeypatch.setattr(memory_roots, "held", counted)
    made, once = leaves(), sum(hashed)
    monkeypatch.setattr(Tracing, "taken", lambda _: [])
    assert leaves() == made
    assert 2 * once < sum(hashed) - once


def _normalised(mean: torch.Tensor, variance: torch.Tensor) -> Example:
    x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1))
    x[0, 1, 2] = torch.nan
    return Example(aten._native_batch_norm_legit.default, (x, None, mean, mean, variance, True, 0.5, 1e-5))


def _noted() -> dict[str, Example]:
    """Returns calls whose results lie in other places than they were hashed in, or in several."""
    both, grid = torch.rand(7), torch.tensor([[0.0, -0.0, torch.nan], [1.0, torch.inf, -1.0]])
    halves = grid.bfloat16()
    return {
        "a part of a storage": Example(aten.clamp_.default, (torch.cat([grid, grid])[1:3], -0.5)),
        "a column": Example(aten.mul_.Tensor, (grid[:, 1], grid[:, 2])),
        "a column of one row": Example(aten.mul_.Tensor, (grid[:1][:, 1], 0.5)),
        "all of a storage": Example(aten.add_.Tensor, (grid.clone(), grid), {"alpha": 2.0}),
        "transposed": Example(aten.clamp_.default, (grid.clone().t(), -0.5)),
        "half precision": Example(aten.exp_.default, (halves.clone(),)),
        "converted": Example(aten.copy_.default, (halves.clone(), grid)),
        "as many as there are": Example(
            aten.unique_consecutive.default, (torch.arange(9000.0).div(90).floor(), True, True)
        ),
        "itself": Example(aten.mul_.Tensor, (both, both)),
        "nothing": Example(aten.mul_.Tensor, (both[:0], both[:0])),
        "statistics beside each other": _normalised(both[:3], both[3:6]),
        "statistics over each other": _normalised(both[:3], both[1:4]),
        "statistics that are the same": _normalised(x := torch.rand(3), x),
        "statistics apart": _normalised(torch.rand(3), torch.rand(3)),
    }


@pytest.mark.parametrize("name", _noted())
def test_a_tree_is_the_same_if_all_is_hashed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = SingleStep(_noted()[name], named("mixed"))
    told = step.told()
    assert (told.parted, step.judged(told).verdict) == ("", "admissible")
    monkeypatch.setattr(Tracing, "taken", lambda _: [])
    assert step.told().leaves == told.leaves
