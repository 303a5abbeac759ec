"""Stands in for CUDA's libraries, which PyTorch's build for ARM names but does not use without a device.

PyPI has one build of PyTorch for ARM, and it is linked to gigabytes of CUDA. The dynamic loader only asks that every
library exists and defines what is looked up in it. So each becomes a small library whose functions are one illegal
instruction: a program that called one would end at once.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

_UNVERSIONED = {"nccl": "libnccl", "cusparseLt": "libcusparseLt", "cuFile": "libcufile", "nvshmem": "libnvshmem_host"}
"""Beginnings of functions whose users do not say which library has them."""


@dataclass
class Library:
    """A library to stand in for: its functions by the version that users ask for; `` if by none."""

    functions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def missing(site: Path, there: list[Path]) -> dict[str, Library]:
    """Returns the libraries that PyTorch needs and that no directory has.

    Args:
        site: Where the wheels were unpacked.
        there: Directories in which the loader would find libraries.
    """
    users = sorted((site / "torch/lib").glob("*.so*"))
    have = {path.name for directory in (site / "torch/lib", *there) for path in directory.rglob("*.so*")}
    have |= {path.name for path in site.glob("*.libs/*")}
    lacking = {name: Library() for user in users for name in _named(user) if name not in have}
    for user in users:
        for function, version in _wanted(user):
            library = _home_of(function, version, lacking)
            if library is not None:
                lacking[library].functions[version].add(function)
    return lacking


def _home_of(function: str, version: str, lacking: dict[str, Library]) -> str | None:
    if version in lacking:
        return version
    if version == "NVSHMEM":
        function = "nvshmem"
    elif version:
        return None
    beginning = next((stem for prefix, stem in _UNVERSIONED.items() if function.startswith(prefix)), None)
    return next((name for name in lacking if beginning is not None and name.startswith(f"{beginning}.so")), None)


def _named(library: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.+)\]", _read("-d", library))


def _wanted(library: Path) -> list[tuple[str, str]]:
    """Functions that a library looks up elsewhere, each with its version or ``."""
    lines = (line.split() for line in _read("--dyn-syms", library).splitlines())
    names = (line[7].partition("@") for line in lines if len(line) > 7 and line[6] == "UND")
    return [(name, version.strip("@")) for name, _, version in names]


def _read(what: str, library: Path) -> str:
    return subprocess.run(["readelf", what, "-W", str(library)], capture_output=True, text=True, check=True).stdout


def build(libraries: dict[str, Library], into: Path, cross: Path) -> None:
    """Makes the libraries.

    Args:
        libraries: By file name.
        into: The directory for them.
        cross: Root of an unpacked assembler and linker for ARM.
    """
    into.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(cross / "usr/lib/x86_64-linux-gnu")}
    source, compiled, script = into / "stub.s", into / "stub.o", into / "stub.map"
    for name, library in sorted(libraries.items()):
        functions = sorted(set().union(*library.functions.values()))
        lines = (f".globl {f}\n.type {f},%function\n{f}: udf #0\n" for f in functions)
        source.write_text(".text\n" + "".join(lines))
        versions = {version: found for version, found in library.functions.items() if version}
        script.write_text("".join(f"{v} {{ global: {'; '.join(sorted(found))}; }};\n" for v, found in versions.items()))
        commands = [
            ["as", "-o", compiled, source],
            ["ld", "-shared", "-soname", name, "-o", into / name, compiled,
             *(["--version-script", script] if versions else [])],
        ]  # fmt: skip
        for tool, *arguments in commands:
            path = cross / f"usr/bin/aarch64-linux-gnu-{tool}"
            subprocess.run([str(path), *map(str, arguments)], check=True, env=environment)
    for leftover in (source, compiled, script):
        leftover.unlink(missing_ok=True)
