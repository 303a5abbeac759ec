"""The bundle's form: what was written is read back, and a hostile file writes nothing outside its directory."""

from __future__ import annotations

import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifier.evidence import bundle
from verifier.evidence.bundle import EvidenceError, LeftOut, Statement, Subject
from weighbridge.attest.dsse import DocumentError
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.errors import UsageError, WeighbridgeError

KEY = SigningKey.generate()
NAMES = st.from_regex(r"\A[a-z0-9_]{1,6}(/[a-z0-9_][a-z0-9_.-]{0,5}){0,3}\Z")


def packed(root: Path, parts: dict[str, bytes]) -> Path:
    files = {}
    for number, (name, content) in enumerate(parts.items()):
        files[name] = root / f"part{number}"
        files[name].write_bytes(content)
    out = root / "file.zip"
    bundle.write(out, files)
    return out


@settings(max_examples=40, deadline=None)
@given(parts=st.dictionaries(NAMES, st.binary(max_size=200), max_size=6))
def test_parts_are_read_back(parts: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Law: reading what was written gives the same parts, for all names of which none is a folder of another."""
    if any(other.startswith(f"{name}/") for name in parts for other in parts):
        return
    root = tmp_path_factory.mktemp("parts")
    (root / "out").mkdir()
    found = bundle.read(packed(root, parts), root / "out")
    assert {name: path.read_bytes() for name, path in found.items()} == parts


@settings(max_examples=60, deadline=None)
@given(
    finding=st.none() | st.integers(0, 9), entry=st.none() | st.integers(0, 9), text=st.text(max_size=9),
    digest=st.sampled_from(["", "ab" * 32]),
)  # fmt: skip
def test_a_statement_is_read_back(finding: int | None, entry: int | None, text: str, digest: str) -> None:
    """Law: opening a signed statement gives it and its signer back."""
    made = Statement(
        inspection="i", made_at="2026-01-01T00:00:00Z", software={"weighbridge": text},
        subject=Subject(finding=finding, chip="01" + "cd" * 16, entry=entry, transcript=digest),
        parts={"report.dsse": bundle.Part(bytes=3, blake3="ef" * 32)},
        left_out=(LeftOut(what=text, bytes=5, digest=digest, why="w"),),
    )  # fmt: skip
    assert bundle.open_statement(made.sign(KEY)) == (made, (KEY.public,))


@given(data=st.binary(max_size=300))
def test_hostile_statements_raise_only_our_errors(data: bytes) -> None:
    """Law: whatever bytes are read as a statement, they are one or a `DocumentError`."""
    with pytest.raises(DocumentError):
        bundle.open_statement(data)


def _zip(path: Path, *names: str, kind: int = zipfile.ZIP_STORED, mode: int = 0o100644, content: bytes = b"x") -> None:
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name in names:
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr, info.compress_type = 3, mode << 16, kind
            archive.writestr(info, content)


HOSTILE: dict[str, Callable[[Path], None]] = {
    "leads upwards": lambda path: _zip(path, "../../escaped"),
    "leads upwards from within": lambda path: _zip(path, "a/../../escaped"),
    "is absolute": lambda path: _zip(path, "/tmp/escaped"),
    "has a drive": lambda path: _zip(path, "C:\\escaped"),
    "is hidden": lambda path: _zip(path, ".bashrc"),
    "is twice there": lambda path: _zip(path, "a", "a"),
    "is a folder and a file": lambda path: _zip(path, "a", "a/b"),
    "is a link": lambda path: _zip(path, "a", mode=stat.S_IFLNK | 0o777, content=b"/etc/passwd"),
    "expands": lambda path: _zip(path, "a", kind=zipfile.ZIP_DEFLATED, content=bytes(10 << 20)),
    "is too deep": lambda path: _zip(path, "/".join("abcdefghij")),
    "has a long name": lambda path: _zip(path, "a" * 5000),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.finding("evidence.malformed")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_bundle_writes_nothing_outside(name: str, tmp_path: Path) -> None:
    root = tmp_path / "deep" / "deeper"
    (root / "out").mkdir(parents=True)
    HOSTILE[name](root / "file.zip")
    before = {path for path in tmp_path.rglob("*") if root / "out" not in path.parents}
    with pytest.raises((EvidenceError, UsageError)) as caught:
        bundle.read(root / "file.zip", root / "out")
    assert caught.value.reason in ("evidence.malformed", "evidence.altered", "usage")
    assert {path for path in tmp_path.rglob("*") if root / "out" not in path.parents} == before
    assert not any(path.is_symlink() or path.stat().st_size > 1 << 20 for path in (root / "out").rglob("*"))


def test_honest_bytes_in_another_form_are_refused(tmp_path: Path) -> None:
    """Something before, between or behind the parts, or another order: nobody signed that."""
    good = packed(tmp_path, {"a": b"1", "b": b"2"}).read_bytes()
    reordered = tmp_path / "reordered.zip"
    with zipfile.ZipFile(reordered, "w") as archive:
        for name, content in (("b", b"2"), ("a", b"1")):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o100644 << 16
            archive.writestr(info, content)
    for number, data in enumerate((b"#!/bin/sh\n" + good, good + b"x", good[:-1], reordered.read_bytes())):
        (tmp_path / "bad.zip").write_bytes(data)
        (tmp_path / f"out{number}").mkdir()
        with pytest.raises(EvidenceError):
            bundle.read(tmp_path / "bad.zip", tmp_path / f"out{number}")


def test_a_bundle_that_claims_too_many_parts_is_refused_before_they_are_read(tmp_path: Path) -> None:
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 60_001, 60_001, 100, 0, 0)
    (tmp_path / "many.zip").write_bytes(bytes(1000) + end)
    with pytest.raises(EvidenceError, match="at most 60000 parts"):
        bundle.read(tmp_path / "many.zip", tmp_path)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_hostile_bytes_raise_only_our_errors(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Law: whatever bytes are read as a bundle, and whatever is changed in one, only `WeighbridgeError` is raised."""
    root = tmp_path_factory.mktemp("bytes")
    (root / "out").mkdir()
    content = bytearray(packed(root, {"a": b"1", "b/c": b"2" * 50}).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (root / "bad.zip").write_bytes(bytes(content) if data.draw(st.booleans()) else data.draw(st.binary(max_size=100)))
    try:
        bundle.read(root / "bad.zip", root / "out")
    except WeighbridgeError:
        return
    assert (root / "bad.zip").read_bytes() == (root / "file.zip").read_bytes()
