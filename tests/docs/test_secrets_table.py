"""The table of secrets has each field that a chip or a Prover sends once, and says truly what is shown today."""

from __future__ import annotations

import base64
import json
import re
import struct
from pathlib import Path

import cbor2
import pytest
import torch
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from support.recordings import train
from support.secrets_table import CLASSES, HEAD, RULE, Row, TableError, classed, counts, parse, problems, write
from support.wire_fields import chip_tokens, inventory
from torch import nn

from firmware_sim import device
from firmware_sim.firmware import Firmware
from firmware_sim.nvlog import NonVolatileLog
from firmware_sim.snapshot_report import Report
from weighbridge.attest import tokens
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.digests import bytes_digest, cbor, region_digest, salt_digest, snapshot_root
from weighbridge.transcript.data import batch_digest
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.writer import MANIFEST

PAGE = (Path(__file__).resolve().parents[2] / "docs/formats/confidential.md").read_text(encoding="utf-8")
ROWS = parse(PAGE)

Trained = tuple[Transcript, list[float], list[dict[str, torch.Tensor]]]

_NAMES = st.text("abc_.19-/", min_size=1, max_size=8)
_TABLES = st.lists(
    st.builds(
        Row,
        of=_NAMES,
        fields=st.lists(_NAMES, min_size=1, max_size=3).map(tuple),
        kind=st.sampled_from(CLASSES[1:]),
        today=st.sampled_from(("shown", "hidden")),
        why=_NAMES,
    ),
    min_size=1,
    max_size=3,
)


def test_each_field_of_the_code_has_one_row_and_no_row_is_made_up() -> None:
    assert problems(ROWS, inventory()) == []


def test_the_page_counts_its_fields() -> None:
    (found,) = re.findall(r"<!-- begin counts -->\n(.*?)<!-- end counts -->", PAGE, re.DOTALL)
    assert found == counts(ROWS)


def test_a_field_that_is_missing_or_there_twice_or_made_up_is_found() -> None:
    real = inventory()
    new = {**real, "Leaf": real["Leaf"] | {"name"}}
    assert problems(ROWS, new) == ["missing: Leaf name"]
    gone = {**real, "Leaf": real["Leaf"] - {"bytes"}}
    assert problems(ROWS, gone) == ["made up: Leaf bytes"]
    again = Row("Leaf", ("bytes",), "public", "shown", "a second class")
    assert problems([*ROWS, again], real) == ["twice: Leaf bytes"]


def test_the_inventory_has_what_the_code_writes() -> None:
    """These are among the fields, so the enumeration itself did not go empty."""
    real = inventory()
    assert {"weights_bytes", "flops", "running"} <= real["snapshot"]
    assert {"salt", "leaves"} <= real["OpenSnapshotResponse"]
    assert {"seed", "programs", "data"} <= real["draft"]
    assert all(real.values())


@given(rows=_TABLES)
def test_rows_are_read_as_they_are_written(rows: list[Row]) -> None:
    """Law: parse(HEAD, RULE, write(row) of each row) is the rows."""
    assert parse("\n".join([HEAD, RULE, *map(write, rows)])) == rows


@pytest.mark.parametrize(
    "line",
    [
        "| `a` | `b` | secret | shown | c |",
        "| `a` | `b` | public | hidden | c |",
        "| `a` | b | public | shown | c |",
        "| `a` | `b` | public | shown | |",
        "| | `b` | public | shown | c |",
        "| `a` | `b` | public | shown |",
        "| `a` | `b` | public or hiding | shown | c |",
    ],
)
def test_a_row_of_another_form_is_refused(line: str) -> None:
    with pytest.raises(TableError):
        parse("\n".join([HEAD, RULE, line]))


# -- what a Verifier of today reads ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A training of two steps, its losses, and its batches."""
    path = tmp_path_factory.mktemp("secrets") / "run"
    losses: list[float] = []

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(3, 2)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().item())

    generator = torch.Generator().manual_seed(1)
    batches = [
        {"x": torch.randn(4, 3, generator=generator), "y": torch.randn(4, 2, generator=generator)} for _ in range(2)
    ]
    train(path, build, step, batches)
    return Transcript.open(path), losses, batches


def _scalars(checksums: bytes) -> set[float]:
    """The values of results of one element, as the page's example reads them."""
    sums = [each for (each,) in struct.iter_unpack("<Q", checksums)]
    return {struct.unpack("<f", struct.pack("<I", each))[0] for each in sums if each < 1 << 32}


def test_the_loss_is_read_off_a_step_record(
    trained: Trained,
) -> None:
    transcript, losses, _ = trained
    assert transcript.step(0).kind == "init"
    for number, loss in enumerate(losses, 1):
        assert loss in _scalars(transcript.step(number).checksums)
    assert classed(ROWS)["weighbridge.transcript.steps.StepRecord", "checksums"].kind == "worker-only"


def test_a_guessed_batch_and_a_guessed_seed_are_confirmed(
    trained: Trained,
) -> None:
    transcript, _, batches = trained
    guesses = [{"x": torch.zeros(4, 3), "y": torch.zeros(4, 2)}, *batches]
    record = transcript.step(2)
    assert [number for number, each in enumerate(guesses) if batch_digest(each) == record.batch] == [2]
    logged = transcript.draft_digest
    drafts = {seed: cbor({**transcript.draft, "seed": seed}) for seed in range(20)}
    assert [seed for seed, draft in drafts.items() if bytes_digest(draft) == logged] == [7]


def test_a_signature_confirms_a_guessed_manifest(
    trained: Trained,
) -> None:
    envelope = json.loads((trained[0].path / MANIFEST).read_bytes())
    (signature,) = envelope["signatures"]
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(signature["publicKey"]))
    payload = base64.b64decode(envelope["payload"])

    def confirmed(guess: bytes) -> bool:
        kind = envelope["payloadType"]
        try:
            public.verify(
                base64.b64decode(signature["sig"]), f"DSSEv1 {len(kind)} {kind} {len(guess)} ".encode() + guess
            )
        except InvalidSignature:
            return False
        return True

    assert confirmed(payload)
    assert not confirmed(payload.replace(b'"complete":true', b'"complete":false'))


def test_what_tokens_hide_is_in_none_of_a_confidential_boot(tmp_path: Path) -> None:
    """Of events, snapshots and counters there is nothing but bytes that look random, and the table says so."""
    for data in chip_tokens(tmp_path, confidential=True):
        claims = cbor2.loads(cbor2.loads(data).value.value[2])
        kind = claims[-70002]
        assert (273 in claims) == (kind in ("boot", "head"))
        assert (-70007 in claims) == (kind != "head")
        assert kind == "head" or (type(claims[-70007]), len(claims[-70007])) == (bytes, 32)
    kinds = {row.today for row in ROWS if row.of in ("event", "snapshot", "work")}
    assert kinds == {"hidden"}


def test_a_snapshot_says_whether_memory_changed_and_its_opening_confirms_a_guess(tmp_path: Path) -> None:
    device.provision(tmp_path, CertificateAuthority.create("Manufacturer"))
    with NonVolatileLog(tmp_path) as log:
        firmware = Firmware(tmp_path, device.boot(tmp_path), log, rate_per_day=2.5, clock_speed=1.0, hold=9)

        def snapshot(content: bytes) -> tuple[int, bytes]:
            seen = [(len(content), region_digest(content, firmware.salt))]
            report = Report(
                leaves=seen, weights=seen, safepoint=True, head=bytes(32), running=bytes(32), step=1, op=0, held=0,
                stall_us=1, unobserved=0,
            )  # fmt: skip
            index = firmware.snapshot(report)
            ((_, data),) = firmware.entries(index, index + 1)
            body = tokens.read_own(data).body
            assert body["salt_digest"] == salt_digest(firmware.salt)
            return index, body["root"]

        (first, one), (_, two), (_, three) = snapshot(b"weights"), snapshot(b"weights"), snapshot(b"changed")
        assert one == two != three
        salt, leaves, _ = firmware.open_snapshot(first)
    guesses = (b"others!", b"weights")
    assert [each for each in guesses if (len(each), region_digest(each, salt)) in leaves] == [b"weights"]
    assert snapshot_root([(7, region_digest(b"weights", salt))], salt) == one
