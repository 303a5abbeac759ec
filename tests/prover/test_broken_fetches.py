"""A transcript arrives whole over connections that break, and each byte of it once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.breaking_network import breaking
from support.untrained_transcripts import write_transcript

from protos.weighbridge.v1 import prover_pb2, prover_pb2_grpc
from prover.keeping.archive import Archive
from prover.service import ALLOW, serve
from verifier.contact import clients
from verifier.contact.clients import ProverClient
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import ProverError, UsageError
from weighbridge.rpc import endpoints

MIB = 1 << 20
BLOB = hashlib.shake_256(b"blob").digest(6 * MIB + 5)


def test_a_fetch_goes_on_where_its_connection_broke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = CertificateAuthority.create("Station")
    runs = tmp_path / "runs"
    runs.mkdir()
    identifier = write_transcript(runs / "one", name="one")
    (runs / "one" / "blob").write_bytes(BLOB)
    (runs / "one" / "empty").write_bytes(b"")
    with (
        serve(runs, authority.issue_role("prover", "p")) as address,
        breaking(address, [3 * MIB, 2 * MIB]) as (proxy, cut),
        ProverClient(proxy, authority.issue_role("verifier", "v")) as client,
    ):
        whole: dict[str, bytes] = {}
        ended: list[str] = []
        for piece in client.pieces(identifier):
            assert piece.path not in ended
            assert piece.offset == len(whole.setdefault(piece.path, b""))
            whole[piece.path] += piece.data
            if piece.last:
                ended.append(piece.path)
    assert len(cut) == 2
    assert sorted(ended) == sorted(whole)
    assert whole == {p.relative_to(runs / "one").as_posix(): p.read_bytes() for p in runs.rglob("*") if p.is_file()}
    # A Prover that never gets any further is given up.
    monkeypatch.setattr(clients, "FETCH_PAUSE_S", 0.05)
    with (
        serve(runs, authority.issue_role("prover", "p")) as address,
        breaking(address, [2 * MIB, *[1000] * 100]) as (proxy, _),
        ProverClient(proxy, authority.issue_role("verifier", "v")) as client,
        pytest.raises(ProverError),
    ):
        list(client.pieces(identifier))


# -- slow ones ---------------------------------------------------------------------------------------------------------

IDLE_S, LEAST_PER_S = 2.0, 1 << 20
"""In place of a minute and an eighth of this rate."""


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "FETCH_IDLE_S", IDLE_S)
    monkeypatch.setattr(clients, "FETCH_LEAST_PER_S", LEAST_PER_S)
    monkeypatch.setattr(clients, "FETCH_PAUSE_S", 0.1)


def test_a_slow_link_is_waited_for(tmp_path: Path, hurried: None) -> None:
    """It takes longer than a Prover may be silent, and brings twice what is asked for at least."""
    authority = CertificateAuthority.create("Station")
    identifier = write_transcript(tmp_path / "runs" / "one", name="one")
    (tmp_path / "runs" / "one" / "blob").write_bytes(BLOB)
    started = time.monotonic()
    with (
        serve(tmp_path / "runs", authority.issue_role("prover", "p")) as address,
        breaking(address, [], per_s=2 * LEAST_PER_S) as (proxy, _),
        ProverClient(proxy, authority.issue_role("verifier", "v")) as client,
    ):
        came = sum(len(piece.data) for piece in client.pieces(identifier) if piece.path == "blob")
    assert came == len(BLOB)
    assert time.monotonic() - started > IDLE_S


class Drips(prover_pb2_grpc.ProverServiceServicer):  # type: ignore[misc]
    """Sends a file byte by byte, and breaks its connections off after so many of them."""

    def __init__(self, pause_s: float, at_once: int) -> None:
        self.pause_s, self.at_once, self.sent = pause_s, at_once, 0

    def FetchTranscript(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        for offset in range(request.offset, request.offset + self.at_once):
            self.sent += 1
            yield prover_pb2.FetchTranscriptResponse(path="manifest.json", offset=offset, data=b"x")
            time.sleep(self.pause_s)
        context.abort(grpc.StatusCode.UNAVAILABLE, "broken")


@pytest.mark.parametrize(("pause_s", "at_once"), [(0.1, 10**6), (60.0, 10**6), (0.0, 1), (0.2, 1)])
def test_a_prover_that_drips_is_given_up_soon(hurried: None, pause_s: float, at_once: int) -> None:
    """On one connection, or on one after another, each of which brings something."""
    authority = CertificateAuthority.create("Station")
    server, address = endpoints.server(authority.issue_role("prover", "p"), allow=ALLOW)
    drips = Drips(pause_s, at_once)
    prover_pb2_grpc.add_ProverServiceServicer_to_server(drips, server)  # type: ignore[no-untyped-call]
    server.start()
    started = time.monotonic()
    with ProverClient(address, authority.issue_role("verifier", "v")) as client, pytest.raises(ProverError) as caught:
        list(client.pieces("a" * 64))
    assert caught.value.reason == "prover.unreachable"
    assert time.monotonic() - started < 10 * IDLE_S
    assert drips.sent
    server.stop(0)


def test_an_archive_begins_where_it_is_asked_to(tmp_path: Path) -> None:
    identifier = write_transcript(tmp_path / "one", name="one")
    (tmp_path / "one" / "blob").write_bytes(BLOB)
    archive = Archive(tmp_path)
    everything = [(piece.path, piece.offset, bytes(piece.data), piece.last) for piece in archive.pieces(identifier)]
    assert everything[0][0] == "manifest.json"
    for place, (path, offset, _, _) in enumerate(everything):
        rest = [
            (each.path, each.offset, bytes(each.data), each.last) for each in archive.pieces(identifier, path, offset)
        ]
        assert rest == everything[place:]
    at_end = next(iter(archive.pieces(identifier, "blob", len(BLOB))))
    assert (at_end.data, at_end.last) == (b"", True)
    for path, offset in (("blob", len(BLOB) + 1), ("../one/blob", 0), ("none", 0), ("", 1)):
        with pytest.raises(UsageError):
            list(archive.pieces(identifier, path, offset))
