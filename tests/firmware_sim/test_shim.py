"""The shim on real tensors, attached to a chip in its own process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.chip_station import ChipStation
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from firmware_sim import ChipProcess, Shim
from weighbridge.attest.chip_link import ChipLink
from weighbridge.attest.tokens import Token
from weighbridge.core.digests import Leaf, region_digest, snapshot_root
from weighbridge.core.errors import ChipError

HOLD = 20
RUNNING, HEAD = b"r" * 32, b"h" * 32


@pytest.fixture(scope="module")
def chip(station: ChipStation) -> Iterator[ChipProcess]:
    with station.chip(hold=HOLD, allow_forced=True) as process:
        yield process


def leaf(t: Tensor, salt: bytes) -> Leaf:
    """Recomputes a region from the memory, the slow and obvious way."""
    storage = t.untyped_storage()
    return storage.nbytes(), region_digest(bytes(storage.tolist()), salt)


def offer(shim: ChipLink) -> int | None:
    return shim.safepoint(1, 2, RUNNING, HEAD, lambda: None)


def newest(station: ChipStation, chip: ChipProcess) -> Token:
    """The snapshot right before the workload left."""
    token, left = station.log(chip)[-2:]
    assert (token.kind, left.body["name"]) == ("snapshot", "workload-detached")
    return token


def test_nothing_is_taken_unasked(chip: ChipProcess) -> None:
    with Shim.connect(chip.socket) as shim:
        assert len(shim.ueid) == 17
        torch.zeros(3)
        assert not shim.pending
        assert offer(shim) is None


def test_a_snapshot_is_the_memory(chip: ChipProcess, station: ChipStation) -> None:
    """The signed root equals the root over a recomputation from the live tensors, in the middle of training."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = torch.randn(3, 6)
    flushed: list[bool] = []
    with Shim.connect(chip.socket, weights=model.parameters()) as shim:
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
        shim.request_snapshot()
        assert shim.pending
        index = shim.safepoint(2, 77, RUNNING, HEAD, lambda: flushed.append(shim.pending))
        assert index is not None
        assert not shim.pending
        kernels = shim.kernels
    token = station.log(chip)[index]
    salt, leaves = station.open(chip, index)
    parameters = list(model.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    momenta = [optimizer.state[p]["momentum_buffer"] for p in parameters]
    # The graph of the loss is freed, so this is all that lives: 12 tensors of training, the batch and the loss.
    expected = [leaf(t, salt) for t in (*parameters, *gradients, *momenta, batch, loss.detach())]
    assert sorted(expected) == leaves
    assert token.body["root"] == snapshot_root(expected, salt)
    assert token.body["weights_root"] == snapshot_root([leaf(p, salt) for p in parameters], salt)
    assert token.body["weights_bytes"] == sum(p.numel() * 4 for p in parameters)
    assert (token.body["step"], token.body["op"], token.body["safepoint"]) == (2, 77, True)
    assert (token.body["running"], token.body["head"]) == (RUNNING, HEAD)
    assert (token.body["kernels"], token.body["held"]) == (kernels, 0)
    assert flushed == [True]  # Before anything was signed.


def test_an_uncooperative_workload_is_snapshotted_after_the_hold(chip: ChipProcess, station: ChipStation) -> None:
    x = torch.ones(4)
    with Shim.connect(chip.socket) as shim:
        shim.request_snapshot()
        for _ in range(HOLD):
            x.add_(1)
        assert shim.pending
        before = x.clone  # Not called: the next kernel must be the one that is stopped.
        x.add_(1)
        assert not shim.pending
        before()
    token = newest(station, chip)
    salt, leaves = station.open(chip, token.index)
    assert leaves == [leaf(torch.full((4,), 1.0 + HOLD), salt)]  # Taken before that kernel ran.
    assert (token.body["safepoint"], token.body["step"], token.body["op"]) == (False, -1, -1)
    assert (token.body["head"], token.body["running"], token.body["held"]) == (b"", b"", HOLD)


def test_views_count_once_and_the_dead_not_at_all(chip: ChipProcess, station: ChipStation) -> None:
    base = torch.arange(12.0)
    with Shim.connect(chip.socket) as shim:
        view = base.view(3, 4)[1:]
        sum(view.exp() for _ in range(5))
        kept = view + 1
        empty = torch.empty(0)
        shim.request_snapshot()
        index = offer(shim)
    assert index is not None
    assert empty.numel() == 0
    salt, leaves = station.open(chip, index)
    assert leaves == sorted([leaf(base, salt), leaf(kept, salt)])


def test_keyword_outputs_and_nested_arguments_are_seen(chip: ChipProcess, station: ChipStation) -> None:
    parts, target = [torch.ones(2), torch.zeros(3)], torch.empty(5)
    with Shim.connect(chip.socket) as shim:
        torch.cat(parts, out=target)
        shim.request_snapshot()
        index = offer(shim)
    assert index is not None
    salt, leaves = station.open(chip, index)
    assert leaves == sorted(leaf(t, salt) for t in (*parts, target))


def test_only_kernels_on_memory_count(chip: ChipProcess, station: ChipStation) -> None:
    """Fake and meta tensors leave no trace; a wrapper's inner kernels are seen in its place."""
    with Shim.connect(chip.socket) as shim:
        with FakeTensorMode() as fake:
            torch.randn(4, 4) @ torch.randn(4, 4)
        assert (shim.kernels, shim.flops) == (0, 0)
        imitated = fake.from_tensor(torch.ones(2, 2))
        seen = shim.kernels
        imitated + 1
        assert shim.kernels == seen
        torch.ones(5, device="meta") + 1
        inner = torch.ones(3), torch.full((3,), 2.0)
        before = shim.kernels
        both = TwoTensor(*inner) * 3
        assert shim.kernels == before + 2
        shim.request_snapshot()
        index = offer(shim)
    assert index is not None
    salt, leaves = station.open(chip, index)
    assert leaves == sorted(leaf(t, salt) for t in (*inner, both.a, both.b))


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("layout", ["to_sparse_coo", "to_sparse_csr", "to_mkldnn"])
def test_tensors_without_storage_do_not_disturb(chip: ChipProcess, layout: str) -> None:
    made = torch.eye(3)
    with Shim.connect(chip.socket) as shim:
        other = getattr(made, layout)()
        before = shim.kernels
        assert torch.equal((other * other).to_dense(), made)
        assert shim.kernels > before
        shim.request_snapshot()
        assert offer(shim) is not None


class Sealed(torch.Tensor):
    """A dense tensor that does not say where its memory is."""

    def untyped_storage(self) -> torch.UntypedStorage:
        raise NotImplementedError("nothing to see here")


def test_memory_that_cannot_be_seen_is_not_computed_on_further(chip: ChipProcess) -> None:
    sealed = torch.ones(3).as_subclass(Sealed)
    with Shim.connect(chip.socket) as shim, pytest.raises(NotImplementedError, match="nothing to see"):
        shim.kernels += int((sealed + 1).sum())


def test_flops_of_products_and_convolutions(chip: ChipProcess) -> None:
    with Shim.connect(chip.socket) as shim:
        torch.zeros(3, 4) @ torch.zeros(4, 5)
        assert shim.flops == 2 * 3 * 4 * 5
        torch.nn.functional.conv2d(torch.zeros(1, 2, 5, 5), torch.zeros(3, 2, 3, 3))
        assert shim.flops == 2 * 3 * 4 * 5 + 2 * 3 * 3 * 3 * 2 * 3 * 3


def test_backward_is_seen(chip: ChipProcess) -> None:
    w = torch.randn(4, 4, requires_grad=True)
    with Shim.connect(chip.socket) as shim:
        loss = (torch.zeros(4, 4) @ w).sum()
        assert shim.flops == 2 * 4**3 + 4**2
        loss.backward()
        assert shim.flops == 4 * 4**3 + 4**2  # Only the weight needs a gradient; that of the sum is a view.


def test_events_are_logged(chip: ChipProcess, station: ChipStation) -> None:
    with Shim.connect(chip.socket) as shim:
        index = shim.log_event("manifest-draft", b"d" * 32)
        with pytest.raises(ChipError) as caught:
            shim.log_event("manifest-draft", b"short")
        assert caught.value.reason == "chip.token"
    token = station.log(chip)[index]
    assert token.body == {"name": "manifest-draft", "digest": b"d" * 32}


@pytest.mark.finding("chip.busy")
def test_one_workload_at_a_time(chip: ChipProcess) -> None:
    with Shim.connect(chip.socket):
        with pytest.raises(ChipError) as caught:
            Shim.connect(chip.socket)
        assert caught.value.reason == "chip.busy"
    Shim.connect(chip.socket).close()


def test_who_leaves_with_an_interrupt_pending_is_snapshotted(chip: ChipProcess, station: ChipStation) -> None:
    x = torch.ones(3)
    noted: list[int] = []
    with Shim.connect(chip.socket) as shim:
        shim.on_snapshot(noted.append)
        x.add_(1)
        shim.request_snapshot()
    token = newest(station, chip)
    assert token.body["safepoint"] is False
    assert noted == [token.index]
    salt, leaves = station.open(chip, token.index)
    assert leaves == [leaf(x, salt)]


def test_a_workload_says_where_it_was_when_nobody_asked(chip: ChipProcess, station: ChipStation) -> None:
    """The claim is signed with the snapshot, so it is there even if a crash keeps the workload from noting anything."""
    with Shim.connect(chip.socket) as shim:
        shim.on_snapshot(None, lambda: (3, 14, HEAD))
        shim.request_snapshot()
    body = newest(station, chip).body
    assert (body["safepoint"], body["step"], body["op"], body["head"], body["running"]) == (False, 3, 14, HEAD, b"")


def test_weights_are_part_of_memory_before_any_kernel_reads_them(chip: ChipProcess, station: ChipStation) -> None:
    weights, other = torch.ones(7), torch.ones(9)
    with Shim.connect(chip.socket, weights=[weights]) as shim:
        other.add_(1)
        gone = torch.zeros(11)
        shim.declare_weights([weights, gone])
        del gone
        shim.request_snapshot()
        index = offer(shim)
    assert index is not None
    salt, leaves = station.open(chip, index)
    assert leaves == sorted([leaf(weights, salt), leaf(other, salt)])
    assert station.log(chip)[index].body["weights_root"] == snapshot_root([leaf(weights, salt)], salt)


class Wrapper(torch.Tensor):
    """As DTensor is made."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


def test_a_wrapper_has_no_memory_of_its_own(chip: ChipProcess, station: ChipStation) -> None:
    """A DTensor's storage has the size of the whole tensor and nothing behind it; what it wraps is memory."""
    inner = torch.ones(5)
    wrapper = Wrapper._make_wrapper_subclass(Wrapper, (10,), dtype=torch.float32)  # type: ignore[attr-defined]
    with Shim.connect(chip.socket) as shim:
        shim.declare_weights([inner, wrapper])
        shim.request_snapshot()
        index = offer(shim)
    assert index is not None
    salt, leaves = station.open(chip, index)
    assert leaves == [leaf(inner, salt)]


def test_a_moment_in_which_memory_is_being_freed_is_passed_over(chip: ChipProcess, station: ChipStation) -> None:
    """The interrupt waits for the next moment. A wrapper's storage stands for one that another thread is freeing."""
    kept = torch.ones(5)
    dying = Wrapper._make_wrapper_subclass(Wrapper, (10,), dtype=torch.float32)  # type: ignore[attr-defined]
    with Shim.connect(chip.socket) as shim:
        kept.add_(1)
        shim._watch(dying.untyped_storage())
        shim.request_snapshot()
        assert offer(shim) is None
        assert shim.pending
        del dying
        index = offer(shim)
    assert index is not None
    salt, leaves = station.open(chip, index)
    assert leaves == [leaf(kept, salt)]


def test_a_forked_worker_leaves_the_chip_alone(chip: ChipProcess, station: ChipStation) -> None:
    """Workers of a DataLoader are forked from a process whose shim is entered, here while an interrupt stands."""
    data = torch.utils.data.TensorDataset(torch.arange(12.0))
    with Shim.connect(chip.socket) as shim:
        shim.request_snapshot()
        loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="fork")
        assert sum(float(batch.sum()) for (batch,) in loader) == 66.0
        taken = offer(shim)
    log = station.log(chip)
    snapshots = [token.index for token in log if token.kind == "snapshot"]
    assert taken is None or taken in snapshots  # the parent's own kernels may have been enough for the hold
    assert snapshots[-1] == newest(station, chip).index


def test_a_failed_flush_takes_no_snapshot(chip: ChipProcess, station: ChipStation) -> None:
    def fail() -> None:
        raise OSError("disk full")

    with Shim.connect(chip.socket) as shim:
        shim.request_snapshot()
        size = len(station.log(chip))
        with pytest.raises(OSError, match="disk full"):
            shim.safepoint(0, 0, RUNNING, HEAD, fail)
        assert shim.pending
        assert len(station.log(chip)) == size
        assert offer(shim) is not None


@pytest.mark.finding("chip.forced")
def test_forcing_needs_permission(station: ChipStation) -> None:
    with station.chip("unforced") as process, Shim.connect(process.socket) as shim:
        with pytest.raises(ChipError) as caught:
            shim.request_snapshot()
        assert caught.value.reason == "chip.forced"
        torch.zeros(2)  # The refusal does no harm.


def test_without_its_chip_no_kernel_runs(station: ChipStation) -> None:
    process = station.chip("dead", allow_forced=True)
    with process:
        shim = Shim.connect(process.socket)
        shim.request_snapshot()
        process.kill()
        with pytest.raises(ChipError) as caught:
            offer(shim)
        assert caught.value.reason == "chip.unreachable"
        with shim, pytest.raises(ChipError):
            torch.zeros(2)


def test_no_chip_there(tmp_path: Path) -> None:
    with pytest.raises(ChipError) as caught:
        Shim.connect(tmp_path / "nothing")
    assert caught.value.reason == "chip.unreachable"
