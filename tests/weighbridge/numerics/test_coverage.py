"""Nothing in PyTorch's core ATen set is without a line, and what the lines say is what happens."""

from __future__ import annotations

import torch

from weighbridge.numerics import rule_table
from weighbridge.numerics.coverage import Status, coverage, line, summary
from weighbridge.numerics.rewrites import decompositions

aten = torch.ops.aten
LINES = {each.name: each for each in coverage()}


def test_nothing_is_missing() -> None:
    assert [name for name, each in LINES.items() if each.status is Status.MISSING] == []


def test_the_set_has_every_core_overload_and_all_families() -> None:
    core = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    assert {each.group for each in LINES.values()} == {"core", "form", "backward", "foreach", "fused"}
    for name in core:
        packet, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(aten, packet), overload or "default")
        if torch.Tag.core in op.tags:
            assert LINES[f"{packet}.{overload or 'default'}"].group in ("core", "backward")
    for name in ("add_.Tensor", "mm.out", "convolution_backward.out", "_foreach_mul_.Scalar", "_fused_sgd_.tensor_lr"):
        assert name in LINES


def test_a_refusal_says_what_to_write_instead_and_nothing_else_does() -> None:
    for each in LINES.values():
        assert bool(each.note) == (each.status is Status.REFUSED), each.name


def test_a_form_of_a_refused_overload_is_refused() -> None:
    assert line(aten.poisson.out).status is Status.REFUSED
    assert line(aten.poisson.out).note == line(aten.poisson.default).note
    assert line(aten.linalg_matrix_exp.out).status is Status.REFUSED


def test_an_overload_outside_the_set_and_the_table_is_missing() -> None:
    assert line(aten.igamma.default).status is Status.MISSING


def test_the_summary_counts_every_line_once() -> None:
    counts = summary(list(LINES.values()))
    assert counts["all"] == len(LINES)
    assert sum(counts[status] for status in Status) == counts["all"]


def test_what_is_decomposed_has_no_rule_unless_operands_decide() -> None:
    for name, each in LINES.items():
        if each.status is Status.DECOMPOSED:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(aten, packet), overload)
            assert decompositions.find(op) is not None
            assert not rule_table.known(op)
