"""What is in the wheel and in the source distribution, and that the same files give the same bytes."""

from __future__ import annotations

import os
import stat
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import weighbridge
from release import distributions

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("analysis", "firmware_sim", "protos", "prover", "verifier", "weighbridge")
EPOCH = 1_700_000_000


def tracked(*paths: str) -> set[str]:
    """Files of the repository below `paths`."""
    listed = subprocess.run(["git", "ls-files", "-z", *paths], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    return {name for name in listed.decode().split("\0") if name and (ROOT / name).exists()}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("built") / "tree"
    distributions.tracked(ROOT, path)
    return path


@pytest.fixture(scope="module")
def sdist(tree: Path) -> Path:
    return distributions.sdist(tree, tree.parent / "out", EPOCH)


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    source = distributions.unpacked(sdist, sdist.parents[1] / "source")
    return distributions.wheel(source, sdist.parent, EPOCH)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_the_wheel_has_every_file_of_every_package_and_nothing_else(wheel: Path) -> None:
    information = f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info"
    names = set(contents(wheel))
    assert {name for name in names if not name.startswith(information)} == tracked(*PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES if package != "protos"} <= names
    assert {Path(name).suffix for name in names} >= {".ipynb", ".toml", ".csv", ".json", ".html", ".mako", ".proto"}
    assert f"{information}/licenses/LICENSE" in names
    assert b"weighbridge = weighbridge.cli.main:main" in contents(wheel)[f"{information}/entry_points.txt"]


def test_files_are_those_of_the_tree(wheel: Path) -> None:
    found = contents(wheel)
    assert all(found[name] == (ROOT / name).read_bytes() for name in tracked(*PACKAGES))


def test_the_source_distribution_has_what_a_build_needs_and_no_tests(sdist: Path) -> None:
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames() if file.getmember(name).isfile()}
    made = {"PKG-INFO", "setup.cfg", *(name for name in names if name.startswith("weighbridge.egg-info/"))}
    beside = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"}
    assert names - made == tracked(*PACKAGES) | beside


def test_the_wheel_is_the_same_from_the_tree(tree: Path, wheel: Path, tmp_path: Path) -> None:
    assert distributions.wheel(tree, tmp_path, EPOCH).read_bytes() == wheel.read_bytes()


def test_the_same_files_give_the_same_bytes_whoever_builds_where(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        distributions.tracked(ROOT, tmp_path / "elsewhere")
        again = distributions.sdist(tmp_path / "elsewhere", tmp_path, EPOCH)
        source = distributions.unpacked(again, tmp_path / "source")
        for path in source.rglob("*"):
            os.utime(path)
        rebuilt = distributions.wheel(source, tmp_path, EPOCH)
    finally:
        os.umask(before)
    assert again.read_bytes() == sdist.read_bytes()
    assert rebuilt.read_bytes() == wheel.read_bytes()
    later = distributions.sdist(tmp_path / "elsewhere", tmp_path / "later", EPOCH + 2)
    assert later.read_bytes() != sdist.read_bytes()  # the time is that of the commit, and nothing else's


def test_files_that_git_does_not_track_stay_out_and_modes_are_two(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    (root / "package").mkdir(parents=True)
    for name in ("kept.py", "run.sh", "stray.py", "removed.py"):
        (root / "package" / name).write_text(name)
    (root / "package" / "run.sh").chmod(0o700)
    (root / "package" / "kept.py").chmod(0o600)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "add", "package/kept.py", "package/run.sh", "package/removed.py"], cwd=root, check=True)
    (root / "package" / "removed.py").unlink()
    distributions.tracked(root, tmp_path / "copy")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "copy" / "package").iterdir()}
    assert modes == {"kept.py": 0o644, "run.sh": 0o755}


def test_the_version_has_a_section_in_the_changelog() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert any(line.split(" - ")[0] == f"## [{version}]" for line in lines)
    assert weighbridge.__version__ == version
