"""Builds the wheel and the source distribution, byte for byte the same from the same files.

The build works on a copy of the files that git tracks, so that nothing else of a working tree gets in. Their modes, the
umask and all times are set; the version of setuptools is pinned. The wheel is made from the source distribution.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

_BUILD = "import sys, setuptools.build_meta as backend; print(getattr(backend, sys.argv[1])(sys.argv[2]))"
_PLAIN, _EXECUTABLE = 0o644, 0o755


def tracked(root: Path, to: Path) -> None:
    """Copies the files of the working tree `root` that git tracks, with their present content."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, stdout=subprocess.PIPE, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if not (root / name).is_file():
            continue  # removed, and not yet committed
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / name, target)
        target.chmod(_EXECUTABLE if os.access(root / name, os.X_OK) else _PLAIN)


def sdist(tree: Path, out: Path, epoch: int) -> Path:
    """Builds the source distribution of `tree` and returns its path; `epoch` (Unix seconds) is the time of all files.

    Raises:
        subprocess.CalledProcessError: The backend failed; it has said why on standard error.
    """
    made = out / _built("build_sdist", tree, out, epoch)
    _settle(made, epoch)
    return made


def wheel(tree: Path, out: Path, epoch: int) -> Path:
    """Builds the wheel of `tree`; see `sdist`."""
    return out / _built("build_wheel", tree, out, epoch)


def unpacked(archive: Path, to: Path) -> Path:
    """Unpacks a source distribution and returns its only directory."""
    with tarfile.open(archive) as file:
        file.extractall(to, filter="data")
    (root,) = to.iterdir()
    return root


def _built(hook: str, tree: Path, out: Path, epoch: int) -> str:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    out.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, hook, str(out.resolve())],
        cwd=tree, env=environment, umask=0o022, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()[-1]


def _settle(archive: Path, epoch: int) -> None:
    """Writes a .tar.gz anew without what depends on when, where and by whom it was made."""
    entries: list[tuple[tarfile.TarInfo, bytes]] = []
    with tarfile.open(archive) as file:
        for entry in file:
            content = file.extractfile(entry)
            entries.append((entry, b"" if content is None else content.read()))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as file:
        for old, data in sorted(entries, key=lambda each: each[0].name):
            new = tarfile.TarInfo(old.name)
            new.type, new.size, new.mtime = old.type, len(data), epoch
            new.mode = _EXECUTABLE if old.isdir() or old.mode & 0o100 else _PLAIN
            file.addfile(new, io.BytesIO(data))
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))
