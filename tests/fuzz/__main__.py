"""Coverage-guided fuzzing of every target in turn: `python -m fuzz [--seconds S] [--only NAME] [--keep]`.

Atheris (libFuzzer for Python, https://github.com/google/atheris) is the fuzzer: it has wheels for the Pythons that this
project supports, is kept by its authors, and follows coverage inside the decoders' Python. Each target runs in a forked
process, with limits on memory and on the time of each input. It begins from the committed corpus and from `seeds`;
`--keep` writes what reached new code back to the corpus.

Exits with 1 if an input breaks a law; the input is in `tests/fuzz/found/`.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from contextlib import redirect_stderr
from pathlib import Path

import atheris

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Numba compiles bytecode as it was written, so modules with compiled loops are left as they are.
COMPILED = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "weighbridge").rglob("*.py")
    if re.search(r"\bcompiled\b|import numba|@jit\b", path.read_text())
]

with (
    redirect_stderr(io.StringIO()),  # it names every module
    atheris.instrument_imports(include=["weighbridge", "verifier"], exclude=COMPILED, enable_loader_override=False),
):
    from fuzz.seeds import seeds
    from fuzz.targets import TARGETS, keeps_the_laws

CORPUS, FOUND = HERE / "corpus", HERE / "found"
MEMORY_MIB, INPUT_SECONDS, INPUT_BYTES = 3000, 10, 4096
KEPT, KEPT_BYTES = 40, 1024
"""How many inputs of a target are kept, and how large each may be."""


def fuzz(name: str, seconds: int, reached: Path, log: Path) -> int:
    """Runs libFuzzer on one target in a process of its own; returns its exit status.

    Args:
        name: The target.
        seconds: For how long.
        reached: Directory of the first inputs; those that reach new code come to it.
        log: Where what libFuzzer says goes.
    """
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    said = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    arguments = [
        f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES}", f"-rss_limit_mb={MEMORY_MIB}",
        f"-timeout={INPUT_SECONDS}", f"-artifact_prefix={FOUND}/{name}-", "-print_final_stats=1", str(reached),
        str(CORPUS / name),
    ]  # fmt: skip

    def one(data: bytes) -> None:
        keeps_the_laws(name, data)

    try:
        atheris.Setup([f"fuzz-{name}", *arguments], one)
        atheris.Fuzz()  # ends the process
    except BaseException:
        traceback.print_exc()
    ctypes.CDLL(None).exit(1)  # libFuzzer writes the input; Python, which ends tidily in the first process, is left out
    raise AssertionError("unreachable")


def keep(name: str, reached: Path) -> None:
    """Replaces a target's corpus: of the inputs that reach some code of their own some of every size."""
    found = {each.read_bytes() for folder in (reached, CORPUS / name) for each in folder.iterdir()}
    small = sorted((data for data in found if len(data) <= KEPT_BYTES), key=lambda data: (len(data), data))
    small = [small[place * len(small) // KEPT] for place in range(KEPT)] if len(small) > KEPT else small
    for old in (CORPUS / name).iterdir():
        old.unlink()
    for number, data in enumerate(small):
        (CORPUS / name / f"{number:02d}").write_bytes(data)


def main() -> int:
    """Fuzzes all targets, or some."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0, help="for all targets together")
    parser.add_argument("--only", action="append", choices=TARGETS, help="a target; may be repeated")
    parser.add_argument("--keep", action="store_true", help="write what reached new code back to the corpus")
    options = parser.parse_args()
    names, begin, broken = options.only or list(TARGETS), seeds(), []
    FOUND.mkdir(exist_ok=True)
    print(f"{'target':18}{'seconds':>8}{'inputs':>10}{'coverage':>10}{'reached':>9}")
    for name in names:
        (CORPUS / name).mkdir(parents=True, exist_ok=True)
        # A forked process that ends tidily would remove a `TemporaryDirectory`.
        folder, begun = Path(tempfile.mkdtemp(prefix="weighbridge-fuzz-")), time.monotonic()
        reached, log = folder / "reached", folder / "log"
        try:
            reached.mkdir()
            for number, data in enumerate(begin[name]):
                (reached / f"seed-{number}").write_bytes(data)
            status = fuzz(name, max(1, int(options.seconds / len(names))), reached, log)
            said = log.read_text(errors="replace")
            inputs = re.findall(r"number_of_executed_units: *(\d+)", said)
            coverage = re.findall(r"cov: (\d+)", said)
            took, count = time.monotonic() - begun, len(list(reached.iterdir()))
            print(f"{name:18}{took:8.1f}{(inputs or ['?'])[-1]:>10}{(coverage or ['?'])[-1]:>10}{count:9}", flush=True)
            if status:
                broken.append(name)
                print(said[-3000:])
            if options.keep:
                keep(name, reached)
        finally:
            shutil.rmtree(folder)
    if broken:
        print(f"a law is broken in {', '.join(broken)}; the inputs are in {FOUND}")
    elif not any(FOUND.iterdir()):
        FOUND.rmdir()
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
