"""The running digest: recorder and replay come to the same after every operation, and whatever it covers changes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prover import Recorder
from weighbridge.attest.chip_link import Position
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.running_digest import prefix_digest, running_digest
from weighbridge.transcript.tape import Tape


class Listener:
    """A chip that always wants to know where the workload is, and never takes a snapshot."""

    ueid = bytes(17)
    pending = True

    def __init__(self) -> None:
        self.heard: dict[tuple[int, int], bytes] = {}

    def log_event(self, name: str, digest: bytes) -> int:
        return 0

    def witnessed(self, index: int) -> int | None:
        return None

    def declare_weights(self, tensors: Any) -> None:
        pass

    def on_snapshot(self, note: Callable[[int], None] | None, where: Callable[[], Position] | None = None) -> None:
        pass

    def safepoint(self, step: int, op: int, running: bytes, head: bytes, flush: Callable[[], None]) -> int | None:
        self.heard[step, op] = running
        return None


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[int, int], bytes]]:
    """Three steps with dropout, an undeclared tensor, a host value and a tensor that dies between steps."""
    run, chip = tmp_path_factory.mktemp("running") / "run", Listener()
    with Recorder(run, seed=1, chip=chip, checkpoint_every=2) as recorder:
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        recorder.attach(model, optimizer)
        for number in range(1, 4):
            with recorder.step({"x": torch.full((3, 4), 0.1 * number)}):
                mask = torch.tensor([1.0, float(number)])
                loss = (model(torch.full((3, 4), 0.5)) * mask).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                assert loss.item() > 0
    return run, chip.heard


def test_recorder_and_replay_agree_at_every_position(recorded: tuple[Path, dict[tuple[int, int], bytes]]) -> None:
    run, heard = recorded
    positions = [position for position in heard if position[0] > 0 and (position[1] % 5 == 0 or position[1] < 4)]
    assert len(positions) > 20
    for step, op in positions:
        request = {
            "path": run, "steps": None, "device": "cpu", "stop": (step, op), "salt": bytes(32).hex(),
            "memory": 1 << 30, "seconds": 60,
        }  # fmt: skip
        with torch.no_grad():
            result = Replay(request, [], lambda _: None).run()
        assert result["verdict"] == "match"
        assert result["running"] == heard[step, op].hex(), (step, op)
    assert len(set(heard.values())) == len(heard)


def test_whatever_it_covers_changes_it(recorded: tuple[Path, dict[tuple[int, int], bytes]]) -> None:
    transcript = Transcript.open(recorded[0])
    record = transcript.step(2)
    tape = Tape.decode(transcript.tape(record.tape))
    op = len(tape.nodes)
    honest: dict[str, Any] = {
        "step": 2, "batch": transcript.batch(2), "undeclared": transcript.undeclared(2), "values": record.values,
        "host": record.host, "rng": {0: 7}, "checksums": record.checksums,
    }  # fmt: skip
    expected = running_digest(tape, op, **honest)
    assert running_digest(tape, op, **honest) == expected
    other: dict[str, Any] = {
        "step": 3, "batch": {"x": torch.zeros(3, 4)}, "undeclared": dict.fromkeys(honest["undeclared"], torch.zeros(8)),
        "values": [v + 1 for v in record.values], "host": [*record.host, 1.0], "rng": {0: 8},
        "checksums": record.checksums[:-8],
    }  # fmt: skip
    assert all(running_digest(tape, op, **{**honest, name: value}) != expected for name, value in other.items())
    assert running_digest(tape, op - 1, **honest) != expected


def test_what_comes_later_does_not_matter(recorded: tuple[Path, dict[tuple[int, int], bytes]]) -> None:
    transcript = Transcript.open(recorded[0])
    tape = Tape.decode(transcript.tape(transcript.step(2).tape))
    place = len(tape.nodes) // 2
    changed = replace(tape, nodes=[*tape.nodes[:place], *reversed(tape.nodes[place:])])
    assert prefix_digest(changed, place) == prefix_digest(tape, place)
    assert prefix_digest(changed, place + 1) != prefix_digest(tape, place + 1)
    empty: dict[str, Tensor] = {}
    common: dict[str, Any] = {"step": 2, "batch": empty, "host": [], "rng": {}, "checksums": b""}
    assert running_digest(tape, 0, undeclared=transcript.undeclared(2), values=[1.0], **common) == running_digest(
        tape, 0, undeclared=empty, values=[], **common
    )
