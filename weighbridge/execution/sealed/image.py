"""The image of a sealed worker: every file that it has, listed with its digest, and nothing beside them.

The list is the whole closure: interpreter, its library, packages, this code with the loops that were compiled of it,
and the system's libraries. The *measurement* is a digest of the list. A worker gets copies, made in memory and compared
with the list on the way, so what runs is what was measured, also if the originals change meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from weighbridge.attest.sealed_order import SealedWorkerError
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, UsageError

INTERPRETER = "usr/bin/python"
LIBRARIES = ("usr", "site", "code", "lib", "lib64")
"""Directories of an image."""
MANIFEST, FILES, EMPTY = "image.cbor", "root", "empty"
"""What a directory of an image has: the list, the files, and a directory in whose place a worker has its own memory."""
_DOMAIN = b"weighbridge/sealed-image/1\x00"
_ITEMS = 1 << 20
_CHUNK = 1 << 20
_LOADERS = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
_LEFT_OUT = {"test", "tests", "include", "idlelib", "tkinter", "turtledemo", "ensurepip", "site-packages"}
_UTC = Path("/usr/share/zoneinfo/UTC")
_PACKAGES = ("weighbridge", "verifier", "analysis", "protos")
"""Ours, beside each other whether or not they are installed: what a session is made of."""
_NO_SUFFIXES = (".a", ".h", ".pyi")
_PROBE = """
import json, sys, tempfile
from pathlib import Path
import torch._dynamo, torch._refs
import weighbridge.execution.workers.sealed_worker
import weighbridge.execution.workers.sealed_referee
import weighbridge.execution.workers.fork_server_process
import verifier.sealed.session_worker
from verifier.registry import Registry
from weighbridge.execution.workers.serving import prepare
import mpmath, safetensors.torch, scipy.special, scipy.stats, xxhash, zstandard, nacl.signing
prepare("cpu")
with tempfile.TemporaryDirectory() as scratch:
    Registry(Path(scratch) / "registry").close()
files = [module.__file__ for module in list(sys.modules.values()) if getattr(module, "__file__", None)]
maps = [line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if len(line.split()) > 5]
print(json.dumps(sorted({name for name in [*files, *maps] if name.startswith("/") and Path(name).is_file()})))
"""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One file of an image.

    Attributes:
        name: Its path below the worker's root.
        size: Its size in bytes.
        time: When it was last changed, in nanoseconds: compiled code is only used for source with this time.
        digest: The BLAKE3 digest of its content (32 bytes).
    """

    name: str
    size: int
    time: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Image:
    """All files of a sealed worker, ascending by name."""

    files: tuple[ImageFile, ...]

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            FormatError: A field is none of its kind, or names are out of order or lead out of the image.
        """
        for each in self.files:
            parts = each.name.split("/")
            if parts[0] not in LIBRARIES or any(part in ("", ".", "..") for part in parts) or "\x00" in each.name:
                raise FormatError("a file of an image has a name that leads elsewhere")
            if each.size < 0 or len(each.digest) != 32:
                raise FormatError("a file of an image has no size or no digest")
        if any(one.name >= two.name for one, two in pairwise(self.files)):
            raise FormatError("the names of an image's files do not ascend")

    @property
    def measurement(self) -> bytes:
        """SHA-384 of the list (48 bytes): another one for any other byte of any file."""
        return hashlib.sha384(_DOMAIN + self.to_cbor()).digest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(each.size for each in self.files)

    def to_cbor(self) -> bytes:
        """Returns the one encoding of this list."""
        return cbor([[each.name, each.size, each.time, each.digest] for each in self.files])

    @classmethod
    def from_cbor(cls, data: bytes) -> Image:
        """Reads a list.

        Raises:
            FormatError: The bytes are not the encoding of one.
        """
        files, listed = [], decode_cbor(data, max_depth=3, max_items=_ITEMS)
        for each in listed if isinstance(listed, list) else [listed]:
            match each:
                case [str(name), int(size), int(time), bytes(digest)]:
                    files.append(ImageFile(name, size, time, digest))
                case _:
                    raise FormatError("a file of an image is not a name, a size, a time and a digest")
        found = cls(tuple(files))
        if found.to_cbor() != data:
            raise FormatError("the list of an image is not in its one encoding")
        return found


def closure() -> dict[str, Path]:
    """Returns where the files of this installation's image are: by path in the image, a file or directory each.

    Raises:
        UsageError: A sealed worker does not start here.
    """
    done = subprocess.run([sys.executable, "-P", "-c", _PROBE], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"a worker does not load here: {done.stderr.strip().splitlines()[-1:]}")
    standard, own = Path(sysconfig.get_path("stdlib")).resolve(), Path(__file__).resolve().parents[2]
    site = Path(sysconfig.get_path("purelib")).resolve()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = {INTERPRETER: Path(sys.executable).resolve(), f"usr/lib/{version}": standard}
    places |= {f"code/{package}": own.parent / package for package in _PACKAGES}
    if _UTC.is_file():  # or the package `tzdata` is there
        places[_UTC.relative_to("/").as_posix()] = _UTC.resolve()
    for each in site.glob("*.dist-info/METADATA"):  # which versions there are, a report says
        places[f"site/{each.parent.name}/{each.name}"] = each
    for name in json.loads(done.stdout.splitlines()[-1]):
        path = Path(name).resolve()
        if path == places[INTERPRETER] or any(path.is_relative_to(own.parent / package) for package in _PACKAGES):
            continue
        if path.is_relative_to(site):
            top = path.relative_to(site).parts[0]
            places[f"site/{top}"] = site / top
        elif path.is_relative_to(standard):
            continue
        elif ".so" in path.name and path.name.startswith("ld-"):
            places[_LOADERS[platform.machine()]] = path
        elif ".so" in path.name:
            names = {each.name for each in path.parent.iterdir() if each.is_symlink() and each.resolve() == path}
            places |= {f"lib/{each}": path for each in {path.name, *names} if ".so." in each or each == path.name}
    return places


def build(directory: Path) -> Image:
    """Makes the image of this installation: its files, and the list of them.

    Files are linked where the file system permits, which takes no room, and else copied. Python and its compilers
    replace files and do not write into them, so an installation that is used later leaves the image as it is.

    Args:
        directory: Where to; nothing may be there yet.

    Raises:
        UsageError: Something is there, or a sealed worker does not start here.
    """
    places = closure()
    try:
        (directory / FILES).mkdir(parents=True)
        (directory / EMPTY).mkdir()
    except FileExistsError:
        raise UsageError(f"something is at {directory} already; name another directory") from None
    for name, path in _walked(places):
        target = directory / FILES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path.resolve(), target)
        except OSError:
            shutil.copy2(path, target)
    image = measure(directory / FILES)
    (directory / MANIFEST).write_bytes(image.to_cbor())
    return image


def measure(root: Path) -> Image:
    """Lists the files below a directory, in one order whatever the directory's is."""
    paths = {str(path.relative_to(root)): path for path in root.rglob("*") if not path.is_dir()}
    return Image(tuple(_measured(name, paths[name]) for name in sorted(paths)))


def load(directory: Path) -> Image:
    """Reads the list of an image.

    Raises:
        UsageError: There is none.
        FormatError: It is malformed.
    """
    try:
        return Image.from_cbor((directory / MANIFEST).read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}; make an image by `weighbridge site image`") from None


def copy(image: Image, source: Path, root: Path) -> None:
    """Copies an image below a root; each byte that is written was measured.

    Raises:
        SealedWorkerError: A file is not there, or not the one of the list (`sealed.image`).
    """
    for each in image.files:
        target = root / each.name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with (source / each.name).open("rb") as original, target.open("xb") as copied:
                size, digest = _read(original, copied)
        except OSError:
            size, digest = -1, b""
        if (size, digest) != (each.size, each.digest):
            raise SealedWorkerError(
                f"{each.name} is not the file of the image; install what was agreed on, or agree on a new image",
                code="sealed.image",
            )
        os.utime(target, ns=(each.time, each.time))
        # An interpreter that cannot be read cannot be attached to either, from its first instruction on.
        target.chmod(0o111 if each.name == INTERPRETER else 0o555)


def _walked(places: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    for name, path in sorted(places.items()):
        if path.is_file():
            yield name, path
        for directory, folders, files in os.walk(path):
            folders[:] = sorted(f for f in folders if f not in _LEFT_OUT and not f.startswith("config-"))
            at = Path(directory)
            for file in sorted(files):
                if not file.endswith(_NO_SUFFIXES) and (at / file).is_file():
                    yield f"{name}/{(at / file).relative_to(path)}", at / file


def _measured(name: str, path: Path) -> ImageFile:
    with path.open("rb") as source:
        size, digest = _read(source, None)
        return ImageFile(name, size, os.fstat(source.fileno()).st_mtime_ns, digest)


def _read(source: BinaryIO, copied: BinaryIO | None) -> tuple[int, bytes]:
    size, digest = 0, blake3()
    while chunk := source.read(_CHUNK):
        size += len(chunk)
        digest.update(chunk)
        if copied is not None:
            copied.write(chunk)
    return size, digest.digest()
