"""Generates the Python modules of the gRPC services from their `.proto` files.

Run `python -m protos.generate` after changing a `.proto` file and commit what it writes: users need no compiler then.
A test regenerates and compares.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The repository: import paths of `.proto` files and of the generated modules both begin here."""


def sources() -> list[Path]:
    """Returns the `.proto` files, relative to the repository, in a fixed order."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / "protos").rglob("*.proto"))


def generate(out: Path) -> None:
    """Writes message modules, their type stubs and service modules below `out`.

    Args:
        out: Directory that stands for the repository's root: modules appear in `protos/weighbridge/v1/` below it.

    Raises:
        RuntimeError: The compiler refused a file; its own message is on standard error.
    """
    from grpc_tools import protoc  # Only developers have the compiler installed.

    options = [f"--proto_path={ROOT}", f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}"]
    if protoc.main(["protoc", *options, *(path.as_posix() for path in sources())]) != 0:
        raise RuntimeError("protoc refused the files; see its message above")


def main() -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m protos.generate", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT, help="where to write (default: this repository)")
    generate(parser.parse_args().out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
