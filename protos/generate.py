"""Generates the Python modules of the gRPC services from their `.proto` files.

Run `python -m protos.generate` after changing a `.proto` file and commit what it writes: users need no compiler then.
A test regenerates and compares.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from protos import validation

ROOT = Path(__file__).resolve().parent.parent
"""The repository: import paths of `.proto` files and of the generated modules both begin here."""

_RULES = "from buf.validate import validate_pb2 as ", "from protos import validation as "
"""How the compiler imports the rules of `buf/validate/validate.proto`, and where they really are."""


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

    options = [f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}"]
    with tempfile.TemporaryDirectory() as temporary:
        arguments = search_options(Path(temporary)) + options + [path.as_posix() for path in sources()]
        if protoc.main(["protoc", *arguments]) != 0:
            raise RuntimeError("protoc refused the files; see its message above")
    for source in sources():
        for suffix in ("_pb2.py", "_pb2.pyi"):
            path = out / source.with_name(source.stem + suffix)
            path.write_text(path.read_text().replace(*_RULES))


def search_options(temporary: Path) -> list[str]:
    """Returns the compiler's options that tell where `.proto` files are; `temporary` must exist while it runs."""
    imported = temporary / "imported.binpb"
    imported.write_bytes(validation.file_set().SerializeToString())
    return [f"--proto_path={ROOT}", f"--descriptor_set_in={imported}"]


def main() -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m protos.generate", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT, help="where to write (default: this repository)")
    generate(parser.parse_args().out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
