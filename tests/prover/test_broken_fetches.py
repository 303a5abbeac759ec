"""A transcript arrives whole over connections that break, and each byte of it once."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from support.breaking_network import breaking
from support.untrained_transcripts import write_transcript

from prover.keeping.archive import Archive
from prover.service import serve
from verifier.contact import clients
from verifier.contact.clients import ProverClient
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import ProverError, UsageError

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
