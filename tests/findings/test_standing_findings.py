"""Findings about role certificates that do not stand any more, and lists of revoked ones that cannot be relied on."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from support.exactly import refused

from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.role_authority import RoleAuthority


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    """An authority, with the certificate of one lab."""
    CertificateAuthority.create("Station").save(tmp_path / "ca")
    issue(tmp_path / "ca", tmp_path / "lab")
    return tmp_path / "ca"


def issue(ca: Path, directory: Path, hours: float = 24.0) -> None:
    """Issues a Prover's credentials that last so long from now."""
    with RoleAuthority.opened(ca) as authority:
        authority.issue("prover", directory.name, lifetime=datetime.timedelta(hours=hours)).save(directory)


@pytest.mark.finding("identity.expired")
def test_a_certificate_that_nobody_renewed_in_time(ca: Path, tmp_path: Path) -> None:
    issue(ca, tmp_path / "late", hours=-0.5)
    assert refused("identity", "renew", ca, tmp_path / "late") == "identity.expired"


@pytest.mark.finding("identity.revoked")
def test_a_certificate_that_was_revoked(ca: Path, tmp_path: Path) -> None:
    with RoleAuthority.opened(ca) as authority:
        authority.revoke_name("prover", "lab")
    assert refused("identity", "renew", ca, tmp_path / "lab") == "identity.revoked"


@pytest.mark.finding("identity.revocations")
def test_a_service_whose_list_of_revoked_certificates_is_gone(ca: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "lab" / "revocations.pem").unlink()
    options = ["--runs", tmp_path / "runs", "--credentials", tmp_path / "lab"]
    assert refused("serve", "prover", *options) == "identity.revocations"
