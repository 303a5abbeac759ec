"""Passports: the same for the same programs, others for others, read back from a worker and from a signature."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.recordings import train
from torch import Tensor, nn
from torch.nn import functional as F

from weighbridge.attest import approved_passport
from weighbridge.attest.dsse import DocumentError, Trust, seal
from weighbridge.attest.manifest import SigningKey, load_or_create_key
from weighbridge.cli.main import run as command
from weighbridge.core.digests import cbor
from weighbridge.core.errors import ReplayWorkerError, WeighbridgeError
from weighbridge.execution import transcript_facts
from weighbridge.execution.worker_answers import shaped
from weighbridge.program.passport import SHAPE, passport
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

Batch = dict[str, Tensor]

RATES = tuple(1 / number for number in range(1, 65))
"""A table, so that no formula gives them."""


def record(
    path: Path, *, seed: int = 1, steps: int = 4, loss: Callable[..., Tensor] = F.cross_entropy, rate: float = 0.1
) -> Path:
    def build() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: RATES[done])

    def step(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Any) -> None:
        loss(model(batch["x"]), batch["y"]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    def batch(number: int) -> Batch:
        draw = torch.Generator().manual_seed(seed * 1000 + number)
        return {"x": torch.randn(5, 6, generator=draw), "y": torch.randint(0, 3, (5,), generator=draw)}

    train(path, build, step, map(batch, range(steps)), seed=seed)
    return path


def of(path: Path) -> dict[str, Any]:
    transcript = Transcript.open(path)
    return passport(transcript, cache(lambda digest: Tape.decode(transcript.tape(digest))))


def smoothed(scores: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(scores.softmax(1), F.one_hot(labels, 3).float())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("passports") / "run")


def test_a_passport_says_what_the_programs_are(run: Path) -> None:
    found = of(run)
    assert shaped(json.loads(json.dumps(found)), SHAPE) == found
    initial, step = found["facts"]["programs"]
    assert (initial["kind"], step["kind"]) == ("init", "step")
    assert step["batch"] == [["x", "f32[5, 6]"], ["y", "i64[5]"]]
    assert [each[0] for each in step["losses"]] == ["nll_loss_forward.default"]
    assert step["trained"] == {"model": [4, 4 * (6 * 8 + 8 + 8 * 3 + 3)]}
    assert found["facts"]["modules"]["model.0"] == {"bias": ["f32[8]"], "weight": ["f32[8, 6]"]}
    assert initial["changed"]["model"] == step["trained"]["model"]
    assert found["run"]["programs"][1]["count"] == 4
    assert found["run"]["steps"] == 5


def test_the_digest_depends_on_programs_and_on_nothing_else(run: Path, tmp_path: Path) -> None:
    """Other seed, data and length give the same passport; another loss and another batch size do not."""
    known = of(run)
    again = of(record(tmp_path / "again", seed=2, steps=6))
    assert again["digest"] == known["digest"]
    assert again["run"] != known["run"]
    assert of(record(tmp_path / "other", loss=smoothed))["digest"] != known["digest"]


def test_a_confined_worker_makes_the_same_passport(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = transcript_facts.open_confined(run)
    assert opened.passport() == of(run)
    false = {**of(run), "digest": "00" * 32}
    monkeypatch.setattr(transcript_facts, "run_worker", lambda *given, **named: {"result": false})
    opened._answers.clear()
    with pytest.raises(ReplayWorkerError, match="malformed"):
        opened.passport()


def key(path: Path) -> SigningKey:
    return load_or_create_key(path)


def test_parties_approve_a_passport_and_a_run_is_held_to_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of three must sign; a run of the same programs passes, one of others is told apart."""
    keys = {name: key(tmp_path / f"{name}.key") for name in ("ada", "bo", "cy")}
    parties = tmp_path / "parties.toml"
    listed = "".join(f'{name} = "{each.public.hex()}"\n' for name, each in keys.items())
    parties.write_text(f"quorum = 2\n[parties]\n{listed}")
    signed = tmp_path / "run.passport"
    approve = ["tape", "approve", str(run), "--out", str(signed), "--key"]
    verify = ["tape", "verify-passport", str(signed), "--parties", str(parties)]
    assert command([*approve, str(tmp_path / "ada.key")]) == 0
    assert command(verify) == 1
    assert "signed by 1 of the parties (ada)" in capsys.readouterr().err
    assert command([*approve, str(tmp_path / "cy.key")]) == 0
    assert command([*verify, "--run", str(run)]) == 0
    assert "signed by ada, cy" in capsys.readouterr().out
    other = record(tmp_path / "other", loss=smoothed)
    assert command([*verify, "--run", str(other)]) == 1
    said = capsys.readouterr().out
    assert "the run's programs are others" in said
    assert "not approved: tape" in said
    assert command([*approve[:2], str(other), *approve[3:], str(tmp_path / "bo.key")]) == 2
    assert "another document" in capsys.readouterr().err
    assert command([*approve, str(tmp_path / "missing.key")]) == 2


def test_the_page(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["tape", "passport", str(run)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"passport     {of(run)['digest']}\n")
    for line in (
        "takes x: f32[5, 6], from the batch", "makes 4 storages of model (332 bytes)",
        "changes 4 storages of model (332 bytes), by what it calculates from them and the batch",
        "4 changing numbers without a formula: UNDECLARED", "  0: bias f32[8], weight f32[8, 6]",
        "where gradients stop",
    ):  # fmt: skip
        assert line in said
    assert "1 times" not in said
    assert "1 storages" not in said


def test_what_is_recognised_stands_beside(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["tape", "passport", str(run), "--recognise", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["digest"] == of(run)["digest"]
    assert said["recognised"]["verdict"] == "match"
    assert [each["reasons"] for each in said["recognised"]["steps"]] == [[]]
    assert "SGD of the gradient of cross entropy" in said["recognised"]["lines"][0]


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
SIGNER = SigningKey.generate()
TRUST = Trust({SIGNER.public: "only"}, 1)


@given(st.dictionaries(st.text(max_size=5), plain, max_size=4))
def test_what_is_signed_is_read_back(facts: dict[str, Any]) -> None:
    """Round trip: `verify(sign(facts, [key]), trust).facts == facts`, and the digest is that of the facts."""
    facts = {**facts, "format": 1}
    found = approved_passport.verify(approved_passport.sign(facts, [SIGNER]), TRUST)
    assert (found.facts, found.digest) == (facts, approved_passport.passport_digest(facts))


@given(st.binary(max_size=60) | plain.map(cbor))
def test_hostile_passports_are_refused(payload: bytes) -> None:
    """Whatever is in an envelope, and whatever stands in the place of one."""
    for data in (payload, seal(payload, approved_passport.MEDIA_TYPE, [SIGNER])):
        try:
            facts, _ = approved_passport.read(data)
        except DocumentError:
            continue
        assert facts["format"] == 1 or type(facts["format"]) is int


def test_an_altered_passport_is_refused(run: Path) -> None:
    signed = approved_passport.sign(of(run)["facts"], [SIGNER])
    with pytest.raises(WeighbridgeError):
        approved_passport.verify(signed.replace(b"A", b"B", 1), TRUST)
    with pytest.raises(DocumentError, match="signed by 0"):
        approved_passport.verify(approved_passport.sign(of(run)["facts"], [SigningKey.generate()]), TRUST)
