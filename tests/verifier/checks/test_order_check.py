"""Who chose the order of the data: one that follows from them passes every policy, any other one that accepts it."""

from __future__ import annotations

import struct
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import nn

from prover import Recorder
from verifier.checks import order
from verifier.model.facts import TranscriptFacts
from verifier.model.policies import TranscriptPolicy
from weighbridge.attest.manifest import Predicate, SigningKey, open_manifest, sign_manifest
from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import TranscriptError, UsageError
from weighbridge.execution.transcript_facts import OpenedTranscript, open_confined
from weighbridge.transcript.data import DataCommitment, OrderSeed, VerifiableOrder
from weighbridge.transcript.writer import MANIFEST, ORDER

RECORDS = [{"x": torch.randn(4, generator=torch.Generator().manual_seed(i))} for i in range(6)]
STRICT = TranscriptPolicy(order="violation")
RANDOM = b"given by a beacon".ljust(32)


def record(path: Path, data: DataCommitment | None, seed: int | None = None) -> OpenedTranscript:
    """Trains for one epoch in the committed order."""
    with Recorder(path, seed=7 if seed is None else seed, data=data) as recorder:
        with recorder.initialisation():
            model = nn.Linear(4, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder.attach(model, optimizer)
        ids = list(range(6)) if data is None else data.ids().tolist()
        for at in range(0, 6, 2):
            x = torch.stack([RECORDS[i]["x"] for i in ids[at : at + 2]])
            with recorder.step({"x": x}):
                model(x).square().mean().backward()
                optimizer.step()
    return open_confined(path)


def found(transcript: OpenedTranscript, policy: TranscriptPolicy = STRICT) -> list[tuple[str, str]]:
    findings = order.check(TranscriptFacts(id=transcript.digest, opened=transcript), policy)
    return [(finding.found, finding.severity) for finding in findings if finding.id == "data.order.chosen"]


def test_order_and_seed_that_follow_from_the_data_pass(tmp_path: Path) -> None:
    data = DataCommitment.over(RECORDS, VerifiableOrder(RANDOM, 1))
    transcript = record(tmp_path / "run", data, data.seed())
    assert found(transcript) == []
    assert transcript.check_data() == []
    assert (order.order_of(transcript), order.seed_follows(transcript)) == ("verifiable", True)


def test_what_the_prover_chose_is_named(tmp_path: Path) -> None:
    chosen = {
        "seeded order, chosen seed": record(tmp_path / "a", DataCommitment.over(RECORDS, OrderSeed(7, 1))),
        "listed order, chosen seed": record(tmp_path / "b", DataCommitment.over(RECORDS, range(6))),
        "verifiable order, chosen seed": record(
            tmp_path / "c", DataCommitment.over(RECORDS, VerifiableOrder(RANDOM, 1))
        ),
    }
    for words, transcript in chosen.items():
        assert found(transcript) == [(words, "violation")]
        assert found(transcript, TranscriptPolicy(order="info")) == [(words, "info")]
        assert found(transcript, TranscriptPolicy()) == []


def test_data_without_a_commitment_are_not_reported_twice(tmp_path: Path) -> None:
    transcript = record(tmp_path / "run", None)
    assert found(transcript) == []
    assert order.order_of(transcript) == "uncommitted"
    assert [finding.id for finding in transcript.check_data()] == ["data.not_precommitted"]


def test_another_order_under_a_verifiable_seed_does_not_open(tmp_path: Path) -> None:
    """A Prover who lists the order that suits it, and signs that it follows from the data."""
    path = tmp_path / "run"
    data = DataCommitment.over(RECORDS, VerifiableOrder(RANDOM, 1))
    record(path, data, data.seed())
    ids = data.ids().tolist()
    content = struct.pack("<6Q", *ids[1:], ids[0])
    (path / ORDER).write_bytes(content)
    manifest = open_manifest((path / MANIFEST).read_bytes())
    claims = {field.name: getattr(manifest, field.name) for field in fields(Predicate)}
    claims["files"] = tuple(
        (name, size, bytes_digest(content).hex() if name == ORDER else digest) for name, size, digest in manifest.files
    )
    (path / MANIFEST).write_bytes(sign_manifest(Predicate(**claims), SigningKey.generate()))
    with pytest.raises(TranscriptError) as caught:
        open_confined(path)
    assert "not the commitment that the draft names" in caught.value.message


def test_policies_are_checked() -> None:
    with pytest.raises(UsageError):
        TranscriptPolicy(order="grave")  # type: ignore[arg-type]
