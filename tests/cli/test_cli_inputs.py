"""Files that a user names: none of them is read into memory whole before somebody looks how large it is."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import weighbridge
from weighbridge.attest.manifest import load_or_create_key
from weighbridge.cli import job
from weighbridge.cli._inputs import MAX_FILE_BYTES, gib, read_file
from weighbridge.core.errors import TranscriptError, UsageError


def sparse(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


@pytest.mark.parametrize("device", ["/dev/zero", "link"])
def test_what_has_no_end_is_refused_at_the_limit(tmp_path: Path, device: str) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/zero")
    with pytest.raises(UsageError, match=f"more than {MAX_FILE_BYTES} bytes; name the right file"):
        read_file(Path(device) if device.startswith("/") else link)


def test_a_file_of_the_limit_is_read_and_one_byte_more_is_not(tmp_path: Path) -> None:
    assert len(read_file(sparse(tmp_path / "file", 100), max_bytes=100)) == 100
    with pytest.raises(UsageError, match="more than 99 bytes"):
        read_file(tmp_path / "file", max_bytes=99)


def test_a_pipe_is_read() -> None:
    end, other = os.pipe()
    os.write(other, b"piped")
    os.close(other)
    assert read_file(Path(f"/dev/fd/{end}")) == b"piped"
    os.close(end)


@pytest.mark.parametrize(
    "words",
    [
        ["registry", "event", "show", "FILE"],
        ["registry", "log", "verify", "FILE", "--public-key", "FILE"],
        ["report", "show", "FILE"],
        ["chip", "show", "127.0.0.1:1", "--credentials", "here", "--manufacturer", "FILE"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_command_refuses_a_huge_file_in_little_memory(tmp_path: Path, words: list[str]) -> None:
    huge = sparse(tmp_path / "huge", 6 << 30)
    sparse(tmp_path / "huge.entry", 6 << 30)
    ran = subprocess.run(
        [sys.executable, "-m", "weighbridge.cli", *(str(huge) if word == "FILE" else word for word in words)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)),
        capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "name the right file" in ran.stderr or "root" in ran.stderr


@pytest.mark.parametrize("empty", [True, False])
@pytest.mark.parametrize(
    "words",
    [
        ["show", "RUN"],
        ["replay", "RUN"],
        ["compare", "RUN", "RUN"],
        ["regenerate", "RUN"],
        ["tape", "show", "RUN"],
        ["tape", "passport", "RUN"],
        ["transcript", "export", "RUN", "copy"],
        ["dispute", "open", "RUN", "--step", "1", "--key", "KEY", "--out", "case"],
        ["dispute", "open", "RUN", "--own", "--key", "KEY", "--out", "case"],
        ["audit", "plant", "RUN", "copy", "--step", "1", "--key", "KEY"],
        ["audit", "order", "RUN", "--steps", "1", "--seed", "1", "--service", "5f" * 32, "--key", "KEY", "--out", "o"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_mistyped_directory_of_a_transcript_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], empty: bool
) -> None:
    """The exit code is 2, and the message names the directory and says what to do."""
    monkeypatch.chdir(tmp_path)
    run, key = tmp_path / "mistyped", tmp_path / "own.key"
    load_or_create_key(key)
    if empty:
        run.mkdir()
    code, out, err = weighbridge(*({"RUN": str(run), "KEY": str(key)}.get(word, word) for word in words))
    assert (code, out) == (2, ""), err
    (line,) = err.splitlines()
    assert str(run) in line
    assert "give the directory of a transcript" in line


def test_bad_usage_names_the_help_of_the_command_itself(tmp_path: Path) -> None:
    code, _, err = weighbridge("identity", "create", tmp_path / "ca")
    assert code == 2
    assert "'--name'; see `weighbridge identity create --help`" in err


def test_what_the_other_party_of_a_job_sent_is_a_regular_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(sparse(tmp_path / "file", 10))
    assert job._read(tmp_path / "file") == bytes(10)
    with pytest.raises(TranscriptError, match="regular files only"):
        job._read(tmp_path / "link")


@pytest.mark.parametrize("amount", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_what_is_no_amount_of_memory_is_refused(amount: float) -> None:
    assert gib(0.5, "--memory") == 1 << 29
    with pytest.raises(UsageError, match="--memory"):
        gib(amount, "--memory")
