"""An authority in its directory: what it issued it can renew and revoke, and nothing else."""

import datetime
import tempfile
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from hypothesis import given, settings
from hypothesis import strategies as st

from weighbridge.attest import certificates, credential_files, identity, role_certificate
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.attest.revocation import RevocationList
from weighbridge.attest.role_authority import ISSUED, RoleAuthority
from weighbridge.core.errors import IdentityError, UsageError

DAY = datetime.timedelta(days=1)


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    CertificateAuthority.create("Station").save(tmp_path / "ca")
    return tmp_path / "ca"


def issued(ca: Path, role: str = "operator", name: str = "alice", **also: datetime.timedelta) -> Credentials:
    with RoleAuthority.opened(ca) as authority:
        return authority.issue(role, name, **also)


def revoked(ca: Path) -> set[int]:
    root = certificates.load_certificate((ca / "authority.pem").read_bytes())
    return set(RevocationList.parse((ca / credential_files.REVOCATIONS).read_bytes(), root).revoked)


def aged(root: CertificateAuthority, pem: bytes, ended: datetime.timedelta) -> bytes:
    """The same certificate, signed again to end so long from now."""
    old, now = certificates.load_certificate(pem), datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 30 * DAY)
        .not_valid_after(now + ended)
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    return builder.sign(root.key, hashes.SHA384()).public_bytes(identity.serialization.Encoding.PEM)


def serial(pem: bytes) -> int:
    return role_certificate.read(pem).serial


def test_certificates_last_a_month_unless_told_otherwise(ca: Path) -> None:
    for found, lifetime in ((issued(ca), 30 * DAY), (issued(ca, lifetime=2 * DAY), 2 * DAY)):
        read = role_certificate.read(found.certificate)
        left = read.expires - datetime.datetime.now(datetime.UTC)
        assert lifetime - DAY / 24 < left <= lifetime


def test_a_renewed_certificate_is_for_the_same_key_and_lasts_longer(ca: Path) -> None:
    old = issued(ca, lifetime=DAY)
    with RoleAuthority.opened(ca) as authority:
        renewed = authority.renew(old.certificate)
    before, after = role_certificate.read(old.certificate), role_certificate.read(renewed)
    assert (after.role, after.name, after.key) == (before.role, before.name, before.key)
    assert after.serial != before.serial
    assert after.expires - before.expires > 28 * DAY
    names = [
        certificates.load_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        for pem in (old.certificate, renewed)
    ]
    assert names[0] == names[1]


def test_expired_revoked_and_foreign_certificates_are_not_renewed(ca: Path, tmp_path: Path) -> None:
    late = issued(ca, name="late", lifetime=-DAY / 48)
    with RoleAuthority.opened(ca) as authority:
        with pytest.raises(IdentityError, match=r"operator late expired at .* UTC.*identity issue") as caught:
            authority.renew(late.certificate)
        assert caught.value.reason == "identity.expired"
        alice = authority.issue("operator", "alice")
        authority.revoke_name("operator", "alice")
        with pytest.raises(IdentityError, match="operator alice is revoked") as caught:
            authority.renew(alice.certificate)
        assert caught.value.reason == "identity.revoked"
        other = CertificateAuthority.create("Station").issue_role("operator", "alice")
        for foreign in (other.certificate, other.authority, b"nonsense"):
            with pytest.raises(IdentityError):
                authority.renew(foreign)


def test_revoking_a_name_takes_all_its_certificates_and_no_others(ca: Path) -> None:
    first, second, other, chip = (
        issued(ca), issued(ca), issued(ca, name="bob"), issued(ca, role="chip", name="alice"),
    )  # fmt: skip
    with RoleAuthority.opened(ca) as authority:
        renewed = authority.renew(first.certificate)
        taken = authority.revoke_name("operator", "alice")
    expected = {serial(each) for each in (first.certificate, second.certificate, renewed)}
    assert {each.serial for each in taken} == expected == revoked(ca)
    assert not revoked(ca) & {serial(other.certificate), serial(chip.certificate)}
    with RoleAuthority.opened(ca) as authority:
        assert authority.revoke_name("operator", "alice") == []
        with pytest.raises(UsageError, match="No certificate of operator eve"):
            authority.revoke_name("operator", "eve")
    assert revoked(ca) == expected


def test_revoking_a_stolen_key_takes_its_renewals_and_leaves_the_new_key(ca: Path) -> None:
    stolen, fresh = issued(ca), issued(ca)
    with RoleAuthority.opened(ca) as authority:
        renewed = authority.renew(stolen.certificate)
    with RoleAuthority.opened(ca) as authority:
        authority.revoke_key(renewed)
    assert revoked(ca) == {serial(stolen.certificate), serial(renewed)}
    with RoleAuthority.opened(ca) as authority:
        assert authority.renew(fresh.certificate)


def test_what_has_long_expired_leaves_both_files(ca: Path) -> None:
    now = issued(ca, name="new", lifetime=DAY)
    ended = aged(CertificateAuthority.load(ca), issued(ca, name="old").certificate, -3 * DAY)
    lately = aged(CertificateAuthority.load(ca), issued(ca, name="late").certificate, -DAY / 2)
    (ca / ISSUED).write_bytes(now.certificate + ended + lately)
    with RoleAuthority.opened(ca) as authority:
        for name in ("old", "late", "new"):
            assert len(authority.revoke_name("operator", name)) == 1
        assert revoked(ca) == {serial(now.certificate), serial(lately)}
        authority.issue("operator", "another")
    text = (ca / ISSUED).read_bytes()
    assert [pem in text for pem in (now.certificate, ended, lately)] == [True, False, True]


def test_a_list_that_was_lost_is_not_begun_anew(ca: Path) -> None:
    """Whom it named would be served again."""
    issued(ca)
    (ca / credential_files.REVOCATIONS).unlink()
    with pytest.raises(IdentityError, match=r"revocations\.pem"), RoleAuthority.opened(ca):
        pass
    (ca / credential_files.REVOCATIONS).write_bytes(CertificateAuthority.create("Station").revocations)
    with pytest.raises(IdentityError, match="not signed"), RoleAuthority.opened(ca):
        pass


def test_two_at_a_time_lose_nothing(ca: Path) -> None:
    issued(ca, name="first")
    threads = [threading.Thread(target=issued, args=(ca, "operator", f"n{number}")) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with RoleAuthority.opened(ca) as authority:
        for number in range(4):
            assert len(authority.revoke_name("operator", f"n{number}")) == 1


@settings(max_examples=20)
@given(st.binary(max_size=200))
def test_a_damaged_register_is_an_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        ca = Path(directory) / "ca"
        CERTIFIED.save(ca)
        (ca / credential_files.REVOCATIONS).write_bytes(CERTIFIED.revocations)
        (ca / ISSUED).write_bytes(content)
        with pytest.raises(IdentityError), RoleAuthority.opened(ca):
            pass


CERTIFIED = CertificateAuthority.create("Station")
