"""An image is all of its files: another byte is another measurement, and only what was measured is copied."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from weighbridge.attest.sealed_order import SealedWorkerError
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, UsageError
from weighbridge.execution.sealed import image as images
from weighbridge.execution.sealed.image import Image, ImageFile

FILES = {
    "code/it/a.py": b"print(1)\n", "code/it/deep/b.so": b"\x7fELF" * 9, "code/it/deep/c.py": b"", "site/z.json": b"{}",
}  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "image" / images.FILES
    for name, content in {**FILES, images.INTERPRETER: b"interpreter"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def below(root: Path) -> dict[str, bytes]:
    """The content of all files; root may read those that are only for executing, others may not."""
    for path in root.rglob(Path(images.INTERPRETER).name):
        path.chmod(0o755)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def refused(image: Image, source: Path, root: Path) -> None:
    root.mkdir()
    with pytest.raises(SealedWorkerError) as caught:
        images.copy(image, source, root)
    assert caught.value.reason == "sealed.image"
    shutil.rmtree(root)


def test_what_was_measured_is_copied(source: Path, tmp_path: Path) -> None:
    image = images.measure(source)
    (tmp_path / "root").mkdir()
    images.copy(image, source, tmp_path / "root")
    assert (tmp_path / "root" / images.INTERPRETER).stat().st_mode & 0o777 == 0o111
    for name in FILES:  # code that was compiled of a source is used for this time of it only
        assert (tmp_path / "root" / name).stat().st_mtime_ns == images.CHANGED_NS
    assert below(tmp_path / "root") == {images.INTERPRETER: b"interpreter", **FILES}


def test_the_list_is_read_as_it_was_written(source: Path, tmp_path: Path) -> None:
    image = images.measure(source)
    (source.parent / images.MANIFEST).write_bytes(image.to_cbor())
    assert images.load(source.parent) == image
    assert images.load(source.parent).measurement == image.measurement
    with pytest.raises(UsageError):
        images.load(tmp_path)


def test_a_copy_elsewhere_has_the_same_measurement(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "copy", copy_function=shutil.copy)
    for path in (tmp_path / "copy").rglob("*"):
        path.chmod(0o700)
        os.utime(path, (7, 7))
    assert images.measure(tmp_path / "copy") == images.measure(source)


def test_differences_name_each_file_that_is_not_shared(source: Path) -> None:
    one = images.measure(source)
    assert images.differences(one, one) == []
    (source / "code/it/a.py").write_bytes(b"print(2)\n")
    (source / "site/z.json").rename(source / "site/y.json")
    two = images.measure(source)
    found = {each.name: (each.one is not None, each.two is not None) for each in images.differences(one, two)}
    assert found == {"code/it/a.py": (True, True), "site/y.json": (False, True), "site/z.json": (True, False)}
    assert [each.name for each in images.differences(two, one)] == sorted(found)


@pytest.mark.finding("sealed.image")
def test_an_image_that_differs_by_one_byte_is_refused(source: Path, tmp_path: Path) -> None:
    image = images.measure(source)
    for name, content in FILES.items():
        path = source / name
        for other in (content + b"x", content[:-1] + b"\x01" if content else b"y"):
            path.write_bytes(other)
            refused(image, source, tmp_path / "root")
            assert images.measure(source).measurement != image.measurement
        path.write_bytes(content)
    assert images.measure(source).measurement == image.measurement
    (source / "code/it/a.py").unlink()
    refused(image, source, tmp_path / "root")


def test_a_further_file_is_measured_and_not_copied_unless_it_was(source: Path, tmp_path: Path) -> None:
    image = images.measure(source)
    (source / "code" / "sitecustomize.py").write_bytes(b"evil")
    assert images.measure(source).measurement != image.measurement
    (tmp_path / "root").mkdir()
    images.copy(image, source, tmp_path / "root")
    assert b"evil" not in below(tmp_path / "root").values()


def test_every_field_of_a_file_is_measured(source: Path) -> None:
    image = images.measure(source)
    first = image.files[0]
    others = [replace(first, name="code/it/a.pa"), replace(first, size=1), replace(first, digest=bytes(32))]
    measured = {Image((each, *image.files[1:])).measurement for each in others}
    assert len(measured | {image.measurement}) == 4


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "code/../x", "tmp/x", "code//x", "code/./x", "code/x\x00", "", "code/"]
)
def test_a_name_leads_nowhere_else(name: str) -> None:
    with pytest.raises(FormatError):
        Image((ImageFile(name, 0, bytes(32)),))


def test_other_lists_are_none() -> None:
    file = ["code/x", 1, bytes(32)]
    lists = [[file, file], [file[:2]], [["code/x", 1, 1, bytes(32)]], [["code/x", -1, bytes(32)]], 7, [7]]
    for each in (*map(cbor, lists), b""):
        with pytest.raises(FormatError):
            Image.from_cbor(each)
