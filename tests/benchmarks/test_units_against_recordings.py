"""Recordings of GPUs are read in both forms, and one wrong bit in them is counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.units_against_recordings import Compared, Recordings, compare

# Of Khattak and Mikaitis (github.com/north-numerical-computing/MATLAB-tensor-core, BSD-2-Clause): their first sum.
A = "3f7a0000 3f870000 bea60000 3fbf0000 bf3d0000 3ead0000 3f800000 3fe80000"
B = "3f190000 bf260000 3ed70000 3e9d0000 bff30000 3ef20000 bfc10000 bf900000"
C, D = 0x3E8E06AD, 0xBFBE56D5


def text(path: Path, d: int = D) -> Path:
    """A checkout with one recorded sum, said twice."""
    directory = path / "model_validation" / "A100" / "bf16"
    directory.mkdir(parents=True)
    for name, line in (
        ("a_A100_bf16", A),
        ("b_A100_bf16", B),
        ("c_A100_fp32", f"{C:032b}"),
        ("d_A100_fp32", f"{d:032b}"),
    ):
        (directory / f"{name}.txt").write_text(f"{line} \n{line.replace(f'{d:032b}', f'{D:032b}')}\n")
    return path


def archive(path: Path, d: int = D) -> Path:
    """The same as an archive."""
    arrays = {
        "a_A100_bf16": [[int(word, 16) for word in A.split()]] * 2,
        "b_A100_bf16": [[int(word, 16) for word in B.split()]] * 2,
        "c_A100_fp32": [C, C],
        "d_A100_fp32": [d, D],
    }
    np.savez(path / "recorded.npz", **{f"A100.bf16.{each}": np.array(x, np.uint32) for each, x in arrays.items()})
    return path / "recorded.npz"


@pytest.mark.parametrize("form", [text, archive])
@pytest.mark.parametrize(("d", "differ"), [(D, 0), (D ^ 1, 1)])
def test_a_wrong_bit_is_counted(form: object, d: int, differ: int, tmp_path: Path) -> None:
    recordings = Recordings(form(tmp_path, d))  # type: ignore[operator]
    assert list(compare(recordings)) == [Compared("A100", "bf16", "fp32", "a100", 8, 2, differ)]


def test_without_recordings_nothing_is_compared(tmp_path: Path) -> None:
    assert list(compare(Recordings(tmp_path))) == []
