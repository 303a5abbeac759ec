"""An image is the content of what a release has: place, time, tool and order of an installation make no other one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from weighbridge.core.errors import UsageError
from weighbridge.execution import worker_process
from weighbridge.execution.sealed import building, bytecode, processors
from weighbridge.execution.sealed import image as images
from weighbridge.execution.sealed.image import Image

PACKAGE = {
    "thing/__init__.py": "from thing.part import NAMES\n", "thing/part.py": "NAMES = {'a', 'b', 'c'}\n",
    "thing/table.json": "{}", "thing/native.so": "\x7fELF", "thing/old.py": "print 'for Python 2'\n",
}  # fmt: skip
OURS = {"weighbridge/__init__.py": "X = 'a' in {'a', 'b', 'c', 'd', 1, 2}\n", "weighbridge/rule.txt": "one\n"}


def installed(at: Path, files: dict[str, str], when: int, names: list[str]) -> Path:
    """Writes files in an order and at a time of an installation's own."""
    for name in names:
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(files[name])
        os.utime(at / name, (when, when))
    return at


def made(at: Path, site: Path, own: Path) -> Image:
    building.arrange(at, {"code/weighbridge": own / "weighbridge"}, ours=True)
    building.arrange(at, {"site/thing": site / "thing"})
    building.compile_all(at)
    return images.measure(at)


def two(tmp_path: Path) -> tuple[Image, Image]:
    """Two installations of the same: earlier and later, in different places, of which one was used."""
    first = installed(tmp_path / "a", PACKAGE, 10**9, sorted(PACKAGE))
    installed(first, OURS, 10**9, sorted(OURS))
    other = tmp_path / "far" / "away" / "b"
    second = installed(other, PACKAGE, 2 * 10**9, sorted(PACKAGE, reverse=True))
    installed(second, OURS, 2 * 10**9, sorted(OURS, reverse=True))
    subprocess.run([sys.executable, "-c", "import thing"], cwd=second, check=True, env={**os.environ, "PYTHONPATH": ""})
    (second / "weighbridge" / "__pycache__").mkdir()
    (second / "weighbridge" / "__pycache__" / "loops.nbi").write_bytes(b"of this machine")
    (second / "weighbridge" / "notes.swp").write_text("of an editor")
    (second / "thing" / "table.json").chmod(0o600)
    (second / "thing" / "native.so").rename(second / "native")
    (second / "thing" / "native.so").symlink_to(second / "native")
    return made(tmp_path / "one", first, first), made(tmp_path / "two", second, second)


def test_place_time_order_and_use_of_an_installation_are_not_measured(tmp_path: Path) -> None:
    one, other = two(tmp_path)
    assert images.differences(one, other) == []
    assert one.measurement == other.measurement
    cache = f"__pycache__/part.{sys.implementation.cache_tag}.pyc"
    assert {f"site/thing/{cache}", "code/weighbridge/rule.txt"} <= {each.name for each in one.files}


@pytest.mark.parametrize("name", [*PACKAGE, *OURS])
def test_each_byte_of_an_installation_is_measured(name: str, tmp_path: Path) -> None:
    at = installed(tmp_path / "a", PACKAGE | OURS, 10**9, sorted(PACKAGE | OURS))
    one = made(tmp_path / "one", at, at)
    content = (at / name).read_text()
    (at / name).unlink()  # the image has a link to it
    (at / name).write_text(content + " ")
    changed = {each.name for each in images.differences(one, made(tmp_path / "two", at, at))}
    where = ("code/" if name in OURS else "site/") + name
    assert where in changed
    assert all(each.startswith(where.rpartition("/")[0]) for each in changed)


def test_bytecode_is_the_same_whatever_the_process_holds(tmp_path: Path) -> None:
    source = "def f(x):\n    '''About x.'''\n    return x in {'a', 'b', 'c', (1, 'd'), b'e'} or x == 'json'\n"
    written = []
    for seed, before in (("1", ""), ("2", "import json, typing, dataclasses; kept = ['a', 'b', 'About x.']; ")):
        at = tmp_path / seed
        at.mkdir()
        (at / "x.py").write_text(source)
        script = f"{before}import runpy, sys; sys.argv = ['it', {str(at)!r}, '0', '1']; "
        script += f"runpy.run_path({bytecode.__file__!r}, run_name='__main__')"
        subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        written.append(importlib.util.cache_from_source(str(at / "x.py"), optimization=""))
    assert Path(written[0]).read_bytes() == Path(written[1]).read_bytes()
    assert str(tmp_path).encode() not in Path(written[0]).read_bytes()


def test_python_uses_the_bytecode_and_asks_for_no_time(tmp_path: Path) -> None:
    code = bytecode.compiled(b"ANSWER = 1\n", "/site/answer.py")
    assert code is not None
    (tmp_path / "answer.py").write_text("ANSWER = 2\n")
    place = Path(importlib.util.cache_from_source(str(tmp_path / "answer.py"), optimization=""))
    place.parent.mkdir()
    place.write_bytes(code)
    done = subprocess.run(
        [sys.executable, "-c", "import answer; print(answer.ANSWER)"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "1\n"


@pytest.mark.parametrize("source", [b"print 'x'", b"\xff\xfe", b"\x00", b"x = " + b"(" * 300 + b")" * 300])
def test_what_is_no_source_has_no_bytecode(source: bytes) -> None:
    assert bytecode.compiled(source, "/site/x.py") is None


def test_only_packages_that_brought_something_are_described(tmp_path: Path) -> None:
    for name, rows in {
        "thing-1.dist-info": 'thing/__init__.py,sha256=x,1\n"thing/a,b.txt",,\n', "tool-2.dist-info": "tool.py,,\n",
        "weighbridge-0.1.0.dist-info": "weighbridge/__init__.py,,\n", "single-1.dist-info": "single.py,,\n",
    }.items():  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "RECORD").write_text(rows)
    found = {each.name for each in building.packages_of(tmp_path, {"thing", "single.py", "weighbridge"})}
    assert found == {"thing-1.dist-info", "single-1.dist-info"}


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "image" / images.FILES).mkdir(parents=True)
    with pytest.raises(UsageError, match="something is at"):
        building.build(tmp_path / "image")


def test_this_machine_is_of_the_kind_that_it_says() -> None:
    assert processors.runs(processors.kind_here())
    assert not processors.runs("none")
    assert not processors.runs("x86-64-v9")


def test_workers_of_workers_use_loops_of_the_same_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each session compiles all of them, which takes longer than it may."""
    for name, value in processors.environment(processors.kind_here()).items():
        monkeypatch.setenv(name, value)
        assert worker_process._environment(None)[name] == value
