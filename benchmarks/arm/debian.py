"""Debian's packages for ARM, and the emulator, fetched by apt in roots of its own: nothing on this machine changes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

RELEASE = "bookworm"
"""Whose Python, 3.11, runs there."""

INSIDE = ("python3.11", "libgomp1", "libstdc++6", "dash", "coreutils")
"""What is installed for ARM; apt adds what they depend on."""

DIRECTORIES = ("dev", "proc", "sys", "tmp", "site", "src", "runs", "cache")
"""Places in the root at which something is mounted when it is used."""

_MIRROR = "http://deb.debian.org/debian"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SOURCES = (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*")))
_TOOLS = ("apt-get", "dpkg-deb", "unshare", "readelf")


class SetupError(Exception):
    """Something that the set-up needs is missing here; the message says what."""


def require() -> None:
    """Checks that this machine has what the set-up needs.

    Raises:
        SetupError: A tool or Debian's keyring is missing.
    """
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise SetupError(f"{', '.join(missing)} not found: this runs on Debian or Ubuntu, with binutils and util-linux")
    if not _KEYRING.exists():
        raise SetupError(
            f"{_KEYRING} not found: install debian-archive-keyring, which Debian's packages are verified with"
        )


def mirror() -> str:
    """Returns the mirror of Debian that this machine uses, or the usual one."""
    for path in _SOURCES:
        text = path.read_text() if path.is_file() else ""
        found = re.search(r"^(?:URIs:|deb\b.*?)\s*(https?://\S+/debian)/?(?:\s|$)", text, re.MULTILINE)
        if found:
            return found[1]
    return _MIRROR


class Apt:
    """apt with its own lists, cache and status: as if nothing were installed."""

    def __init__(self, home: Path, architecture: str, suite: str) -> None:
        """Makes the root and reads the mirror's list.

        Args:
            home: A directory for it, which is made.
            architecture: Debian's name, such as `arm64`.
            suite: Such as `bookworm`.

        Raises:
            subprocess.CalledProcessError: The mirror cannot be reached; apt's message is on stderr.
        """
        self._home = home
        for name in ("parts", "lists", "preferences", "state/lists/partial", "cache/archives/partial"):
            (home / name).mkdir(parents=True, exist_ok=True)
        (home / "status").touch()
        for part in Path("/etc/apt/apt.conf.d").glob("*"):
            shutil.copy(part, home / "parts")  # proxies and certificates
        (home / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {mirror()} {suite} main\n")
        (home / "apt.conf").write_text(
            f'APT::Architecture "{architecture}"; APT::Architectures {{ "{architecture}"; }};\n'
            f'Dir::State "{home}/state"; Dir::State::status "{home}/status"; Dir::Cache "{home}/cache";\n'
            f'Dir::Etc::main "-"; Dir::Etc::parts "{home}/parts"; Dir::Etc::sourcelist "{home}/sources.list";\n'
            f'Dir::Etc::sourceparts "{home}/lists"; Dir::Etc::preferencesparts "{home}/preferences";\n'
            f'APT::Sandbox::User "root"; Acquire::Languages "none";\n'
        )
        self._run("update")

    def _run(self, *arguments: str) -> None:
        environment = {**os.environ, "APT_CONFIG": str(self._home / "apt.conf")}
        subprocess.run(["apt-get", "-qq", *arguments], check=True, env=environment, cwd=self._home)

    def with_dependencies(self, *packages: str) -> list[Path]:
        """Downloads packages and what they depend on; returns the files."""
        self._run("install", "-y", "--no-install-recommends", "--download-only", *packages)
        return sorted((self._home / "cache/archives").glob("*.deb"))

    def alone(self, package: str) -> Path:
        """Downloads one package; returns its file."""
        self._run("download", package)
        return next(self._home.glob(f"{package}_*.deb"))


def unpack(package: Path, into: Path) -> None:
    """Unpacks a package's files; none of its scripts run."""
    into.mkdir(parents=True, exist_ok=True)
    subprocess.run(["dpkg-deb", "-x", str(package), str(into)], check=True)


def prepare(home: Path) -> None:
    """Makes `root` (Python for ARM), `qemu` (the emulator) and `cross` (an assembler and linker for ARM) below `home`.

    QEMU comes from backports: version 7.2, which the release has, crashes where PyTorch asks what the processor can do.
    """
    scratch = home / "apt"
    shutil.rmtree(scratch, ignore_errors=True)
    for package in Apt(scratch / "arm", "arm64", RELEASE).with_dependencies(*INSIDE):
        unpack(package, home / "root")
    unpack(Apt(scratch / "qemu", "amd64", f"{RELEASE}-backports").alone("qemu-user"), home / "qemu")
    unpack(Apt(scratch / "cross", "amd64", RELEASE).alone("binutils-aarch64-linux-gnu"), home / "cross")
    for name in DIRECTORIES:
        (home / "root" / name).mkdir(exist_ok=True)
    shutil.rmtree(scratch)
