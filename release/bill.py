"""The bill of materials: what an installation of the wheel consists of, as CycloneDX JSON, from the locks.

It lists what a plain installation brings (scope `required`) and what the extras for users add (`optional`), with the
versions and digests of `constraints.lock`, the licences that the packages state, and who needs whom. It holds for Linux
on x86-64 with Python 3.11. The CUDA libraries of the plain build of PyTorch (`constraints-cuda.lock`) are optional.
Nothing in it depends on when or where it is made.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import License
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

LOCK, CUDA_LOCK = "constraints.lock", "constraints-cuda.lock"
DEVELOPMENT = frozenset({"dev", "fuzz"})
"""Extras that no user of the wheel needs."""

_ENVIRONMENT = {
    "implementation_name": "cpython",
    "implementation_version": "3.11.0",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_release": "",
    "platform_system": "Linux",
    "platform_version": "",
    "python_full_version": "3.11.0",
    "python_version": "3.11",
    "sys_platform": "linux",
}
_ENTRY = re.compile(
    r"^([A-Za-z0-9._-]+)==([^ \\\n]+)(?: ; [^\\\n]+)?((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Locked:
    """A release in a lock.

    Attributes:
        name: As the lock writes it.
        version: Of the release.
        digests: SHA-256 of its files, in hex.
    """

    name: str
    version: str
    digests: tuple[str, ...]


def locked(path: Path) -> dict[NormalizedName, Locked]:
    """Reads a lock of `uv pip compile --generate-hashes`."""
    entries = _ENTRY.findall(path.read_text(encoding="utf-8"))
    return {
        canonicalize_name(name): Locked(name, version, tuple(re.findall(r"[0-9a-f]{64}", digests)))
        for name, version, digests in entries
    }


class Needs:
    """Who needs whom, from the metadata of what is installed here. Every release must be the locked one.

    Attributes:
        of: For each package that was reached, which others it needs.
    """

    def __init__(self, releases: dict[NormalizedName, Locked], beside: frozenset[NormalizedName]) -> None:
        """Starts with nothing reached.

        Args:
            releases: What may be reached.
            beside: Packages that are not followed: they belong to another build than the one installed here.
        """
        self._releases, self._beside = releases, beside
        self._seen: set[tuple[NormalizedName, str]] = set()
        self.of: dict[NormalizedName, set[NormalizedName]] = {}

    def reach(self, requirement: Requirement) -> NormalizedName:
        """Follows a requirement to everything that it needs.

        Returns:
            The package that it names.

        Raises:
            LookupError: A package is not in the lock, or another release of it is installed here.
        """
        name = canonicalize_name(requirement.name)
        if name not in self._releases:
            raise LookupError(f"{requirement} is in no lock; run `make lock`")
        found = importlib.metadata.version(name).partition("+")[0]
        if found != self._releases[name].version:
            raise LookupError(
                f"{name} {found} is installed, and {self._releases[name].version} locked; run `make install`"
            )
        needed = self.of.setdefault(name, set())
        for extra in ("", *requirement.extras):
            if (name, extra) in self._seen:
                continue
            self._seen.add((name, extra))
            for each in _requirements(name, extra):
                if canonicalize_name(each.name) not in self._beside:
                    needed.add(self.reach(each))
        return name


def _requirements(name: NormalizedName, extra: str) -> Iterator[Requirement]:
    for line in importlib.metadata.requires(name) or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({**_ENVIRONMENT, "extra": extra}):
            yield requirement


def bill(root: Path, wheel: Path, epoch: int) -> str:
    """Returns the bill of materials of a wheel, as CycloneDX 1.6 in JSON.

    Args:
        root: Directory of `pyproject.toml` and the locks.
        wheel: The wheel, built from there.
        epoch: Time of the release in Unix seconds.

    Raises:
        LookupError: What is installed here is not what the locks say.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    releases, cuda = locked(root / LOCK), locked(root / CUDA_LOCK)
    needs = Needs(releases, frozenset(cuda))
    direct = {needs.reach(Requirement(line)) for line in project["dependencies"]}
    required = set(needs.of)
    for extra, lines in project["optional-dependencies"].items():
        if extra not in DEVELOPMENT:
            direct |= {needs.reach(Requirement(line)) for line in lines}
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    main = Component(
        name=project["name"], version=project["version"], type=ComponentType.APPLICATION, bom_ref=project["name"],
        description=project["description"], licenses=[LicenseFactory().make_from_string(project["license"])],
        purl=_purl(project["name"], project["version"]), hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
    )  # fmt: skip
    parts = {name: _component(releases[name], name in required, _licences(name)) for name in needs.of}
    parts |= {name: _component(each, required=False) for name, each in cuda.items()}
    tool = "cyclonedx-python-lib"
    made_by = Component(name=tool, version=releases[canonicalize_name(tool)].version, type=ComponentType.LIBRARY)
    out = Bom(
        components=parts.values(),
        serial_number=uuid.UUID(bytes=bytes.fromhex(digest)[:16], version=4),
        metadata=BomMetaData(
            component=main, tools=ToolRepository(components=[made_by]), timestamp=datetime.fromtimestamp(epoch, UTC)
        ),
    )
    out.register_dependency(main, [parts[name] for name in direct])
    for name, needed in needs.of.items():
        out.register_dependency(parts[name], [parts[each] for each in (*needed, *(cuda if name == "torch" else ()))])
    text: str = JsonV1Dot6(out).output_as_string(indent=1)
    return text + "\n"


def _component(release: Locked, required: bool, licences: list[License] | None = None) -> Component:
    purl = _purl(release.name, release.version)
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION, url=XsUri(purl.to_string()), comment="a file with one of these",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in release.digests],
    )  # fmt: skip
    return Component(
        name=release.name, version=release.version, type=ComponentType.LIBRARY, purl=purl, bom_ref=purl.to_string(),
        scope=ComponentScope.REQUIRED if required else ComponentScope.OPTIONAL,
        licenses=licences or (), external_references=[files],
    )  # fmt: skip


def _purl(name: str, version: str) -> PackageURL:
    return PackageURL(type="pypi", name=canonicalize_name(name), version=version)


def _licences(name: NormalizedName) -> list[License]:
    """Returns what a package states: an SPDX expression if it has one, else its short text, else its classifiers."""
    said = importlib.metadata.metadata(name)
    text = next((said[field] for field in ("License-Expression", "License") if field in said), "")
    if text and "\n" not in text and len(text) <= 200:
        return [LicenseFactory().make_from_string(text)]
    classes = [line for line in said.get_all("Classifier", []) if line.startswith("License :: ")]
    return [LicenseFactory().make_with_name(line.rpartition(" :: ")[2]) for line in classes]
