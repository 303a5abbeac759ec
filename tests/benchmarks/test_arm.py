"""What `make arm` does around the emulator: which files it takes, what it records, and when it says that runs agree."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine, tables_arm
from benchmarks.arm import subjects, wheels
from benchmarks.arm.__main__ import GOLDEN, Evidence, outcome
from benchmarks.arm.stubs import Library, _home_of

ROOT = Path(__file__).parents[2]
RECORDED = {"policy": "strict", "steps": 3, "state": "ab", "rounded": 10, "logged": 2}
REPLAYED = {
    "verdict": "match", "states": ["ab"], "rounded": 10, "calibrated": 0, "logged": 2, "followed": 1,
    "first_difference": None, "seconds": 1.0,
}  # fmt: skip


def test_every_package_has_its_release_and_digests_in_a_lock() -> None:
    names = wheels.needed()
    assert {"torch", "numba", "transformers", "pytest"} <= set(names)
    assert not [name for name in names if name.startswith(("nvidia", "cuda", "triton"))]
    lines = wheels.locked(names)
    assert len(re.findall(r"^[A-Za-z][\w.-]*==", lines, re.MULTILINE)) == len(names)
    assert lines.count("--hash=sha256:") > len(names)
    with pytest.raises(KeyError, match="no-such-package"):
        wheels.locked(["no-such-package"])


def test_a_wheel_is_unpacked_within_its_directory(tmp_path: Path) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("a/one.py", "a-1.data/purelib/a/two.py", "a-1.data/scripts/a", "a/include/a.h", "../outside"):
            archive.writestr(name, "x")
    wheels.unpack(wheel, tmp_path / "site")
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == ["a-1-py3-none-any.whl", "site/a/one.py", "site/a/two.py"]


@pytest.mark.parametrize(
    ("function", "version", "library"),
    [
        ("cublasSgemm", "libcublas.so.13", "libcublas.so.13"), ("ncclSend", "", "libnccl.so.2"),
        ("anything", "NVSHMEM", "libnvshmem_host.so.3"), ("malloc", "GLIBC_2.17", None), ("cblas_sgemm", "", None),
    ],
)  # fmt: skip
def test_a_function_is_looked_for_where_its_users_say(function: str, version: str, library: str | None) -> None:
    lacking = {name: Library() for name in ("libcublas.so.13", "libnccl.so.2", "libnvshmem_host.so.3")}
    assert _home_of(function, version, lacking) == library


def test_what_is_recorded_exists() -> None:
    modules = {path.stem for path in (ROOT / "tests/zoo").glob("test_zoo_*.py")}
    assert {test.partition(".")[0] for test in subjects.ZOO.values()} == modules, "one training of each family"
    for test in subjects.ZOO.values():
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / "tests/zoo" / file).read_text()
    for name in subjects.GOLDEN:
        assert (GOLDEN / name.removeprefix("golden: ")).is_dir()
    assert {recording.policy for recording in subjects.RECORDINGS.values()} == {"strict", "calibrated"}


@pytest.mark.parametrize("change", [{"verdict": "mismatch"}, {"verdict": "inconclusive"}, {"states": ["cd"]}])
def test_a_replay_that_ends_elsewhere_does_not_agree(change: dict[str, Any]) -> None:
    assert outcome(REPLAYED, RECORDED)["agreed"]
    assert not outcome(REPLAYED | change, RECORDED)["agreed"]


def test_results_are_added_up_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    evidence = Evidence()
    evidence.processor("a64fx", {"capability": "DEFAULT"})
    evidence.add("demo: digits", "x86 to a64fx", outcome(REPLAYED, RECORDED))
    there = outcome(REPLAYED | {"verdict": "mismatch"}, RECORDED) | {"equal_tapes": 1, "same_operations": 3}
    Evidence().add("demo: digits", "a64fx to x86", there)
    result = machine.load("arm")
    assert result is not None
    assert (result["replays"], result["roundings"], result["agreed"]) == (2, 20, False)
    text = tables_arm.arm(result)
    assert "| a64fx to x86 | 1 | 10 | 0 | 2 | 1 | 1 | 1 of 3 |" in text
    assert "| x86 to a64fx | 1 | 10 | 0 | 2 | 1 | 0 | - |" in text
