"""Recorded on the CPU and replayed on a GPU, and the other way, bit for bit; and the parts that this rests on.

A replay compares every rounded result, and the digest of the whole state (optimizer included) after each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gpu import both_ways, trainings

from weighbridge.numerics.arrays import reductions
from weighbridge.numerics.conformance import bound_policy, probes
from weighbridge.numerics.conformance.switches import conforming
from weighbridge.numerics.rounding import device_passes

pytestmark = pytest.mark.gpu

WAYS = [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")]


@pytest.fixture
def pytorch_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the Triton kernels, as where there is no Triton."""
    monkeypatch.setattr(device_passes, "fused", lambda device: None)


@pytest.mark.parametrize(("recorded", "replayed"), WAYS)
@pytest.mark.parametrize("half", [False, True], ids=["fp32-strict", "bf16-calibrated"])
@pytest.mark.parametrize("kind", sorted(trainings.KINDS))
def test_a_training_replays_on_the_other_device(
    kind: str, half: bool, recorded: str, replayed: str, tmp_path: Path
) -> None:
    both_ways.record(tmp_path / "run", kind, recorded, half)
    both_ways.replays(tmp_path / "run", replayed)


@pytest.mark.parametrize(("recorded", "replayed"), WAYS)
@pytest.mark.parametrize("half", [False, True], ids=["fp32-strict", "bf16-calibrated"])
def test_a_confined_worker_replays_on_the_other_device(
    half: bool, recorded: str, replayed: str, tmp_path: Path
) -> None:
    both_ways.record(tmp_path / "run", "gpt2", recorded, half)
    both_ways.replays_confined(tmp_path / "run", replayed)


@pytest.mark.parametrize(("recorded", "replayed"), WAYS[:2])
def test_other_data_are_found_on_the_other_device(recorded: str, replayed: str, tmp_path: Path) -> None:
    both_ways.record(tmp_path / "run", "gpt2", recorded, half=False)
    both_ways.catches_other_data(tmp_path / "run", replayed)


def test_both_devices_draw_the_same_bits() -> None:
    both_ways.draws_agree("cuda")


def test_both_devices_divide_to_the_same_bits() -> None:
    both_ways.quotients_agree("cuda")


def test_both_devices_add_and_multiply_to_the_same_bits() -> None:
    both_ways.exact_operations_agree("cuda")


def test_both_devices_choose_the_same_of_equal_values() -> None:
    both_ways.ties_agree("cuda")


def test_the_triton_kernels_work_here_if_triton_is_here() -> None:
    pytest.importorskip("triton")
    assert device_passes.fused(torch.empty(0, device="cuda").device) is not None


def test_rounding_passes_agree() -> None:
    both_ways.passes_agree("cuda")


@pytest.mark.usefixtures("pytorch_passes")
def test_rounding_passes_out_of_pytorch_operations_agree() -> None:
    both_ways.passes_agree("cuda")


def test_the_last_write_wins() -> None:
    both_ways.last_writes_win("cuda")


def test_norms_of_small_and_large_elements_are_made_in_float64() -> None:
    x = torch.tensor([[1e-30, 2e-30], [1e30, 2e30]])
    expected = reductions.norm(x.double(), [1])
    torch.testing.assert_close(reductions.norm(x.cuda(), [1]).cpu(), expected, rtol=1e-12, atol=0)


@pytest.fixture
def tf32_wanted() -> Iterator[None]:
    """A user who has switched TF32 on."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("tf32_wanted")
def test_the_probes_pass_with_tf32_switched_off_for_the_user() -> None:
    probes.require("cuda", bound_policy.STRICT)
    probes.require("cuda", bound_policy.calibrated())
    with conforming():
        assert probes.products_conform(torch.mm, torch.float32, torch.device("cuda"))


@pytest.mark.usefixtures("tf32_wanted")
def test_the_probes_see_tf32() -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this generation has no TF32")
    assert not probes.products_conform(torch.mm, torch.float32, torch.device("cuda"))
