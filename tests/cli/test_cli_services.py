"""`weighbridge chip`, `identity` and `inspect` against real services, with every way to fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.command_line import fails, weighbridge

from weighbridge.cli.demo.command import MARKER, prepare
from weighbridge.cli.demo.station import Station, station
from weighbridge.core.errors import UsageError

DEAD = "127.0.0.1:9"  # the discard port: no service listens there


@dataclass(frozen=True)
class House:
    directory: Path
    running: Station

    def address(self, *parts: str) -> str:
        return self.directory.joinpath(*parts, "address").read_text().strip()

    @property
    def operator(self) -> list[str]:
        credentials = self.directory / "operator" / "credentials"
        return ["--verifier", self.address("verifier"), "--credentials", str(credentials)]

    def log_options(self, role: str = "operator") -> list[str]:
        manufacturer = self.directory / "manufacturer" / "authority.pem"
        return ["--credentials", str(self.directory / role / "credentials"), "--manufacturer", str(manufacturer)]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    directory = tmp_path_factory.mktemp("house") / "station"
    with station(directory, runs=directory.parent, chips=["one", "two"], rate_per_day=0.1, clock_speed=1.0) as running:
        yield House(directory, running)


def plan(*changes: str) -> list[str]:
    return ["--samples", "2", "--threshold", "1e21", "--chip-flops", "1e15", "--period", "30", *changes]


def test_a_clean_inspection_from_the_command_line(house: House, tmp_path: Path) -> None:
    code, out, _ = weighbridge("inspect", "chips", *house.operator, "--json")
    assert code == 0
    assert {row["site"] for row in json.loads(out)["chips"]} == {"one", "two"}
    seed = "5a" * 32
    options = plan("--rate", "0.1", "--seed", seed, "--cells", "--chunks", "7")
    code, out, err = weighbridge("inspect", "start", *house.operator, *options, "--json")
    assert code == 0, err
    started = json.loads(out)
    assert started["seed"] == seed
    code, _, err = weighbridge("inspect", "watch", started["inspection"], *house.operator)
    assert code == 0, err
    out_dir = ["--out", str(tmp_path / "report")]
    code, out, err = weighbridge("inspect", "report", started["inspection"], *house.operator, *out_dir)
    assert code == 0, out + err
    said = out.partition(": ")[2]
    assert said.startswith("nothing was due, nothing was checked\n2 of 2 chips drawn; 2 have nothing against them")
    report: dict[str, Any] = json.loads((tmp_path / "report" / "report.json").read_text())
    assert (report["plan"]["seed"], report["plan"]["sharded"], report["plan"]["chunks"]) == (seed, "cells", 7)
    assert (report["plan"]["segments"]["random"], report["plan"]["segments"]["largest"]) == (1, 1)  # by default
    assert (tmp_path / "report" / "report.html").read_text().lstrip().lower().startswith("<!doctype html>")


def test_a_draw_that_nobody_can_steer_from_the_command_line(house: House, tmp_path: Path) -> None:
    options = plan("--rate", "0.1", "--samples", "1", "--strata", "site", "--cutoff", "1")
    options += ["--random-segments", "0", "--largest-segments", "0"]
    code, out, err = weighbridge("inspect", "start", *house.operator, *options, "--json")
    assert code == 0, err
    started = json.loads(out)
    assert started["seed"] is None
    assert weighbridge("inspect", "watch", started["inspection"], *house.operator)[0] == 0
    code, out, err = weighbridge("inspect", "report", started["inspection"], *house.operator, "--json")
    assert code == 0, err
    report = json.loads(out)
    draw = report["draw"]
    assert (draw["kind"], draw["by"], draw["certain"]) == ("committed", ["site"], [])
    assert draw["seed"] == report["plan"]["seed"]
    assert len(draw["seed"]) == 64
    assert [stratum["key"] for stratum in draw["strata"]] == [["one"], ["two"]]
    assert report["probability"]["inputs"]["s"] == draw["detection"]["verified"] == 1
    assert report["probability"]["strata"] == draw["detection"]["p"]
    assert draw["periods"][-1]["inspections"][-1] == started["inspection"]
    directory = tmp_path / "draw"
    code, out, err = weighbridge("inspect", "draw", started["inspection"], *house.operator, "--out", str(directory))
    assert (code, err) == (0, "")
    code, out, err = weighbridge("inspect", "verify-draw", str(directory), "--log-key", draw["log"], "--json")
    assert code == 0, out + err
    record = json.loads((directory / "draw.json").read_text())
    assert record["drawn"] == [chip["ueid"] for chip in report["chips"]]
    record["drawn"] = [
        next(
            chip["ueid"]
            for chip in json.loads(weighbridge("inspect", "chips", *house.operator, "--json")[1])["chips"]
            if chip["ueid"] not in record["drawn"]
        )
    ]
    (directory / "draw.json").write_text(json.dumps(record))
    code, out, _ = weighbridge("inspect", "verify-draw", str(directory), "--json")
    assert (code, [each["id"] for each in json.loads(out)["findings"]]) == (1, ["draw.sample.differs"])


def test_a_dead_chip_is_a_finding_and_the_rest_goes_on(house: House) -> None:
    ueid = "01" + "ee" * 16
    code, _, err = weighbridge("inspect", "register", *house.operator, "--ueid", ueid, "--chip", DEAD)
    assert code == 0, err
    samples = plan("--rate", "0.1", "--samples", "3")
    code, out, err = weighbridge("inspect", "start", *house.operator, *samples)
    assert code == 0, err
    identifier = out.strip()
    assert weighbridge("inspect", "watch", identifier, *house.operator)[0] == 0
    code, out, _ = weighbridge("inspect", "report", identifier, *house.operator, "--json")
    assert code == 1
    report = json.loads(out)
    assert [finding["id"] for finding in report["findings"]] == ["chip.unreachable"]
    assert report["counts"]["sampled"] == 3
    assert report["counts"]["verified"] == 2


def test_inspections_are_listed_and_shown_by_the_beginning_of_their_identifier(house: House) -> None:
    ueid = "01" + "dd" * 16
    given = ["--ueid", ueid, "--chip", DEAD, "--name", "dead-one"]
    assert weighbridge("inspect", "register", *house.operator, *given)[0] == 0
    found = weighbridge("inspect", "chips", *house.operator, "--json")[1]
    chips = {row["ueid"]: row["name"] for row in json.loads(found)["chips"]}
    assert chips[ueid] == "dead-one"
    everything = str(len(chips))
    identifier = weighbridge("inspect", "start", *house.operator, *plan("--rate", "0.1", "--samples", everything))[
        1
    ].strip()
    assert weighbridge("inspect", "watch", identifier[:9], *house.operator)[0] == 0
    code, out, err = weighbridge("inspect", "list", *house.operator, "--json")
    assert (code, err) == (0, "")
    newest = json.loads(out)["inspections"][0]
    assert (newest["inspection"], newest["stage"], newest["verdict"]) == (identifier, "done", "findings")
    assert (newest["samples"], newest["snapshots"], newest["warnings"] + newest["violations"] > 0) == (
        len(chips),
        0,
        True,
    )
    assert identifier in weighbridge("inspect", "list", *house.operator)[1]
    code, out, err = weighbridge("inspect", "show", identifier[:9], *house.operator)
    assert (code, err) == (1, "")
    assert f"chip dead-one ({ueid[:8]})" in out
    assert ueid not in out
    code, out, _ = weighbridge("inspect", "show", identifier[:9], *house.operator, "--json")
    (group,) = (each for each in json.loads(out)["findings"] if each["id"] == "chip.unreachable")
    assert (code, group["count"]) == (1, len(group["subjects"]))
    assert f"chip {ueid}" in group["subjects"]
    _, text, _ = weighbridge("inspect", "report", identifier[:9], *house.operator)
    assert "chip dead-one" in text
    several = {
        each["inspection"]
        for each in json.loads(weighbridge("inspect", "list", *house.operator, "--json")[1])["inspections"]
    }
    first = next(iter(several))
    alike = sorted(each for each in several if each[0] == first[0])
    if len(alike) > 1:
        code, _, err = weighbridge("inspect", "show", first[0], *house.operator)
        assert code == 2
        assert all(each in err for each in alike)
    assert fails("inspect", "show", "f" * 64, *house.operator) == "usage"


def test_inspect_refuses_bad_requests(house: House) -> None:
    assert fails("inspect", "chips", "--verifier", DEAD, *house.operator[2:]) == "rpc.verifier.unreachable"
    assert fails("inspect", "chips", *house.operator[:2], "--credentials", "/nonexistent").startswith("identity")
    prover = str(house.directory / "prover" / "credentials")
    assert fails("inspect", "chips", *house.operator[:2], "--credentials", prover).startswith("identity")
    assert fails("inspect", "register", *house.operator, "--ueid", "xyz", "--chip", DEAD) == "usage"
    assert fails("inspect", "register", *house.operator, "--ueid", "00", "--chip", DEAD) == "rpc.invalid"
    assert fails("inspect", "start", *house.operator, *plan("--rate", "-1")) == "rpc.invalid"
    assert fails("inspect", "start", *house.operator, *plan("--rate", "1", "--samples", "99")).startswith("usage")
    assert fails("inspect", "start", *house.operator, *plan("--rate", "1", "--replay-env", "X")) == "usage"
    assert fails("inspect", "start", *house.operator, *plan("--rate", "1", "--chunks", "99999")).startswith("usage")
    hostile = plan("--rate", "1", "--replay-env", "LD_PRELOAD=/tmp/evil.so")
    assert fails("inspect", "start", *house.operator, *hostile).startswith("usage")
    assert fails("inspect", "report", "no-such-inspection", *house.operator).startswith("usage")
    assert fails("inspect", "watch", "no-such-inspection", *house.operator).startswith("usage")


def test_chip_log_verifies_or_says_why_not(house: House, tmp_path: Path) -> None:
    address = house.address("chips", "one")
    code, out, err = weighbridge("chip", "log", "read", address, *house.log_options(), "--json")
    assert code == 0, err
    assert json.loads(out)["entries"][0]["kind"] == "boot"
    assert fails("chip", "log", "read", DEAD, *house.log_options()) == "chip.unreachable"
    assert fails("chip", "log", "read", address, *house.log_options("prover")).startswith("identity")
    assert weighbridge("identity", "create", str(tmp_path / "foreign"), "--name", "Foreign")[0] == 0
    foreign = ["--manufacturer", str(tmp_path / "foreign" / "authority.pem")]
    assert fails("chip", "log", "read", address, *house.log_options()[:2], *foreign).startswith("identity")
    assert fails("chip", "log", "read", address, *house.log_options()[:2], "--manufacturer", "/nonexistent") == "usage"


def test_identity_and_provisioning_never_overwrite(tmp_path: Path) -> None:
    authority, chip, issued = (str(tmp_path / name) for name in ("authority", "chip", "issued"))
    assert weighbridge("identity", "create", authority, "--name", "Test")[0] == 0
    assert fails("identity", "create", authority, "--name", "Test") == "usage"
    code, ueid, _ = weighbridge("chip", "provision", chip, "--manufacturer", authority)
    assert code == 0
    assert len(bytes.fromhex(ueid)) == 17
    assert fails("chip", "provision", chip, "--manufacturer", authority) == "usage"
    assert fails("chip", "provision", chip + "2", "--manufacturer", str(tmp_path)).startswith("identity")
    options = ["--role", "verifier", "--name", "v", "--out", issued]
    assert weighbridge("identity", "issue", authority, *options)[0] == 0
    assert (tmp_path / "issued" / "key.pem").stat().st_mode & 0o077 == 0
    assert fails("identity", "issue", authority, *options) == "usage"
    assert fails("identity", "issue", authority, "--role", "king", "--name", "v", "--out", issued + "2") == "usage"


def test_demo_clears_only_what_a_demo_made(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError):
        prepare(mine)
    assert (mine / "thesis.tex").exists()
    assert fails("demo", "--out", str(mine)) == "usage"
    assert fails("demo", "--out", str(mine / "thesis.tex")) == "usage"
    assert fails("demo", "--device", "abacus", "--out", str(tmp_path / "new")) == "usage"
    made = tmp_path / "made"
    prepare(made)
    (made / "gpt2").mkdir()
    (made / "link").symlink_to(mine)
    prepare(made)
    assert [path.name for path in made.iterdir()] == [MARKER]
    assert (mine / "thesis.tex").exists()
