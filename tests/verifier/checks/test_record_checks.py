"""Opened records: those that were committed to pass, over a real service; altered, foreign and hidden ones do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from prover import Recorder
from prover.service import serve
from verifier.checks import data_records
from verifier.contact.clients import ProverClient
from verifier.model.opened_records import RecordFacts, asked
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.core import merkle
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, ProofError, ProverError, UsageError, WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript, open_confined
from weighbridge.transcript.data import DataCommitment, flatten
from weighbridge.transcript.record_opening import MAX_CONTENT, OpenedRecord, encode, verify

RECORDS = [{"x": torch.arange(4.0) + i, "y": torch.tensor(i)} for i in range(20)]
SEED = bytes(range(32))


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory) -> OpenedTranscript:
    """Four steps of four records each; four of the twenty records are never used."""
    path = tmp_path_factory.mktemp("runs") / "run"
    data = DataCommitment.over(RECORDS, range(16))
    with Recorder(path, seed=1, data=data) as recorder:
        with recorder.initialisation():
            model = nn.Linear(4, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder.attach(model, optimizer)
        for at in range(0, 16, 4):
            batch = {name: torch.stack([RECORDS[i][name] for i in range(at, at + 4)]) for name in ("x", "y")}
            with recorder.step(batch):
                model(batch["x"]).square().mean().backward()
                optimizer.step()
    return open_confined(path)


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    return CertificateAuthority.create("Station")


@pytest.fixture(scope="module")
def client(transcript: OpenedTranscript, authority: CertificateAuthority) -> Iterator[ProverClient]:
    credentials: Credentials = authority.issue_role("verifier", "v")
    with (
        serve(transcript.path.parent, authority.issue_role("prover", "p")) as address,
        ProverClient(address, credentials) as client,
    ):
        yield client


@pytest.fixture
def honest(transcript: OpenedTranscript, client: ProverClient) -> RecordFacts:
    """All twenty records were asked for."""
    facts = asked(transcript, SEED, 20)
    assert facts is not None
    facts.opened = client.records(facts.id, facts.asked)
    return facts


def opened(facts: RecordFacts) -> list[OpenedRecord]:
    assert not isinstance(facts.opened, WeighbridgeError)
    return facts.opened


def test_an_honest_prover_opens_every_record_that_it_used(honest: RecordFacts) -> None:
    assert data_records.check(honest) == []
    assert sorted(each.record for each in opened(honest)) == list(range(16))
    for each in opened(honest):
        found = verify(each, honest.root, honest.count)
        assert torch.equal(found["x"], RECORDS[each.record]["x"])
        assert found["y"].item() == each.record


def test_which_records_follows_from_the_seed(transcript: OpenedTranscript) -> None:
    one, again, other = (asked(transcript, seed, 5) for seed in (SEED, SEED, bytes(32)))
    assert one is not None
    assert again is not None
    assert other is not None
    assert one.asked == again.asked != other.asked
    assert len(set(one.asked)) == 5
    assert one.used == {record for record in one.asked if record < 16}
    assert asked(transcript, SEED, 0) is None


def test_a_record_that_was_altered_or_exchanged_is_caught(honest: RecordFacts) -> None:
    first, second = opened(honest)[:2]
    altered = encode({**verify(first, honest.root, honest.count), "x": torch.zeros(4)})
    for lie in (
        replace(first, content=altered),
        replace(first, content=second.content),
        replace(first, content=second.content, proof=second.proof),
        replace(first, proof=first.proof[:-1]),
        replace(first, proof=(*first.proof[:-1], b"short")),
        replace(first, content=b""),
    ):
        found = data_records.check(replace(honest, opened=[lie, *opened(honest)[1:]]))
        assert [(f.id, f.severity) for f in found] == [("data.record.differs", "violation")]
        assert found[0].subject.endswith(f"record {first.record}")


def test_a_record_that_is_not_shown_is_asked_for(honest: RecordFacts) -> None:
    hidden = opened(honest)[3].record
    (found,) = data_records.check(replace(honest, opened=[each for each in opened(honest) if each.record != hidden]))
    assert (found.id, found.severity) == ("data.record.unopened", "warning")
    assert found.evidence["records"] == [hidden]
    silent = replace(honest, opened=ProverError("nobody there"))
    assert [f.id for f in data_records.check(silent)] == ["prover.unreachable"]


def test_questions_that_make_no_sense(transcript: OpenedTranscript, client: ProverClient) -> None:
    for wrong in ([20], [3, 3]):
        with pytest.raises(UsageError):
            client.records(transcript.digest, wrong)
    with pytest.raises(WeighbridgeError) as caught:
        client.records("0" * 64, [1])
    assert caught.value.reason == "transcript.unknown"
    assert client.records(transcript.digest, []) == []


tensors = st.sampled_from([torch.float32, torch.int64, torch.bool, torch.bfloat16]).flatmap(
    lambda dtype: st.lists(st.integers(0, 3), max_size=3).map(lambda shape: torch.ones(shape).to(dtype))
)
nests = st.dictionaries(st.text("ab.", min_size=1, max_size=3), tensors, min_size=1, max_size=3)


@settings(max_examples=40, deadline=None)
@given(st.lists(nests, min_size=1, max_size=6), st.data())
def test_round_trip(many: list[dict[str, Tensor]], data: st.DataObject) -> None:
    """verify(open(record)) is the record, for every record of every data set."""
    commitment = DataCommitment.over(many, [0])
    place = data.draw(st.integers(0, len(many) - 1))
    hashes = [merkle.leaf_hash(commitment.leaves[at : at + 32]) for at in range(0, len(commitment.leaves), 32)]
    proof = tuple(merkle.inclusion_proof(hashes, place))
    shown = OpenedRecord(record=place, content=encode(flatten(many[place])), proof=proof)
    found = verify(shown, commitment.root(), len(many))
    assert found.keys() == many[place].keys()
    assert all(torch.equal(found[name], many[place][name]) for name in found)


@given(st.binary(max_size=60), st.lists(st.binary(min_size=32, max_size=32), max_size=3), st.integers(-1, 9))
def test_hostile_bytes(content: bytes, proof: list[bytes], record: int) -> None:
    with pytest.raises(WeighbridgeError):
        verify(OpenedRecord(record=record, content=content, proof=tuple(proof)), bytes(32), 8)


@pytest.mark.parametrize(
    "parts",
    [[], [["x", "f32", [2], bytes(4)]], [["x", "f33", [1], bytes(4)]], [["x", "f32", [-1], b""]],
     [["x", "f32", [True], bytes(4)]], [["y", "u8", [1], b"a"], ["x", "u8", [1], b"a"]],
     [["x", "bool", [2], b"\1\2"]], [["x", "u8", [1], b"a"], ["x", "u8", [1], b"a"]], [["x", "u8", [0] * 65, b""]],
     {"x": 1}],
    ids=str,
)  # fmt: skip
def test_malformed_records(parts: object) -> None:
    with pytest.raises(FormatError):
        verify(OpenedRecord(record=0, content=cbor(parts), proof=()), bytes(32), 1)


def test_records_have_a_largest_size() -> None:
    shown = OpenedRecord(record=0, content=bytes(MAX_CONTENT + 1), proof=())
    with pytest.raises(FormatError):
        verify(shown, bytes(32), 1)
    with pytest.raises(ProofError):
        verify(replace(shown, content=encode({"x": torch.zeros(1)})), bytes(31), 1)
