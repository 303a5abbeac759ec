"""Replays of real recorded steps: honest ones match, and each lie is named with its step and operation.

Everything here runs in the test's own process; `test_replay` has the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.forging import at_step, forge, node, where
from support.recordings import replay_here
from torch import Tensor, nn
from torch.nn import functional as F

from prover import Recorder
from weighbridge.attest.chip_link import Position
from weighbridge.core.digests import region_digest
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.executor import Executor
from weighbridge.numerics.rewrites import decompositions
from weighbridge.numerics.rounding import rounding_log
from weighbridge.numerics.rule_table import RULES, base_name, known
from weighbridge.program.operands import resolve
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.state import Checkpoint, checkpoint_digest
from weighbridge.transcript.tape import Node, Tape
from weighbridge.transcript.tensor_file import raw_bytes

Fields = dict[str, Any]
STEPS = 4
SALT = bytes(range(32))
UEID = b"\x01" * 17


class Notebook:
    """A chip that notes, at chosen positions, what the training process has in its named tensors."""

    ueid = UEID
    pending = True

    def __init__(self, positions: set[tuple[int, int]]) -> None:
        self.positions = positions
        self.tensors: Callable[[], list[Tensor]] = list
        self.seen: dict[tuple[int, int], tuple[bytes, bytes, list[tuple[int, bytes]]]] = {}

    def log_event(self, name: str, digest: bytes) -> int:
        return 0

    def declare_weights(self, tensors: Iterable[Tensor]) -> None:
        """This chip notes named tensors of its own choice."""

    def on_snapshot(self, note: Callable[[int], None] | None, where: Callable[[], Position] | None = None) -> None:
        """This chip takes snapshots at safepoints only."""

    def safepoint(self, step: int, op: int, running: bytes, head: bytes, flush: Callable[[], None]) -> int | None:
        if (step, op) not in self.positions:
            return None
        flush()
        leaves = [(len(raw := raw_bytes(t)), region_digest(raw, SALT)) for t in self.tensors()]
        self.seen[step, op] = running, head, leaves
        return len(self.seen)


POSITIONS = {(1, 0), (2, 3), (2, 40), (3, 0), (3, 60), (4, 75)}


def build() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(
        nn.Embedding(12, 8), nn.Flatten(), nn.Linear(24, 8), nn.Dropout(0.2), nn.GELU(), nn.Linear(8, 4)
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Notebook]:
    """A classifier of three symbols with dropout, momentum, clipping, a schedule, and a loss that Python reads."""
    path, chip = tmp_path_factory.mktemp("runs") / "run", Notebook(POSITIONS)
    generator = torch.Generator().manual_seed(5)
    with Recorder(path, seed=3, checkpoint_every=2, chip=chip) as recorder:
        with recorder.initialisation():
            model, optimizer = build()
        recorder.attach(model, optimizer)
        momentum = [b for s in optimizer.state.values() for b in s.values() if isinstance(b, Tensor)]
        chip.tensors = lambda: [p.detach() for p in model.parameters()] + momentum
        for number in range(STEPS):
            batch = {
                "x": torch.randint(0, 12, (6, 3), generator=generator),
                "y": torch.randint(0, 4, (6,), generator=generator),
            }
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + number)
            with recorder.step(batch):
                loss = F.cross_entropy(model(batch["x"]), batch["y"])
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
                assert loss.item() > 0
    return path, chip


@pytest.fixture(scope="module")
def run(recorded: tuple[Path, Notebook]) -> Path:
    return recorded[0]


def violations(result: dict[str, Any]) -> list[str]:
    return [f["id"] for f in result["findings"] if f["severity"] == "violation"]


# --- honest ---------------------------------------------------------------------------------------------------------


def test_an_honest_run_matches(run: Path) -> None:
    result, transcript = replay_here(run), Transcript.open(run)
    assert (result["verdict"], result["steps"], violations(result)) == ("match", [0, STEPS + 1], [])
    assert result["state"] == transcript.step(STEPS).state.hex()
    assert result["rounded"] == sum(r.rounded for r in transcript.records()) > 0
    assert result["logged"] == sum(r.logged for r in transcript.records())
    assert result["first_difference"] is None


def test_steps_share_tapes_and_values_are_told_apart(run: Path) -> None:
    """Momentum begins in step 1, whose loss step 2 lets go of: only then does one program run again and again."""
    result = replay_here(run)
    uses = sorted((use["kind"], use["count"], use["free_values"] > 0) for use in result["tapes"].values())
    assert uses == [("init", 1, False), ("step", 1, False), ("step", 1, False), ("step", STEPS - 2, True)], (
        "the learning rate changes and comes from nowhere"
    )


@pytest.mark.parametrize("steps", [(0, 1), (1, 2), (2, 4), (3, 5), (4, 5)])
def test_any_part_replays_from_the_checkpoint_before_it(run: Path, steps: tuple[int, int]) -> None:
    result, transcript = replay_here(run, steps=steps), Transcript.open(run)
    begin = max([c for c in transcript.checkpoint_steps if c <= steps[0]], default=0)
    assert (result["verdict"], result["steps"]) == ("match", [begin, steps[1]])
    assert result["state"] == transcript.step(steps[1] - 1).state.hex()


@pytest.mark.parametrize("steps", [(0, 9), (5, 5), (3, 2), (-1, 2)])
def test_steps_that_are_not_there_are_a_usage_error(run: Path, steps: tuple[int, int]) -> None:
    with pytest.raises(WeighbridgeError) as caught:
        replay_here(run, steps=steps)
    assert caught.value.reason == "usage"


@pytest.mark.parametrize("position", sorted(POSITIONS))
def test_a_stop_has_the_memory_that_the_training_process_had(
    recorded: tuple[Path, Notebook], position: tuple[int, int]
) -> None:
    path, chip = recorded
    running, head, expected = chip.seen[position]
    result = replay_here(path, stop=position, salt=SALT)
    assert result["verdict"] == "match"
    assert (result["running"], result["head"]) == (running.hex(), head.hex())
    live = [(size, bytes.fromhex(digest)) for size, digest in result["live"]]
    for leaf in expected:
        live.remove(leaf)  # as multisets: equal contents are as many here as there
    record = Transcript.open(path).step(position[0])
    assert (UEID, list(chip.seen).index(position) + 1, position[1]) in record.snapshots


def test_a_stop_after_the_last_operation_and_beyond(run: Path) -> None:
    transcript = Transcript.open(run)
    count = len(Tape.decode(transcript.tape(transcript.step(2).tape)).nodes)
    assert replay_here(run, stop=(2, count))["verdict"] == "match"
    assert "tape.malformed" in violations(replay_here(run, stop=(2, count + 1)))
    after = replay_here(run, stop=(STEPS + 1, 0))
    assert after["verdict"] == "match"
    assert after["state"] == transcript.step(STEPS).state.hex()
    with pytest.raises(WeighbridgeError, match="does not exist"):
        replay_here(run, stop=(STEPS + 2, 0))


# --- lies -----------------------------------------------------------------------------------------------------------


def _other_label(_: Tape, fields: Fields) -> None:
    fields["batch"]["y"] = (fields["batch"]["y"] + 1) % 4


def _other_symbol(_: Tape, fields: Fields) -> None:
    fields["batch"]["x"] = (fields["batch"]["x"] + 1) % 12


def _other_rate(tape: Tape, fields: Fields) -> None:
    rate = next(i for i, v in enumerate(fields["values"]) if isinstance(v, float) and abs(v) == 0.1 / 2)
    fields["values"] = [*fields["values"][:rate], fields["values"][rate] * 1.5, *fields["values"][rate + 1 :]]


def _other_loss(_: Tape, fields: Fields) -> None:
    fields["host"] = [*fields["host"][:-1], fields["host"][-1] + 1e-3]


def _loss_as_integer(_: Tape, fields: Fields) -> None:
    fields["host"] = [*fields["host"][:-1], 1]


def _checksum(place: int) -> Callable[[Tape, Fields], None]:
    def change(_: Tape, fields: Fields) -> None:
        sums = np.frombuffer(fields["checksums"], dtype="<u8").copy()
        sums[place] ^= np.uint64(1 << 17)
        fields["checksums"] = sums.tobytes()

    return change


def _fewer_checksums(_: Tape, fields: Fields) -> None:
    fields["checksums"] = fields["checksums"][:-8]


def _state(_: Tape, fields: Fields) -> None:
    fields["state"] = bytes(32)


def _one_operation_more(tape: Tape, fields: Fields) -> None:
    """The weights are doubled at the end, without a checksum for it."""
    weight = next(i for i in tape.inputs if i.name == "model.5.weight")
    tape.refs.append((weight.slot, "f32", (32,), (1,), 0))
    tape.nodes.append(Node("add_.Tensor", (("t", len(tape.refs) - 1),) * 2, {}, (len(tape.refs) - 1,)))


def _constant_over_the_weights(tape: Tape, fields: Fields) -> None:
    """A move needs no checksum; the state's digest finds it."""
    weight = next(i for i in tape.inputs if i.name == "model.5.weight")
    tape.refs.append((weight.slot, "f32", (32,), (1,), 0))
    tape.nodes.append(Node("zero_.default", (("t", len(tape.refs) - 1),), {}, (len(tape.refs) - 1,)))


def _one_operation_less(tape: Tape, _: Fields) -> None:
    """The loss's reading is left out, so a host value is over."""
    tape.nodes.pop(where(tape, "_local_scalar_dense.default"))


LIES: dict[str, tuple[Callable[[Tape, Fields], None], str, str]] = {
    "label": (_other_label, "replay.mismatch", "nll_loss_forward.default"),
    "symbol": (_other_symbol, "replay.mismatch", "addmm.default"),
    "learning rate": (_other_rate, "replay.mismatch", "add_.Tensor"),
    "host value": (_other_loss, "replay.mismatch", "_local_scalar_dense.default"),
    "host value of another type": (_loss_as_integer, "replay.mismatch", "_local_scalar_dense.default"),
    "first checksum": (_checksum(0), "replay.mismatch", "addmm.default"),
    "last checksum": (_checksum(-1), "replay.mismatch", "add_.Tensor"),
    "too few checksums": (_fewer_checksums, "replay.mismatch", "add_.Tensor"),
    "an arithmetic operation more": (_one_operation_more, "replay.mismatch", "add_.Tensor"),
    "a move over the weights": (_constant_over_the_weights, "replay.mismatch", "state"),
}


@pytest.mark.parametrize("lie", LIES)
def test_each_lie_is_named_with_its_step_and_operation(run: Path, tmp_path: Path, lie: str) -> None:
    change, code, operation = LIES[lie]
    result = replay_here(forge(run, tmp_path / "forged", at_step(2, change)))
    assert (result["verdict"], violations(result)) == ("mismatch", [code])
    assert (result["first_difference"]["step"], result["first_difference"]["operation"]) == (2, operation)
    assert result["first_difference"]["expected"] != result["first_difference"]["found"]
    tape = Tape.decode(Transcript.open(tmp_path / "forged").tape(Transcript.open(tmp_path / "forged").step(2).tape))
    op = result["first_difference"]["op"]
    assert operation == "state" or tape.nodes[op].op == operation


def test_another_state_digest_is_named_as_the_state(run: Path, tmp_path: Path) -> None:
    result = replay_here(forge(run, tmp_path / "forged", at_step(3, _state)))
    assert (result["verdict"], violations(result)) == ("mismatch", ["replay.mismatch"])
    assert (result["first_difference"]["step"], result["first_difference"]["operation"]) == (3, "state")
    assert result["first_difference"]["expected"] == "00" * 32


def test_an_operation_that_is_left_out_leaves_a_host_value(run: Path, tmp_path: Path) -> None:
    result = replay_here(forge(run, tmp_path / "forged", at_step(2, _one_operation_less)))
    assert (result["verdict"], violations(result)) == ("mismatch", ["tape.malformed"])


def test_another_seed_is_found_in_the_initialisation(run: Path, tmp_path: Path) -> None:
    result = replay_here(forge(run, tmp_path / "forged", lambda *_: None, seed=4))
    assert (result["verdict"], result["first_difference"]["step"]) == ("mismatch", 0)


def test_a_checkpoint_that_fits_its_record_but_not_its_step(run: Path, tmp_path: Path) -> None:
    """Weights of another origin are slipped in between two segments, and the record before says so too."""
    slipped: dict[int, Checkpoint] = {}

    def other(original: Checkpoint) -> Checkpoint:
        return slipped.get(original.step, original)

    original = Transcript.open(run).checkpoint(3)
    storages = {**original.storages, "model.5.bias": torch.zeros_like(original.storages["model.5.bias"])}
    slipped[3] = replace(original, storages=storages)

    def change(tape: Tape, fields: Fields) -> None:
        fields["state"] = checkpoint_digest(slipped[3])

    path = forge(run, tmp_path / "forged", at_step(2, change), other)
    result = replay_here(path)
    assert (result["first_difference"]["step"], result["first_difference"]["operation"]) == (2, "state")
    assert replay_here(path, steps=(0, 2))["verdict"] == "match"
    assert replay_here(path, steps=(3, 4))["verdict"] == "mismatch", "what follows was computed from the real state"


# --- the rounding log -----------------------------------------------------------------------------------------------


def rewritten(
    change: Callable[[list[rounding_log.OpEntries], Tape], list[rounding_log.OpEntries]],
) -> Callable[[Tape, Fields], None]:
    """A change of a step's rounding log."""

    def apply(tape: Tape, fields: Fields) -> None:
        entries = change(rounding_log.decode(fields["rounding"], max_entries=1 << 20), tape)
        fields["rounding"], fields["logged"] = rounding_log.encode(entries), sum(len(e.positions) for e in entries)

    return apply


def logged_step(run: Path) -> int:
    """A step with a contested element, which a run of this size has in some of its steps."""
    return next(r.step for r in Transcript.open(run).records() if r.logged)


def _flip(entries: list[rounding_log.OpEntries], _: Tape) -> list[rounding_log.OpEntries]:
    first = entries[0]
    bits = first.bits.copy()
    bits[0] ^= np.uint64(1)
    return [replace(first, bits=bits), *entries[1:]]


def test_a_flipped_bit_of_the_log_is_found_where_it_is(run: Path, tmp_path: Path) -> None:
    step = logged_step(run)
    (first, *_) = rounding_log.decode(Transcript.open(run).rounding(step), max_entries=1 << 20)
    result = replay_here(forge(run, tmp_path / "forged", at_step(step, rewritten(_flip))))
    assert (result["verdict"], violations(result)) == ("mismatch", ["replay.mismatch"])
    assert (result["first_difference"]["step"], result["first_difference"]["op"]) == (step, first.op)


def extra(op: int, position: int, width: int, bits: int) -> rounding_log.OpEntries:
    return rounding_log.OpEntries(
        op, 0, np.array([position]), np.array([width], dtype=np.uint8), np.array([bits], dtype=np.uint64)
    )


def added(op: str, position: int, width: int, bits: int) -> Callable[[Tape, Fields], None]:
    """Puts one entry on the first operation of a name, in place of those that are there."""

    def change(entries: list[rounding_log.OpEntries], tape: Tape) -> list[rounding_log.OpEntries]:
        at = where(tape, op)
        return sorted(
            [*(e for e in entries if e.op != at), extra(at, position, width, bits)], key=lambda e: (e.op, e.output)
        )

    return rewritten(change)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (added("addmm.default", 5, 3, 0b101), "replay.rounding.inadmissible"),
        (added("addmm.default", 5, 0, 0x3F800000), "replay.rounding.inadmissible"),
        (added("addmm.default", 1 << 30, 1, 0), "replay.rounding.malformed"),
        (added("view.default", 0, 1, 0), "replay.rounding.malformed"),
        (added("embedding.default", 0, 1, 0), "replay.rounding.malformed"),
    ],
    ids=["other bits", "whole value", "past the end", "for a view", "for a move"],
)
def test_entries_that_no_device_could_have_made(
    run: Path, tmp_path: Path, change: Callable[[Tape, Fields], None], code: str
) -> None:
    result = replay_here(forge(run, tmp_path / "forged", at_step(2, change)))
    assert (result["verdict"], violations(result)) == ("mismatch", [code])


# --- what must not run ----------------------------------------------------------------------------------------------

FORBIDDEN = [
    "tril.out", "add.out", "zeros.out", "set_.source_Storage", "set_.source_Storage_storage_offset",
    "resize_.default", "from_file.default",
    "_fused_adamw_.default", "_foreach_add_.Scalar", "native_dropout.default", "lerp.Scalar_out",
    "cudnn_convolution.default", "mkldnn_linear.default", "_scaled_dot_product_flash_attention.default",
    "linalg_qr.default", "made_up.default", "add.made_up", "add", "", ".", "add.__call__", "__class__.default",
    "add.Tensor.more", "ops.aten", "_pin_memory.default", "record_stream.default", "quantize_per_tensor.default",
    "fft_fft.default", "to_mkldnn.default", "multinomial.default",
]  # fmt: skip


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_forbidden_operation_does_not_run(run: Path, tmp_path: Path, name: str) -> None:
    def change(tape: Tape, _: Fields) -> None:
        node(tape, where(tape, "add_.Tensor"), op=name)

    result = replay_here(forge(run, tmp_path / "forged", at_step(1, change)))
    assert (result["verdict"], violations(result)) == ("mismatch", ["tape.forbidden"])
    assert repr(name)[:40] in result["findings"][0]["message"] or name in result["findings"][0]["message"]


def test_every_allowed_name_is_in_the_table() -> None:
    """The allow-list is the table of rules and nothing beside it."""
    for packet in ("add", "mm", "set_", "resize_", "_fused_sgd_", "item", "topk", "index_put_", "gelu_backward"):
        for overload in getattr(torch.ops.aten, packet).overloads():
            op = getattr(getattr(torch.ops.aten, packet), overload)
            name = f"{packet}.{overload}"
            if known(op) and decompositions.find(op) is None and RULES[".".join(base_name(op))].integers:
                assert resolve(name) is op
            elif packet != "add":  # whose operands decide
                with pytest.raises(WeighbridgeError) as caught:
                    resolve(name)
                assert caught.value.reason == "tape.forbidden"


def _terabyte(tape: Tape, _: Fields) -> None:
    slot, index = 10_000, len(tape.refs)
    tape.refs.append((slot, "f32", (1 << 38,), (1,), 0))
    tape.nodes.insert(0, Node("zeros.default", (("l", (1 << 38,)),), {}, (index,), ((slot, 1 << 40),)))
    _shift(tape)


def _shift(tape: Tape) -> None:
    """The operation at the front moves all others by one."""
    tape.frees = [(at + 1, slot) for at, slot in tape.frees]
    tape.survivors.append((10_000, "more"))


def test_a_terabyte_is_not_even_asked_for(run: Path, tmp_path: Path) -> None:
    result = replay_here(forge(run, tmp_path / "forged", at_step(2, _terabyte)))
    assert result["verdict"] == "inconclusive"
    assert "tape.too_large" in [f["id"] for f in result["findings"]]


def _symbol(value: int) -> Callable[[Tape, Fields], None]:
    def change(_: Tape, fields: Fields) -> None:
        fields["batch"]["x"] = fields["batch"]["x"].clone()
        fields["batch"]["x"][2, 1] = value

    return change


@pytest.mark.parametrize("value", [12, -1, 1 << 40, -(1 << 63)])
def test_an_index_outside_its_table_is_not_followed(run: Path, tmp_path: Path, value: int) -> None:
    result = replay_here(forge(run, tmp_path / "forged", at_step(2, _symbol(value))))
    assert (result["verdict"], violations(result)) == ("mismatch", ["tape.out_of_bounds"])


@pytest.mark.parametrize("label", [4, -1, 1 << 40])
def test_a_label_outside_the_classes_is_not_followed(run: Path, tmp_path: Path, label: int) -> None:
    def change(_: Tape, fields: Fields) -> None:
        fields["batch"]["y"] = torch.full_like(fields["batch"]["y"], label)

    result = replay_here(forge(run, tmp_path / "forged", at_step(2, change)))
    assert (result["verdict"], violations(result)) == ("mismatch", ["tape.out_of_bounds"])


def _operands(name: str, *args: Any, **kwargs: Any) -> Callable[[Tape, Fields], None]:
    def change(tape: Tape, _: Fields) -> None:
        node(tape, where(tape, name), args=args, kwargs=kwargs)

    return change


@pytest.mark.parametrize(
    "change",
    [
        _operands("addmm.default"),
        _operands("addmm.default", ("t", 0), ("t", 0), ("t", 0), ("t", 0), ("t", 0), ("t", 0), ("t", 0)),
        _operands("addmm.default", ("t", 0), ("t", 0), ("t", 0)),
        _operands("addmm.default", 1, 2, 3),
        _operands("addmm.default", ("l", (("t", 0),)), ("s", "x"), ("d", "f32")),
        _operands("addmm.default", ("t", 0), moon=("t", 0)),
        _operands("addmm.default", ("v", 1 << 40), ("t", 0), ("t", 0)),
        _operands("addmm.default", ("x", 0), ("t", 0), ("t", 0)),
        _operands("addmm.default", ("d", "complex64"), ("t", 0), ("t", 0)),
        _operands("addmm.default", None, None, None),
    ],
)
def test_operands_that_fit_nothing_are_one_finding(
    run: Path, tmp_path: Path, change: Callable[[Tape, Fields], None]
) -> None:
    result = replay_here(forge(run, tmp_path / "forged", at_step(2, change)))
    assert (result["verdict"], violations(result)) == ("mismatch", ["tape.malformed"])


def test_values_of_any_kind_are_one_finding(run: Path, tmp_path: Path) -> None:
    """Every number in the values vector is replaced by what no honest step has there."""
    for number, value in enumerate([float("nan"), float("inf"), -1e300, (1 << 63), True, -(1 << 63)]):

        def change(_: Tape, fields: Fields, value: Any = value) -> None:
            fields["values"] = [value] * len(fields["values"])

        result = replay_here(forge(run, tmp_path / f"forged{number}", at_step(2, change)))
        assert result["verdict"] == "mismatch"
        assert len(violations(result)) == 1


def test_a_state_of_another_size_is_not_taken(run: Path) -> None:
    transcript = Transcript.open(run)
    executor = Executor("cpu", 3, 1 << 30)
    checkpoint = transcript.checkpoint(3)
    short = {**checkpoint.storages, "model.5.bias": checkpoint.storages["model.5.bias"][:-4]}
    executor.load(replace(checkpoint, storages=short))
    record = transcript.step(3)
    log = rounding_log.LogReader(rounding_log.encode([]), max_entries=0)
    with pytest.raises(WeighbridgeError, match="should have 16 bytes and has 12") as caught:
        executor.run(Tape.decode(transcript.tape(record.tape)), record.tape, record, log, transcript.batch(3), {})
    assert caught.value.reason == "tape.malformed"
