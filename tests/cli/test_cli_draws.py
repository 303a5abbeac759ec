"""`weighbridge inspect verify-draw` and `beacon`, as a reader uses them who does not trust the Verifier."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.command_line import weighbridge
from support.draws import House, fleet, heads_of
from support.station import wait_for

from verifier.draw.record import DrawRecord, write_files
from weighbridge.attest import tlog
from weighbridge.attest.beacon import parse_info, parse_round, verify_round
from weighbridge.attest.tlog import NoteSigner

FLEET = fleet(30)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


def saved(record: DrawRecord, house: House, path: Path) -> Path:
    """Writes a record with the whole log."""
    write_files(path, [*record.files(), *((f"log/{name}", data) for name, data in house.log.files())])
    return path


def verified(path: Path, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    code, out, _ = weighbridge("inspect", "verify-draw", path, *arguments, "--json")
    return code, json.loads(out)


def test_an_honest_draw_is_what_its_record_says(house: House, tmp_path: Path) -> None:
    record = house.record(FLEET, heads_of(FLEET, {3}), by=("site",))
    path = saved(record, house, tmp_path / "draw")
    code, out, err = weighbridge("inspect", "verify-draw", path / "draw.json")
    assert (code, err) == (0, "")
    assert "the draw is what its record says" in out
    assert "assumed: the key of the Verifier's log" in out
    (tmp_path / "log.pub").write_text(f"{house.log.key}\n")
    code, found = verified(
        path, "--log-key", tmp_path / "log.pub", "--witness", str(house.witness.key), "--registry-root", "00" * 32,
        "--beacon", house.beacon.info.chain.hex(),
    )  # fmt: skip
    assert (code, found["findings"]) == (0, [])
    assert len(found["assumed"]) == 2
    assert found["assumed"][1] == "the beacon's operator kept its values secret until their time"
    assert found["draw"]["state"] == "opening"
    assert (found["draw"]["drawn"], found["draw"]["certain"]) == (8, 1)


def test_each_of_the_options_can_show_a_steered_draw(house: House, tmp_path: Path) -> None:
    record = house.record(FLEET, heads_of(FLEET))
    path = saved(record, house, tmp_path / "draw")
    other = NoteSigner("other", tlog.WITNESS, bytes(32)).key
    log = NoteSigner("other", tlog.LOG, bytes(32)).key
    for arguments, identifier in (
        (("--witness", str(other)), "draw.entry.unwitnessed"),
        (("--log-key", str(log)), "draw.log.differs"),
        (("--registry-root", "11" * 32), "draw.registry.differs"),
        (("--beacon", "11" * 32), "draw.beacon.differs"),
    ):
        code, found = verified(path, *arguments)
        assert code == 1
        assert identifier in [finding["id"] for finding in found["findings"]]
    signer = NoteSigner(tlog.origin(FLEET.ueids[9]), tlog.LOG, bytes(31) + b"\x09")
    text = tlog.Checkpoint(signer.key.name, 11, bytes(32)).text
    commitment = record.committed()
    note = tlog.Note(text, (signer.sign(text), house.witness.sign(text, commitment.committed_ms // 1000)))
    (tmp_path / "cosigned").write_bytes(note.encode())
    code, found = verified(path, "--cosigned", tmp_path / "cosigned")
    assert (code, [finding["id"] for finding in found["findings"]]) == (1, ["draw.head.omitted"])


def test_a_draw_without_one_chip_is_found(house: House, tmp_path: Path) -> None:
    record = house.record(FLEET, heads_of(FLEET))
    path = saved(replace(record, drawn=record.drawn[1:]), house, tmp_path / "draw")
    code, out, _ = weighbridge("inspect", "verify-draw", path)
    assert code == 1
    assert "draw.sample.differs" in out
    assert "something is wrong with this draw" in out


@pytest.mark.parametrize(
    ("content", "arguments"),
    [
        (None, ()),
        (b"{}", ()),
        (b"\xff", ()),
        ("good", ("--registry-root", "zz")),
        ("good", ("--witness", "nobody")),
        ("good", ("--log", "missing")),
        ("good", ("--cosigned", "missing")),
    ],
)
def test_what_cannot_be_read_has_exit_code_2(
    house: House, tmp_path: Path, content: bytes | str | None, arguments: tuple[str, ...]
) -> None:
    path = tmp_path / "draw"
    if content == "good":
        saved(house.record(FLEET, heads_of(FLEET)), house, path)
    else:
        path.mkdir()
        if isinstance(content, bytes):
            (path / "draw.json").write_bytes(content)
    code, out, err = weighbridge("inspect", "verify-draw", path, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("weighbridge: ")


def test_a_beacon_of_ones_own_publishes_each_value_until_it_is_interrupted(tmp_path: Path) -> None:
    command = ["inspect", "beacon", "--key", str(tmp_path / "key"), "--out", str(tmp_path / "b")]
    process = subprocess.Popen([sys.executable, "-m", "weighbridge.cli", *command])
    try:
        wait_for(lambda: len(list((tmp_path / "b").glob("public/*[0-9]"))) >= 3, process)
    finally:
        process.kill()
        process.wait()
    info = parse_info(json.loads((tmp_path / "b" / "info").read_bytes()))
    numbers = sorted(int(path.name) for path in (tmp_path / "b").glob("public/*[0-9]"))
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    for number in numbers:
        verify_round(info, parse_round(json.loads((tmp_path / "b" / "public" / str(number)).read_bytes())))


def test_a_beacon_of_ones_own_publishes_a_round_when_its_time_has_come(tmp_path: Path) -> None:
    started = time.time()
    code, out, err = weighbridge(
        "inspect", "beacon", "--key", tmp_path / "key", "--out", tmp_path / "b", "--round", "2"
    )
    assert (code, err) == (0, "")
    info = parse_info(json.loads((tmp_path / "b" / "info").read_text()))
    value = parse_round(json.loads(Path(out.strip()).read_text()))
    verify_round(info, value)
    assert value.number == 2
    assert started * 1000 < info.time_ms(2) <= time.time() * 1000
