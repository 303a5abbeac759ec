"""`weighbridge referee serve` as a process, from both parties' side and from that of one who floods it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support import disputed
from support.command_line import answer, fails, weighbridge
from support.disputed import STEP, Party, cheat, judge_here
from support.recording_store import RecordingStore
from support.station import ROOT, wait_for
from support.workers_here import workers_here

from protos.weighbridge.v1 import referee_pb2
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.attest.manifest import SigningKey, load_or_create_key
from weighbridge.core.errors import FormatError, NotFoundError, WeighbridgeError
from weighbridge.execution.dispute import asking, moves, refereeing
from weighbridge.execution.dispute.client import RefereeClient
from weighbridge.execution.dispute.docket import DisputeLimitError, PartyError
from weighbridge.execution.dispute.messages import START, DisputeError, Ruling, Shown, pack, signed
from weighbridge.rpc import endpoints
from weighbridge.rpc.busy import BusyError


@pytest.fixture(scope="module")
def run(recordings: RecordingStore) -> Path:
    return recordings.get("disputed", disputed.record)


class Court:
    """A referee's directory, the parties' keys, and the process while it runs."""

    def __init__(self, root: Path, *options: str) -> None:
        self.root, self.options, self.address = root, options, ""
        self.authority = CertificateAuthority.create("Station")
        self.authority.issue_role("referee", "r").save(root / "referee")
        self.keys = [load_or_create_key(root / f"{number}.key") for number in range(2)]
        self.process: subprocess.Popen[bytes] | None = None

    def credentials(self, name: str) -> Credentials:
        path = self.root / name
        if not path.exists():
            self.authority.issue_role("prover", name).save(path)
        return Credentials.load(path)

    def client(self, name: str = "x") -> RefereeClient:
        return RefereeClient(self.address, self.credentials(name))

    @contextmanager
    def serving(self, *, kill: bool = False) -> Iterator[None]:
        file = self.root / "address"
        file.unlink(missing_ok=True)
        words = ["--docket", self.root / "docket", "--key", self.root / "r.key", "--credentials", self.root / "referee"]
        words += [word for n, key in enumerate(self.keys) for word in ("--party", f"party{n}={key.public.hex()}")]
        words += ["--address-file", file, *self.options]
        command = [sys.executable, "-m", "weighbridge.cli", "referee", "serve", *map(str, words)]
        process = subprocess.Popen(command, cwd=ROOT)
        try:
            wait_for(file.exists, process)
            self.address = file.read_text()
            yield
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            assert process.wait(60) == (-signal.SIGKILL if kill else 0)
        finally:
            process.kill()
            process.wait()


def ruled(client: RefereeClient, dispute: str, seconds: float = 60.0) -> Ruling:
    end = time.monotonic() + seconds
    while not client.standing(dispute).ruled:
        assert time.monotonic() < end
        time.sleep(0.05)
    content = client.messages(dispute)[-1].content
    assert isinstance(content, Ruling)
    return content


def test_two_trainings_are_disputed_over_the_network_and_a_kill_between(run: Path, tmp_path: Path) -> None:
    court, honest, liar = Court(tmp_path), Party(run), cheat(run, 21)
    asked = moves.challenge(honest.tree()[0], STEP, own=True)
    with workers_here():
        course = asking.course(run)
    assert liar.record is not None
    opened = signed(START, course, court.keys[0])
    with court.serving(kill=True), court.client("a") as mine, court.client("b") as theirs:
        dispute, merged = mine.open(opened, court.keys[1].public, court.keys[0])
        assert not merged
        assert mine.open(opened, court.keys[1].public, court.keys[0]) == (dispute, True)
        assert theirs.standing(dispute).due == "course"
        other = replace(course, states=course.states[: 32 * STEP] + liar.record.state)
        theirs.post(dispute, signed(opened.head, other, court.keys[1]).data)
        assert mine.standing(dispute).due == "challenge"
        challenge = signed(mine.messages(dispute)[-1].head, asked, court.keys[0])
        mine.post(dispute, challenge.data)
        theirs.post(dispute, signed(challenge.head, moves.answer(liar.tree()[0], asked), court.keys[1]).data)
        assert theirs.standing(dispute).due == "opening"
        before = theirs.messages(dispute)
    with court.serving(), court.client("a") as mine, court.client("b") as theirs:
        assert [each.data for each in mine.messages(dispute)] == [each.data for each in before]
        for client, party, key in ((mine, honest, court.keys[0]), (theirs, liar, court.keys[1])):
            opening = party.tree(22)[0].opening or b""
            client.post(dispute, signed(client.messages(dispute)[-1].head, Shown(opening=opening), key).data)
        ruling = ruled(mine, dispute)
        assert ruling.leaf == 22
        assert [claim[:2] for claim in ruling.claims] == [(0, "admissible"), (1, "false")]
        assert ruling.judged > 0
        assert ruling.sent == (
            sum(len(e.data) for e in mine.messages(dispute) if e.key == court.keys[0].public),
            sum(len(e.data) for e in mine.messages(dispute) if e.key == court.keys[1].public),
        )
        checked = refereeing.verify(pack(mine.messages(dispute)), judge_here)
        assert checked.agrees
        assert checked.referee == mine.referee()[0]
        with pytest.raises(DisputeError):
            theirs.post(dispute, challenge.data)
    parties = [f"--party=party{n}={key.public.hex()}" for n, key in enumerate(court.keys)]
    owed = answer("referee", "charges", "--docket", tmp_path / "docket", "--key", tmp_path / "r.key", *parties)
    assert [(each["dispute"], each["organisation"]) for each in owed["charges"]] == [(dispute, "party1")]


def test_garbage_floods_and_stalls_leave_the_parties_served(run: Path, tmp_path: Path) -> None:
    court = Court(tmp_path, "--message-mib", "1", "--request-memory", "16")
    told = Party(run).tree()[0]
    asked = moves.challenge(told, STEP, own=True)
    challenge = signed(START, asked, court.keys[0])
    with court.serving(), court.client("a") as mine, court.client("flood") as flood:
        dispute, _ = mine.open(challenge, court.keys[1].public, court.keys[0])
        with pytest.raises(FormatError):
            flood.post(dispute, b"\x00" * 1000)
        with pytest.raises(NotFoundError):
            flood.post("0" * 64, b"\x00")
        with pytest.raises((DisputeLimitError, BusyError)):
            flood.post(dispute, bytes(3 << 20))
        endless = (referee_pb2.PostMessageRequest(id=dispute, data=bytes(1 << 20)) for _ in range(1 << 12))
        with pytest.raises((DisputeLimitError, BusyError)):
            endpoints.call(flood._stub.PostMessage, endless, deadline_s=30)
        refused: list[str] = []
        while "rpc.busy" not in refused:
            assert len(refused) < 60
            try:
                endpoints.call(
                    flood._stub.PostMessage, iter([referee_pb2.PostMessageRequest(id=dispute, data=b"\xff" * 40)])
                )
            except WeighbridgeError as error:
                refused.append(error.reason)
        began = time.monotonic()
        assert mine.standing(dispute).messages == 1
        assert time.monotonic() - began < 2, "another certificate's flood does not keep a party waiting"
        stranger = SigningKey.generate()
        with pytest.raises(PartyError):
            mine.open(signed(START, asked, stranger), court.keys[1].public, stranger)
        assert mine.standing(dispute).due == "answer"
    court.options = ("--clock", "1")  # short only now, so that a slow machine does not end the dispute above
    with court.serving(), court.client("a") as mine:
        assert [claim[:3] for claim in ruled(mine, dispute).claims] == [(1, "forfeit", "dispute.forfeit")]
        assert refereeing.verify(pack(mine.messages(dispute)), judge_here).agrees


def test_the_commands_play_a_dispute(run: Path, tmp_path: Path) -> None:
    court = Court(tmp_path)
    for name in "ab":
        court.credentials(name)
    with court.serving(), workers_here():
        at = {name: ("--referee", court.address, "--credentials", tmp_path / name) for name in "ab"}
        keys = [("--key", tmp_path / f"{number}.key") for number in range(2)]
        to = ("--defender", court.keys[1].public.hex())
        opened = answer("dispute", "open", run, "--step", str(STEP), *keys[0], *at["a"], *to)
        name = opened["dispute"]
        assert answer("dispute", "show", name, *at["b"])["due"] == "answer"
        assert fails("dispute", "answer", name, run, *keys[0], *at["a"]) == "usage"
        assert answer("dispute", "answer", name, run, *keys[1], *at["b"])["sent"] == "answer"
        with court.client("a") as client:
            ruled(client, name)
        file = tmp_path / "dispute"
        shown = answer("dispute", "show", name, *at["a"], "--out", file)
        assert [claim["code"] for claim in shown["claims"]] == ["dispute.equal"]
        assert answer("dispute", "verify", file)["agrees"]
        assert "joined dispute" in weighbridge("dispute", "open", run, "--step", str(STEP), *keys[0], *at["a"], *to)[1]
        assert fails("dispute", "open", run, "--step", str(STEP), *keys[0], *at["a"]) == "usage"
        assert fails("dispute", "open", run, "--step", str(STEP), *keys[0]) == "usage"
        assert fails("dispute", "show", "0" * 64, *at["a"]) == "usage"
    assert weighbridge("dispute", "show", file)[0] == 0
    serve = ("referee", "serve", "--docket", tmp_path / "d", "--key", tmp_path / "k", "--credentials", tmp_path / "a")
    assert fails(*serve) == "usage", "there are no parties"
