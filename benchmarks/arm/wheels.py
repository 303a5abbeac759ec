"""The pinned Python packages for ARM: the files whose digests the project's locks list, unpacked into one directory."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYTHON = "3.11"
ROOTS = (("weighbridge", ("demo",)), ("pytest", ()))
"""What is used there, with extras."""

_ROOT = Path(__file__).parents[2]
_LOCKS = ("constraints.lock", "constraints-cuda.lock")
_THERE = {
    "platform_machine": "aarch64", "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix",
    "python_version": PYTHON, "implementation_name": "cpython", "platform_python_implementation": "CPython",
}  # fmt: skip
_PLATFORMS = ("manylinux2014_aarch64", "linux_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in range(17, 37)))
_FOR_DEVICES = ("nvidia-", "cuda-", "triton")
_LOADED_FOR_DEVICES = "nvidia-cuda-runtime"
"""The one package of CUDA's that PyTorch's build for ARM cannot be loaded without."""


def needed() -> list[str]:
    """Returns the names of all packages that `ROOTS` need there, as the packages installed here say."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    waiting: list[tuple[str, tuple[str, ...]]] = list(ROOTS)
    while waiting:
        found = waiting.pop()
        if found in seen or found[0].startswith(_FOR_DEVICES):
            continue
        seen.add(found)
        for line in metadata.requires(found[0]) or []:
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({**_THERE, "extra": extra}) for extra in ("", *found[1])):
                waiting.append((canonicalize_name(requirement.name), tuple(sorted(requirement.extras))))
    return sorted({name for name, _ in seen} - {"weighbridge"})


def locked(names: list[str]) -> str:
    """Returns the lines of the project's locks about some packages: releases, and the SHA-256 of each of their files.

    Raises:
        KeyError: No lock lists a package.
    """
    entries: dict[str, str] = {}
    for lock in _LOCKS:
        for entry in re.findall(r"^[^#\s][^\n]*==(?:[^\n]*\\\n)*[^\n]*\n", (_ROOT / lock).read_text(), re.MULTILINE):
            entries.setdefault(canonicalize_name(entry.partition("==")[0]), entry)
    return "".join(entries[name] for name in names)


def download(into: Path, names: list[str]) -> list[Path]:
    """Downloads the wheels of packages for ARM, each with a digest of the locks; returns the files."""
    into.mkdir(parents=True, exist_ok=True)
    wanted = into / "wanted.txt"
    wanted.write_text(locked(names))
    platforms = [option for platform in _PLATFORMS for option in ("--platform", platform)]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--require-hashes",
         "--no-deps", "--only-binary", ":all:", *platforms, "--python-version", PYTHON.replace(".", ""),
         "--implementation", "cp", "--dest", str(into), "-r", str(wanted)],
        check=True,
    )  # fmt: skip
    return sorted(into.glob("*.whl"))


def unpack(wheel: Path, into: Path) -> None:
    """Unpacks a wheel's packages as an installer would; its headers and scripts are left out."""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            name, parts = info.filename, info.filename.split("/")
            if parts[0].endswith(".data"):
                if parts[1] not in ("purelib", "platlib"):
                    continue
                name = "/".join(parts[2:])
            if not name or name.endswith("/") or "/include/" in name or ".." in parts:
                continue
            path = into / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(info))


def cuda_runtime(into: Path, scratch: Path) -> None:
    """Puts CUDA's runtime library, which does nothing without a device, into a directory."""
    into.mkdir(parents=True, exist_ok=True)
    (wheel,) = download(scratch, [_LOADED_FOR_DEVICES])
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if re.fullmatch(r"libcudart\.so\.\d+", Path(name).name):
                (into / Path(name).name).write_bytes(archive.read(name))


def describe_project(site: Path) -> None:
    """Copies what the installed project says of itself, which is its version, to where programs there look for it."""
    for file in metadata.files("weighbridge") or []:
        if file.name == "METADATA":
            target = site / str(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(file.read_text())


def compile_modules(site: Path) -> None:
    """Compiles all modules to bytecode here, which is the same there and takes a fraction of the time."""
    command = [sys.executable, "-m", "compileall", "-q", "-j", "1", str(site)]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
