"""What the Executor does not run: forbidden operations, operands that fit nothing, and memory that is not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.forging import at_step, forge, node, where
from support.noted_training import record
from support.recordings import replay_here, violations

from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.executor import Executor
from weighbridge.numerics.rewrites import decompositions
from weighbridge.numerics.rounding import rounding_log
from weighbridge.numerics.rule_table import RULES, base_name, known
from weighbridge.program.operands import resolve
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Node, Tape

Fields = dict[str, Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    record(path)
    return path


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
