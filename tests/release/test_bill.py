"""The bill of materials follows its schema, lists what the locks say, and depends on nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

pytest.importorskip("cyclonedx", reason="cyclonedx-python-lib is not installed: pip install 'weighbridge[dev]'")
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from release import bill

ROOT = Path(__file__).resolve().parents[2]
EPOCH = 1_700_000_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wheel") / "weighbridge.whl"
    path.write_bytes(b"the bytes of a wheel")
    return path


@pytest.fixture(scope="module")
def text(wheel: Path) -> str:
    return bill.bill(ROOT, wheel, EPOCH)


@pytest.fixture(scope="module")
def listed(text: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(text)
    return value


def components(listed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in listed["components"]}


def test_it_follows_the_schema(text: str) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace('"type": "library"', '"type": "livery"', 1)) is not None


def test_the_same_wheel_has_the_same_bill(text: str, wheel: Path) -> None:
    assert bill.bill(ROOT, wheel, EPOCH) == text
    other = wheel.with_name("other.whl")
    other.write_bytes(b"the bytes of another wheel")
    assert json.loads(bill.bill(ROOT, other, EPOCH))["serialNumber"] != json.loads(text)["serialNumber"]


def test_each_release_and_each_digest_is_that_of_the_lock(listed: dict[str, Any]) -> None:
    lock = (ROOT / bill.LOCK).read_text() + (ROOT / bill.CUDA_LOCK).read_text()
    for each in listed["components"]:
        (files,) = each["externalReferences"]
        assert f"\n{each['name']}=={each['version']} " in f"\n{lock}"
        assert files["hashes"]
        assert all(f"--hash=sha256:{digest['content']}" in lock for digest in files["hashes"])


def test_what_a_plain_installation_brings_is_required_and_nothing_of_development_is_listed(
    listed: dict[str, Any],
) -> None:
    found = components(listed)
    scopes = {name: each["scope"] for name, each in found.items()}
    assert {scopes[name] for name in ("torch", "numba", "llvmlite", "protobuf", "cffi", "sympy")} == {"required"}
    assert {scopes[name] for name in ("transformers", "ray", "pyarrow", "psycopg-binary", "nvidia-nccl-cu13")} == {
        "optional"
    }
    assert not {"pytest", "ruff", "mypy", "hypothesis", "atheris", "cyclonedx-python-lib"} & set(found)
    assert found["torch"]["licenses"]


def test_everything_listed_can_be_reached_from_the_package(listed: dict[str, Any]) -> None:
    needs = {each["ref"]: each.get("dependsOn", []) for each in listed["dependencies"]}
    reached, waiting = set(), ["weighbridge"]
    while waiting:
        ref = waiting.pop()
        if ref not in reached:
            reached.add(ref)
            waiting += needs[ref]
    assert reached == {"weighbridge", *(each["bom-ref"] for each in listed["components"])}


def test_a_package_that_no_lock_names_is_refused() -> None:
    with pytest.raises(LookupError, match="is in no lock"):
        bill.Needs({}, frozenset()).reach(Requirement("torch>=2"))


def test_a_lock_of_another_release_than_the_installed_one_is_refused(wheel: Path, tmp_path: Path) -> None:
    for name in ("pyproject.toml", bill.LOCK, bill.CUDA_LOCK):
        shutil.copy(ROOT / name, tmp_path)
    lock = (tmp_path / bill.LOCK).read_text()
    (tmp_path / bill.LOCK).write_text(lock.replace("\nnumpy==", "\nnumpy==0."))
    with pytest.raises(LookupError, match=r"numpy .* locked; run `make install`"):
        bill.bill(tmp_path, wheel, EPOCH)
