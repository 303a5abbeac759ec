"""Files with secrets: only their owner may read them, whatever the umask, and others' permissions are refused."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from weighbridge.core import secret_files
from weighbridge.core.errors import UsageError


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_secret_is_made_once_and_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "key"
    before = os.umask(0)
    try:
        assert secret_files.read_or_make(path, lambda: b"first") == b"first"
    finally:
        os.umask(before)
    assert mode(path) == 0o600
    assert secret_files.read_or_make(path, lambda: b"second") == b"first"
    assert [each.name for each in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("permissions", [0o640, 0o604, 0o660, 0o644, 0o777])
def test_a_secret_that_others_may_read_is_refused_with_the_command_that_mends_it(
    permissions: int, tmp_path: Path
) -> None:
    path = tmp_path / "a key"
    path.write_bytes(b"x")
    path.chmod(permissions)
    with pytest.raises(UsageError) as caught:
        secret_files.read_or_make(path, lambda: b"y")
    command = f"chmod 600 {shlex.quote(str(path))}"
    assert f"`{command}`" in caught.value.message
    subprocess.run(command, shell=True, check=True)
    assert secret_files.read_or_make(path, lambda: b"y") == b"x"


def test_permissions_of_others_are_taken_away(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    for path, permissions in ((shared, 0o754), (own, 0o600)):
        path.write_bytes(b"x")
        path.chmod(permissions)
    assert secret_files.make_private(shared, own, tmp_path / "missing") == [shared]
    assert (mode(shared), mode(own)) == (0o700, 0o600)
    secret_files.require_private(shared, own, tmp_path / "missing")


def test_a_process_that_keeps_to_its_owner_publishes_what_is_meant_for_others(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from weighbridge.core import secret_files as s; at = Path(sys.argv[1])\n"
        "s.keep_to_owner(); (at / 'file').write_text('x'); (at / 'folder').mkdir(); s.publish(at / 'key.pub', 'public')"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, umask=0o022)
    assert {path.name: mode(path) for path in tmp_path.iterdir()} == {"file": 0o600, "folder": 0o700, "key.pub": 0o644}
    assert (tmp_path / "key.pub").read_text() == "public"
