"""Secret criteria, from the command that writes them to a Verifier's plan and report."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from support.command_line import weighbridge
from support.station import LIMIT_OPTIONS, Station, service

from verifier.model.segments import Criterion, Secret
from weighbridge.cli.inspect.operator import connect
from weighbridge.core.errors import FormatError, UsageError


def test_criteria_are_written_once_and_for_their_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "criteria.json"
    options = ("--step", "12", "--every", "7:3", "--tensor", "model.0.weight:0.5", "--out", file)
    code, out, _ = weighbridge("inspect", "criteria", *options)
    secret = Secret.load(file)
    assert code == 0
    assert out.strip() == secret.commitment()
    wanted = (Criterion("step", 12), Criterion("every", 7, 3.0), Criterion("tensor", 0, 0.5, "model.0.weight"))
    assert secret.criteria == wanted
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert weighbridge("inspect", "criteria", *options)[0] == 2  # another salt would be lost
    code, out, _ = weighbridge("inspect", "criteria", "--step", "1", "--out", tmp_path / "other", "--json")
    assert json.loads(out)["commitment"] == Secret.load(tmp_path / "other").commitment()


@pytest.mark.parametrize(
    "options",
    [(), ("--every", "7"), ("--every", "0:0"), ("--every", "x:1"), ("--every", "nan:1"), ("--tensor", "a"),
     ("--tensor", "a:b"), ("--tensor", "a:nan"), ("--step", "-1")],
    ids=str,
)  # fmt: skip
def test_criteria_that_make_no_sense(tmp_path: Path, options: tuple[str, ...]) -> None:
    code, _, err = weighbridge("inspect", "criteria", *options, "--out", tmp_path / "file")
    assert code == 2
    assert err.startswith("weighbridge: usage: ")
    assert not (tmp_path / "file").exists()


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Secret.load(tmp_path / "missing")
    (tmp_path / "file").touch(0o600)
    for content in (b"", b"{}", b"\xff", b"[" * 100_000, b'{"salt": "00", "criteria": []}'):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(FormatError):
            Secret.load(tmp_path / "file")


def test_a_verifier_commits_to_its_criteria_in_every_plan(tmp_path: Path) -> None:
    file = tmp_path / "criteria.json"
    _, commitment, _ = weighbridge("inspect", "criteria", "--step", "5", "--out", file)
    root = tmp_path / "station"
    root.mkdir()
    with Station(root) as station:
        station.chip("idle")
        arguments = [
            *("--db", str(root / "db"), "--cache", str(root / "cache"), "--criteria", str(file)),
            *("--credentials", str(root / "verifier"), "--manufacturer", str(root / "manufacturer.pem")),
            *("--firmware", str(root / "firmware.img"), *LIMIT_OPTIONS),
        ]
        with (
            service("serve verifier", arguments, root / "verifier.address") as address,
            connect(address, root / "operator") as operator,
        ):
            operator.register(ueid=station.ueids["idle"], chip=station.chips["idle"].address, prover="")
            started = operator.start(
                samples=1, seed=bytes(16), flops_threshold=2.0, chip_flops_per_day=1.0, period_days=2.0,
                snapshot_rate_per_day=1.0, random_segments=2, largest_segments=1, memorisation=1, records=3,
                peak_flops=1e12, chosen_order="warning",
            )  # fmt: skip
            stages = [line.stage for line in operator.watch(started)]
            report = operator.report(started)
    assert stages[-1] == "done"
    assert report["plan"]["segments"] == {
        "random": 2, "largest": 1, "memorisation": 1, "records": 3, "sensitivity": 0, "recognise": 2,
        "commitment": commitment.strip(),
    }  # fmt: skip
    assert report["plan"]["peak_flops"] == 1e12
    assert report["plan"]["transcripts"]["order"] == "warning"
