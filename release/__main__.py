"""Makes wheel, source distribution and bill of materials of the commit that is checked out; `make dist` runs it."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from release import distributions
from release.bill import bill

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str] | None = None) -> None:
    """Writes the files of a release; a working tree with changes is refused, since no commit would have its bytes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("dist"))
    options = parser.parse_args(arguments)
    if _git("status", "--porcelain", "--untracked-files=no"):
        sys.exit("commit your changes first: a release is made from a commit")
    for path in make(options.out, int(_git("log", "-1", "--format=%ct"))):
        print(path)


def make(out: Path, epoch: int) -> list[Path]:
    """Writes the three of the working tree to `out`, as of `epoch` (Unix seconds), and returns their paths."""
    with tempfile.TemporaryDirectory() as scratch:
        distributions.tracked(ROOT, Path(scratch) / "tree")
        source = distributions.sdist(Path(scratch) / "tree", out, epoch)
        wheel = distributions.wheel(distributions.unpacked(source, Path(scratch) / "source"), out, epoch)
    materials = out / f"{source.name.removesuffix('.tar.gz')}.cdx.json"
    materials.write_text(bill(ROOT, wheel, epoch), encoding="utf-8")
    return [source, wheel, materials]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
