"""Makes the image of an installation, so that another party can make the same one for itself.

What goes in depends on the content of files that a release has, and on nothing else: not on where they are installed,
when, by which tool or in which order. Bytecode is compiled anew (`bytecode`), and so are our loops, for one kind of
processor and in one fixed order. `images.differences` names what still differs: another release, or another system.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from weighbridge.core.errors import UsageError
from weighbridge.execution.sealed import bytecode
from weighbridge.execution.sealed import image as images
from weighbridge.execution.sealed.processors import environment, kind_here

_LOADERS = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
_LEFT_OUT = {
    "test", "tests", "include", "idlelib", "tkinter", "turtledemo", "ensurepip", "site-packages", "dist-packages",
    "__pycache__",
}  # fmt: skip
_NO_SUFFIXES = (".a", ".h", ".pyi", ".pyc")
_OURS = (".py", ".json", ".html", ".css", ".js", ".svg", ".md", ".csv", ".txt", ".mako", ".toml", "py.typed")
"""What our packages have when they are installed; a checkout may have more."""
_UTC = Path("/usr/share/zoneinfo/UTC")
_PACKAGES = ("weighbridge", "verifier", "analysis", "protos")
"""Ours, beside each other whether or not they are installed: what a session is made of."""
_KEPT = ("LD_LIBRARY_PATH", "PATH", "TMPDIR")
_PROBE = """
import _imp, json, sys, tempfile
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from pathlib import Path

class Placed(SourceFileLoader):  # compiled loops name the files of packages that may fail: as a worker has them
    def get_code(self, name):
        code = super().get_code(name)
        if self.path.startswith(sys.argv[2] + "/"):
            _imp._fix_co_filename(code, "/site" + self.path[len(sys.argv[2]):])
        return code

sys.path_hooks.insert(0, FileFinder.path_hook((ExtensionFileLoader, EXTENSION_SUFFIXES), (Placed, [".py"])))
sys.path_importer_cache.clear()
sys.path[:0] = sys.argv[1:]
import torch._dynamo, torch._refs
import weighbridge.execution.workers.sealed_worker
import weighbridge.execution.workers.sealed_referee
import weighbridge.execution.workers.fork_server_process
import verifier.sealed.session_worker
import verifier.sealed.part_worker
from verifier.registry import Registry
from weighbridge.core import jit
from weighbridge.execution.workers.serving import prepare
import mpmath, safetensors.torch, scipy.special, scipy.stats, xxhash, zstandard, nacl.signing
prepare("cpu", lambda done, total: None)
with tempfile.TemporaryDirectory() as scratch:
    Registry(Path(scratch) / "registry").close()
assert not jit.lost()
files = [module.__file__ for module in list(sys.modules.values()) if getattr(module, "__file__", None)]
maps = [line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if len(line.split()) > 5]
print(json.dumps(sorted({name for name in [*files, *maps] if name.startswith("/") and Path(name).is_file()})))
"""


def build(directory: Path) -> images.Image:
    """Makes the image of this installation: its files, and the list of them.

    Files of packages are linked where the file system permits, which takes no room, and else copied. Python and its
    compilers replace files and do not write into them, so an installation that is used later leaves the image as it is.

    Args:
        directory: Where to; nothing may be there yet.

    Raises:
        UsageError: Something is there, or a sealed worker does not start here.
    """
    root, kind = directory / images.FILES, kind_here()
    try:
        root.mkdir(parents=True)
        (directory / images.EMPTY).mkdir()
    except FileExistsError:
        raise UsageError(f"something is at {directory} already; name another directory") from None
    own = Path(__file__).resolve().parents[3]
    for package in _PACKAGES:
        arrange(root, {f"code/{package}": own / package}, ours=True)
    (root / images.PROCESSOR).write_text(kind)
    arrange(root, _closure(root, kind))
    _described(root)
    compile_all(root)
    image = images.measure(root)
    (directory / images.MANIFEST).write_bytes(image.to_cbor())
    return image


def arrange(root: Path, places: Mapping[str, Path], *, ours: bool = False) -> None:
    """Puts files below a root.

    Args:
        root: Of an image.
        places: Where they are: by path in the image, a file or directory each.
        ours: Whether they are our code, which loops are compiled of: copies, all with one time of change.
    """
    for name, path in _walked(places, ours):
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            if ours:
                raise OSError("a link has the time of what it is linked to")
            os.link(path.resolve(), target)
        except OSError:
            shutil.copyfile(path, target)
        if ours:
            os.utime(target, ns=(images.CHANGED_NS, images.CHANGED_NS))


def compile_all(root: Path) -> None:
    """Compiles the bytecode of all sources below a root, on all processors.

    Raises:
        UsageError: It cannot.
    """
    shards = os.cpu_count() or 1
    command = [sys.executable, "-I", "-S", "-B", bytecode.__file__, str(root)]
    running = [subprocess.Popen([*command, str(each), str(shards)]) for each in range(shards)]
    if any([each.wait() for each in running]):
        raise UsageError("the bytecode of an image cannot be compiled here; what Python said stands above")


def packages_of(site: Path, tops: set[str]) -> Iterator[Path]:
    """Yields the directories that describe the packages that brought what an image has, and no others.

    Args:
        site: Where packages are installed.
        tops: Names of files and directories there that the image has.
    """
    for record in sorted(site.glob("*.dist-info/RECORD")):
        rows = (line.split(",", 1)[0].strip('"') for line in record.read_text("utf-8", "replace").splitlines())
        if tops & {row.split("/", 1)[0] for row in rows} and not record.parent.name.startswith("weighbridge-"):
            yield record.parent


def _closure(root: Path, kind: str) -> dict[str, Path]:
    """Compiles our loops below a root and returns where all else is that a worker loads.

    Raises:
        UsageError: A sealed worker does not start here.
    """
    site = Path(sysconfig.get_path("purelib")).resolve()
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-s", "-S", "-P", "-B", "-c", _PROBE, str(root.resolve() / "code"), str(site)],
        capture_output=True, text=True, check=False,
        env={**kept, "HOME": "/", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1",
             **environment(kind)},
    )  # fmt: skip
    if done.returncode:
        raise UsageError(f"a worker does not load here: {done.stderr.strip().splitlines()[-1:]}")
    standard = Path(sysconfig.get_path("stdlib")).resolve()
    numbered = f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = {images.INTERPRETER: Path(sys.executable).resolve(), f"usr/lib/{numbered}": standard}
    if _UTC.is_file():  # or the package `tzdata` is there
        places[_UTC.relative_to("/").as_posix()] = _UTC.resolve()
    tops: set[str] = set()
    for name in json.loads(done.stdout.splitlines()[-1]):
        path = Path(name).resolve()
        if path == places[images.INTERPRETER] or path.is_relative_to(root.resolve()):
            continue
        if path.is_relative_to(site):
            tops.add(path.relative_to(site).parts[0])
        elif path.is_relative_to(standard):
            continue
        elif ".so" in path.name and path.name.startswith("ld-"):
            places[_LOADERS[platform.machine()]] = path
        elif ".so" in path.name:
            names = {each.name for each in path.parent.iterdir() if each.is_symlink() and each.resolve() == path}
            places |= {f"lib/{each}": path for each in {path.name, *names} if ".so." in each or each == path.name}
    places |= {f"site/{top}": site / top for top in tops}
    for each in packages_of(site, tops):  # which versions there are, a report says
        places[f"site/{each.name}/METADATA"] = each / "METADATA"
    return places


def _described(root: Path) -> None:
    """Says which version of ours it is, whether it is installed or a checkout."""
    place = root / "site" / f"weighbridge-{version('weighbridge')}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: weighbridge\nVersion: {version('weighbridge')}\n")


def _walked(places: Mapping[str, Path], ours: bool) -> Iterator[tuple[str, Path]]:
    for name, path in sorted(places.items()):
        if path.is_file():
            yield name, path
        for directory, folders, files in os.walk(path):
            folders[:] = sorted(f for f in folders if f not in _LEFT_OUT and not f.startswith("config-"))
            at = Path(directory)
            for file in sorted(files):
                wanted = file.endswith(_OURS) if ours else not file.endswith(_NO_SUFFIXES)
                if wanted and (at / file).is_file():
                    yield f"{name}/{(at / file).relative_to(path)}", at / file
