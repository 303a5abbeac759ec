"""What the Recorder notes of the state after each step, and how it tells that memory has changed since."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prover.capture.storages import Memory
from prover.recording.state_tracker import StateTracker
from weighbridge.core.digests import bytes_digest


@pytest.fixture
def held() -> tuple[StateTracker, dict[str, torch.Tensor]]:
    tensors = {"a": torch.arange(300.0), "b": torch.zeros(70_000), "c": torch.zeros(0)}
    memory = Memory()
    state = StateTracker(memory)
    for name, t in tensors.items():
        state.names[memory.watch(t.untyped_storage())] = name
    state.hash()
    return state, tensors


def test_digests_are_those_of_the_content_whatever_changed_meanwhile(
    held: tuple[StateTracker, dict[str, torch.Tensor]],
) -> None:
    """What did not change is not hashed again, and must not be mixed up with what did."""
    state, tensors = held
    for change in (lambda: None, lambda: tensors["b"].add_(1), lambda: tensors["a"].neg_(), lambda: None):
        change()
        state.hash()
        assert state.digests == {
            name: (4 * t.numel(), bytes_digest(t.numpy().tobytes())) for name, t in tensors.items()
        }
        assert state.changed() is None


@pytest.mark.parametrize("change", ["one bit", "a swap"])
def test_a_change_by_an_array_is_seen(held: tuple[StateTracker, dict[str, torch.Tensor]], change: str) -> None:
    state, tensors = held
    array = tensors["a"].numpy()
    if change == "one bit":
        array.view(np.uint32)[7] ^= 1
    else:
        array[[3, 4]] = array[[4, 3]]
    assert state.changed() == "a"
    state.hash()
    assert state.changed() is None
