"""Rules of the user's: one decorated function, in the digest of the table, and never over a reviewed line."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.bound_errors import Listening
from support.rule_tables import restored

from weighbridge.core.errors import TapeError, UnknownOperationError, UsageError
from weighbridge.numerics import custom, rule, rule_table
from weighbridge.numerics.bounds import Call, gamma
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.flops import counts
from weighbridge.numerics.rewrites import decompositions
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.program.operands import resolve

Tensor = torch.Tensor


@torch.library.custom_op("weighbridge_custom::doubled_norm", mutates_args=())
def doubled_norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1) * 2


@torch.library.custom_op("weighbridge_custom::reversed", mutates_args=())
def backwards(x: Tensor) -> Tensor:
    return x.flip(0)


@torch.library.custom_op("weighbridge_custom::topk", mutates_args=())
def topk(x: Tensor, k: int) -> Tensor:
    return x[:k].clone()


OPS = torch.ops.weighbridge_custom


def bound(call: Call) -> list[Bound]:
    return [Bound(rel=gamma(call["x"].shape[-1] + 4))]


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    with restored():
        yield


def test_a_rounded_operator_is_computed_wide_and_bounded() -> None:
    assert rule("weighbridge_custom::doubled_norm")(bound) is bound
    x, context = torch.randn(5, 9), Listening()
    out = evaluate(OPS.doubled_norm.default, [x], {}, context)
    ((wide, limit),) = context.seen
    assert wide.dtype == torch.float64
    assert limit.rel == gamma(13)
    assert torch.equal(out, (torch.linalg.vector_norm(x.double(), dim=-1) * 2).float())


def test_a_move_is_run_as_it_is() -> None:
    rule("weighbridge_custom::reversed", kind="move")(backwards)
    x = torch.randn(4)
    assert torch.equal(evaluate(OPS.reversed.default, [x], {}, Listening()), x.flip(0))


def test_a_decomposition_needs_no_line_in_the_table() -> None:
    assert decompositions.find(OPS.reversed.default) is None
    before = rule_table.table_digest()
    rule("weighbridge_custom::reversed", kind="decomposed")(lambda x: x.flip(0) * 1)
    replace = decompositions.find(OPS.reversed.default)
    assert replace is not None
    assert replace(torch.arange(3)).tolist() == [2, 1, 0]
    assert rule_table.table_digest() == before
    with pytest.raises(UsageError, match="another rule"):
        rule("weighbridge_custom::reversed", kind="decomposed")(lambda x: x)


def test_operators_of_other_libraries_borrow_no_decomposition() -> None:
    assert decompositions.find(OPS.topk.default) is None
    with pytest.raises(UnknownOperationError, match=r"rule\('weighbridge_custom::topk.default'\)"):
        rule_table.find(OPS.topk.default, {})


def test_the_digest_of_the_table_holds_the_text_of_the_bound(tmp_path: Path) -> None:
    digests = [rule_table.table_digest()]
    for number, ulps in enumerate((4, 8)):
        (tmp_path / f"rules_{number}.py").write_text(
            "from weighbridge.numerics import rule\n"
            "from weighbridge.numerics.rounding.bound import Bound\n"
            f"@rule('weighbridge_custom::doubled_norm')\ndef same_name(call):\n    return [Bound(rel={ulps}e-16)]\n"
        )
        rule_table.RULES.pop("weighbridge_custom::doubled_norm.default", None)
        custom.load(str(tmp_path / f"rules_{number}.py"))
        digests.append(rule_table.table_digest())
        custom.load(str(tmp_path / f"rules_{number}.py"))  # the same text once more changes nothing
        assert rule_table.table_digest() == digests[-1]
    assert all(a != b for a, b in itertools.pairwise(digests))
    assert len(set(digests)) == 3
    with pytest.raises(UsageError, match="another rule"):
        custom.load(str(tmp_path / "rules_0.py"))
    assert rule_table.table_digest() == digests[-1]


def test_a_file_of_rules_may_import_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "weighbridge_neighbour.py").write_text("kind = 'move'\n")
    (tmp_path / "weighbridge_mine.py").write_text(
        "from weighbridge_neighbour import kind\nfrom weighbridge.numerics import rule\n"
        "rule('weighbridge_custom::reversed', kind=kind)(None)\n"
    )
    custom.load(str(tmp_path / "weighbridge_mine.py"))
    assert rule_table.known(OPS.reversed.default)


@pytest.mark.parametrize("name", ["nowhere.py", "no_such_module", "weighbridge_broken.py"])
def test_rules_that_cannot_be_loaded_are_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weighbridge_broken.py").write_text("1 / 0\n")
    with pytest.raises(UsageError, match=name):
        custom.load(name)


def test_rules_that_end_the_program_are_named(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text("raise SystemExit('wrong version')\n")
    with pytest.raises(UsageError, match=r"leaving\.py cannot be loaded \(SystemExit: wrong version"):
        custom.load(str(tmp_path / "leaving.py"))


@pytest.mark.parametrize("operator", ["aten::mm", "aten::add.Tensor", "aten::lerp.Scalar"])
def test_a_reviewed_line_is_not_replaced(operator: str) -> None:
    for kind in ("rounded", "decomposed"):
        with pytest.raises(UsageError, match="another rule"):
            rule(operator, kind=kind)(bound)  # type: ignore[arg-type]


@pytest.mark.parametrize("operator", ["mm", "a::b::c", "a::", "::b", "a::b.", "a::b c", ""])
def test_names_that_name_nothing_are_refused(operator: str) -> None:
    with pytest.raises(UsageError, match="names no operator"):
        rule(operator)


def test_kinds_that_are_not_the_users_are_refused() -> None:
    with pytest.raises(UsageError, match="random"):
        rule("weighbridge_custom::reversed", kind="random")  # type: ignore[arg-type]


def test_a_bound_without_a_text_is_refused() -> None:
    space: dict[str, Any] = {}
    exec("def nameless(call): return []", space)
    with pytest.raises(UsageError, match="no text"):
        rule("weighbridge_custom::doubled_norm")(space["nameless"])


def test_a_tape_may_name_an_operator_only_if_it_has_a_rule_here() -> None:
    name = "weighbridge_custom::doubled_norm.default"
    with pytest.raises(TapeError, match="not allowed"):
        resolve(name)
    rule("weighbridge_custom::doubled_norm")(bound)
    assert resolve(name) is OPS.doubled_norm.default


@pytest.mark.parametrize("name", ["never_seen::op.default", "os::system.default", "aten::mm.default", "::mm.default"])
def test_a_tape_cannot_make_a_namespace(name: str) -> None:
    with pytest.raises(TapeError, match="not allowed"):
        resolve(name)
    assert "never_seen" not in vars(torch.ops)


def test_the_count_of_an_operator_is_part_of_its_rule() -> None:
    def twice(operands: dict[str, Any], results: list[Any]) -> int:
        return int(2 * operands["x"].numel())

    op, x = OPS.doubled_norm.default, torch.ones(5, 9)
    rule("weighbridge_custom::doubled_norm")(bound)
    assert counts.count(op, [x], {}, torch.ones(5)) == 2 * (45 + 5) ** 2  # what any product keeps
    without = rule_table.table_digest()
    del rule_table.RULES["weighbridge_custom::doubled_norm.default"]
    rule("weighbridge_custom::doubled_norm", flops=twice)(bound)
    assert counts.count(op, [x], {}, torch.ones(5)) == 90
    assert rule_table.table_digest() != without
    rule("weighbridge_custom::reversed", kind="move")(backwards)
    assert counts.count(OPS.reversed.default, [x], {}, x) == 45


def test_a_decomposition_counts_as_its_parts() -> None:
    with pytest.raises(UsageError, match="leave out flops="):
        rule("weighbridge_custom::reversed", kind="decomposed", flops=lambda operands, results: 0)
