"""`weighbridge up`, `down`, `status`: real services in the background, and what becomes of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.command_line import answer, fails, weighbridge

from verifier.contact.clients import ChipClient
from weighbridge.attest import role_certificate
from weighbridge.attest.certificates import load_certificate
from weighbridge.attest.identity import Credentials
from weighbridge.attest.role_authority import RoleAuthority
from weighbridge.attest.tokens import is_confidential, verify
from weighbridge.cli.bench.background import Background, alone
from weighbridge.cli.bench.layout import Bench, Service, Settings, check_names
from weighbridge.cli.bench.processes import ProcessError
from weighbridge.core.errors import UsageError


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A bench of which nothing runs."""
    bench = Bench(tmp_path_factory.mktemp("made") / "bench", Settings(("one",), 1.0, 100.0))
    bench.keep()
    bench.make()
    return bench


def prover_of(bench: Bench) -> Service:
    (service,) = (each for each in bench.services() if each.name == "prover")
    return service


@pytest.fixture
def prover(made: Bench, tmp_path: Path) -> Iterator[Background]:
    """The service of its Prover, which does not run yet."""
    service = Background(prover_of(made), tmp_path)
    yield service
    service.stop()


def until(true: Callable[[], bool]) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def again(service: Background) -> Background:
    """The same service as another command sees it."""
    return Background(service.service, service._file.parent)


def test_a_bench_is_made_once_and_read_again(made: Bench) -> None:
    ueid = made.ueid("one")
    keys = {path: path.read_bytes() for path in made.directory.rglob("*") if path.is_file() and "key" in path.name}
    assert keys
    read = Bench.opened(made.directory)
    read.make()
    assert (read.settings, read.ueid("one")) == (made.settings, ueid)
    assert {path: path.read_bytes() for path in keys} == keys


def test_certificates_are_renewed_before_they_end_and_issued_anew_after(made: Bench) -> None:
    place = made.credentials("operator")
    with RoleAuthority.opened(made.directory / "authority") as authority:
        authority.issue("operator", "bench", lifetime=timedelta(days=2)).save(place)
    key, soon = (place / "key.pem").read_bytes(), role_certificate.read((place / "certificate.pem").read_bytes())
    made.make()
    renewed = role_certificate.read((place / "certificate.pem").read_bytes())
    assert renewed.expires - soon.expires > timedelta(days=20)
    assert (place / "key.pem").read_bytes() == key
    with RoleAuthority.opened(made.directory / "authority") as authority:
        authority.issue("operator", "bench", lifetime=timedelta(seconds=1)).save(place)
    time.sleep(1.5)
    made.make()
    Credentials.load(place)


def test_a_service_is_found_by_others_and_stops_for_them(prover: Background) -> None:
    assert prover.status().state == "stopped"
    prover.start()
    address = prover.served()
    seen = again(prover).status()
    assert (seen.state, seen.address) == ("running", address)
    assert again(prover).stop()
    assert again(prover).status().state == "stopped"
    assert not again(prover).stop()
    prover.start()
    assert prover.served() == address  # where it was before


def test_a_killed_service_is_down_and_starts_elsewhere_if_its_port_is_taken(prover: Background) -> None:
    prover.start()
    host, _, port = prover.served().rpartition(":")
    pid = prover.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: again(prover).status().state == "down")
    assert again(prover).status().pid == pid
    assert "log" in again(prover).status().reason
    with socket.create_server((host, int(port))):
        prover.start()
        assert prover.served() != f"{host}:{port}"
    assert again(prover).status().state == "running"


@pytest.mark.soak
def test_a_port_that_is_taken_at_the_last_moment_is_given_up(
    prover: Background, made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        prover.service.address_file.write_text(address)
        monkeypatch.setattr("weighbridge.cli.bench.background._free", lambda _: True)
        prover.start()
        assert prover.served() != address


def test_a_service_that_cannot_start_says_why(made: Bench, tmp_path: Path) -> None:
    good = prover_of(made)
    bad = Service(
        good.name, good.command, ("--runs", "x", "--credentials", "nowhere"), tmp_path / "a", tmp_path / "log"
    )
    service = Background(bad, tmp_path)
    service.start()
    with pytest.raises(ProcessError, match=r"ended with 2 .*identity.*see .*log"):
        service.served()
    assert service.status().state == "stopped"


def test_a_file_of_another_process_is_not_taken_for_a_service(prover: Background) -> None:
    """Its number may have been given to someone else since: that one must not be stopped."""
    prover._file.parent.mkdir(exist_ok=True)
    for content in (json.dumps({"pid": os.getpid()}), json.dumps({"pid": 2**30}), "{}", "5", '{"pid": true}', "x"):
        prover._file.write_text(content)
        assert prover.status().state in ("down", "stopped")
        assert not prover.stop()


def test_one_command_at_a_time_starts_and_stops(tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(UsageError, match="at work"), alone(tmp_path):
        pass


def test_what_is_no_bench_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    assert fails("up", "--dir", mine) == "usage"
    assert fails("up", "--dir", mine / "thesis.tex") == "usage"
    assert [path.name for path in mine.iterdir()] == ["thesis.tex"]
    for command in ("down", "status"):
        assert fails(command, "--dir", mine) == "usage"
    new = tmp_path / "new"
    assert fails("up", "--dir", new, "--name", "a", "--chips", "1") == "usage"
    assert fails("up", "--dir", new, "--name", "../x") == "usage"
    assert fails("up", "--dir", new, "--name", "a", "--name", "a") == "usage"
    assert fails("example", "--dir", new, "--declared", "a") == "usage"
    assert not new.exists()
    (mine / "bench.json").write_text('{"chips": 5}')
    assert fails("status", "--dir", mine) == "usage"
    with pytest.raises(UsageError):
        check_names(["verifier"])


def test_examples_need_a_chip_of_the_bench(made: Bench) -> None:
    for options in (
        (),
        ("--declared", "two"),
        ("--declared", "one", "--hidden", "one"),
        ("abacus", "--declared", "one"),
    ):
        assert fails("example", *options, "--dir", made.directory) == "usage"


def test_commands_of_inspect_say_how_to_get_a_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = weighbridge("inspect", "chips")
    assert code == 2
    assert "weighbridge up" in err
    assert "bench here" in weighbridge("inspect", "chips", "--help")[1]


@pytest.mark.slow
def test_a_bench_from_its_start_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory whose name is longer than the path of a socket may be."""
    place = tmp_path / ("long" * 25)
    place.mkdir()
    monkeypatch.chdir(place)
    for name in ("WEIGHBRIDGE_BENCH", "WEIGHBRIDGE_VERIFIER", "WEIGHBRIDGE_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)

    def pids() -> dict[str, Any]:
        said = answer("status", code=0)
        return {each["service"]: each["pid"] for each in said["services"]}

    def states() -> dict[str, Any]:
        return {each["service"]: each["state"] for each in json.loads(weighbridge("status", "--json")[1])["services"]}

    try:
        said = answer("up", "--chips", "1", "--clock-speed", "100")
        assert sorted(said["started"]) == ["chip chip-0", "prover", "verifier"]
        first = pids()
        assert answer("up")["started"] == []
        assert pids() == first
        assert [chip["name"] for chip in answer("inspect", "chips")["chips"]] == ["chip-0"]
        code, _, err = weighbridge("up", "--rate", "5")
        assert code == 2
        assert "weighbridge down" in err
        os.kill(first["verifier"], signal.SIGKILL)
        os.kill(first["chip chip-0"], signal.SIGKILL)
        until(lambda: states() == {"chip chip-0": "down", "prover": "running", "verifier": "down"})
        assert weighbridge("status")[0] == 1
        assert "verifier.log" in weighbridge("status")[1]
        assert sorted(answer("up", "--name", "spare")["started"]) == ["chip chip-0", "chip spare", "verifier"]
        assert pids()["prover"] == first["prover"]
        assert sorted(chip["name"] for chip in answer("inspect", "chips")["chips"]) == ["chip-0", "spare"]
        code, out, _ = weighbridge("example", "--hidden", "spare", "--steps", "2", "--json")  # it shows its progress
        assert (code, json.loads(out)["trainings"][0]["transcript"]) == (0, None)
    finally:
        stopped = answer("down")["stopped"]
    assert sorted(stopped) == ["chip chip-0", "chip spare", "prover", "verifier"]
    assert answer("down")["stopped"] == []
    assert {each["state"] for each in answer("status", code=1)["services"]} == {"stopped"}


def test_a_bench_of_confidential_chips_starts_with_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its chips say so in their signed boot entries, and an ordinary inspection of them verifies nothing, by name."""
    monkeypatch.chdir(tmp_path)
    try:
        said = answer("up", "--chips", "1", "--confidential")
        assert said["confidential"] is True
        bench = Bench.opened(tmp_path / "weighbridge-bench")
        root = load_certificate((bench.directory / "manufacturer" / "authority.pem").read_bytes())
        address = (bench.chip("chip-0") / "address").read_text().strip()
        with ChipClient(address, Credentials.load(bench.credentials("verifier")), bench.ueid("chip-0")) as client:
            boot = verify(next(iter(client.entries(1))), root).token
        assert is_confidential(boot)
        assert answer("up")["confidential"] is True  # it stays so
        plan = ("--samples", "1", "--threshold", "1e21", "--chip-flops", "1e15", "--period", "30", "--rate", "0.1")
        code, out, _ = weighbridge("inspect", "start", *plan, "--watch", "--json")  # it shows its progress
        assert code == 0
        code, out, _ = weighbridge("inspect", "report", json.loads(out)["inspection"], "--json")
        assert code in (0, 1)
        report = json.loads(out)
        assert "snapshot.confidential" in {each["id"] for each in report["findings"]}
        assert report["counts"]["verified"] == 0
    finally:
        answer("down")


def test_a_bench_that_runs_openly_is_stopped_before_it_is_confidential(made: Bench, prover: Background) -> None:
    prover = Background(prover.service, made.directory / "background")
    prover.start()
    try:
        prover.served()
        assert fails("up", "--dir", made.directory, "--confidential") == "usage"
        assert not Bench.opened(made.directory).settings.confidential
    finally:
        prover.stop()
