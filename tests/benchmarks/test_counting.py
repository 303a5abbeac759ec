"""What the benchmarks count."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.bench_differences import differing
from benchmarks.soak_checkpoints import totals


def test_elements_of_different_bits_are_counted(tmp_path: Path) -> None:
    one = {"a": torch.tensor([1.0, 0.0, 2.0]), "b": torch.ones(2, 2)}
    other = {"a": torch.tensor([1.0, -0.0, 2.0000002]), "b": torch.ones(2, 2)}
    save_file(one, tmp_path / "one")
    save_file(other, tmp_path / "other")
    assert differing(tmp_path / "one", tmp_path / "other") == 2
    assert differing(tmp_path / "one", tmp_path / "one") == 0


def test_runs_are_added_up() -> None:
    def run(matched: int, accused: int) -> dict[str, object]:
        ours = {"matched": matched, "not_matched": 0, "verdict": "match"}
        theirs = {"matched": matched - accused, "not_matched": accused}
        return {
            "checkpoints": matched,
            "replays": {"SSE2": ours, "AVX2": ours},
            "baseline": {"audits": {"SSE2": theirs, "AVX2": {"matched": matched, "not_matched": 0}}},
        }

    found = totals([run(100, 3), run(50, 1)])
    assert found["checkpoints"] == 150
    assert found["ours"]["AVX2"] == {"matched": 150, "not_matched": 0}
    assert found["baseline"] == {
        "SSE2": {"matched": 146, "not_matched": 4},
        "AVX2": {"matched": 150, "not_matched": 0},
    }
