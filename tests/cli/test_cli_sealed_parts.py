"""A site that makes a part neither ends a session nor holds it up: what comes of it late, or too large, is left out."""

from __future__ import annotations

import io
import os
import struct
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from support.worker_evidence import START, session_order

from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.sealed_attestation import Launcher
from weighbridge.attest.sealed_channel import ProverKey, WorkerKey
from weighbridge.attest.sealed_list import commitment, list_files
from weighbridge.attest.sealed_order import Parts, Session
from weighbridge.attest.sealed_outcome import seal
from weighbridge.attest.sealed_part import PartResults, SealedParts, part_order
from weighbridge.attest.sealed_session import case_digest
from weighbridge.attest.worker_signer import WorkerSigner
from weighbridge.cli.site.parts import Making
from weighbridge.core.digests import bytes_digest

RESULTS = PartResults(memory=9, seconds=9)
HONEST = """
import shutil, sys
shutil.copyfileobj(open(sys.argv[1], "rb"), sys.stdout.buffer)
sys.stdout.flush()
sys.stdin.buffer.read()
"""
LARGE = HONEST + "sys.stdout.buffer.write((63 << 20).to_bytes(4) + bytes(63 << 20))"
HELD = 'import subprocess, time; subprocess.Popen(["sleep", "20"]); time.sleep(20)'
DONE = HONEST + 'shutil.copyfileobj(open(sys.argv[2], "rb"), sys.stdout.buffer)'


@pytest.mark.parametrize("wrong", [LARGE, HELD], ids=["large", "held"])
def test_one_part_that_is_wrong_costs_no_other(tmp_path: Path, wrong: str) -> None:
    maker, key, own = CertificateAuthority.create("Both sides' authority"), WorkerKey(), ProverKey(os.urandom(32))
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "file").write_bytes(b"content")
    (tmp_path / "root.pem").write_bytes(maker.pem)
    files = list_files(tmp_path / "inputs", ["file"])
    parts = Parts(count=6, authority=bytes_digest(maker.certificate.public_bytes(Encoding.DER)))
    session = Session(case=case_digest(b"case"), agreement=bytes(32), leaves_after_s=8, parts=parts)
    order = replace(session_order(session=session), prover=own.public, commitment=commitment(files.to_cbor()))
    launcher, commands = Launcher.issue(maker, bytes(17)), []
    for number in range(1, 7):
        part, signer = part_order(order, key.public, number), WorkerSigner()
        said = launcher.quote(
            part, START, measurement=part.measurement, worker=WorkerKey().public, signer=signer.public, isolation=[]
        )
        for name, content in (("attestation", said), ("box", seal(RESULTS.to_bytes(), part, signer))):
            (tmp_path / f"{name}-{number}").write_bytes(struct.pack(">I", len(content)) + content)
        (tmp_path / f"{number}.py").write_text(DONE if number == 6 else wrong)
        words = [sys.executable, f"{number}.py", f"attestation-{number}", f"box-{number}"]
        commands.append(" ".join([words[0], *(str(tmp_path / each) for each in words[1:])]))
    making, sink, begun = (
        Making(commands, (order, key.public), b"case", tmp_path / "root.pem", tmp_path),
        io.BytesIO(),
        time.monotonic(),
    )
    making.start(own, files, tmp_path / "inputs")
    making.send(sink)
    making.stop()
    assert time.monotonic() - begun < 15
    assert SealedParts.receive(io.BytesIO(sink.getvalue())).opened(order, key) == {6: RESULTS}
