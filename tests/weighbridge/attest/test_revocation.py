"""Lists of revoked certificates: honest ones are read, and no other is relied on."""

import base64
import datetime
from contextlib import suppress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import example, given
from hypothesis import strategies as st

from weighbridge.attest import revocation
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.revocation import RevocationList, RevocationListError

NOW = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
AUTHORITY = CertificateAuthority.create("Station")
DAY = datetime.timedelta(days=1)


def parse(pem: bytes, authority: CertificateAuthority = AUTHORITY) -> RevocationList:
    return RevocationList.parse(pem, authority.certificate)


def builder(*extensions: tuple[x509.ExtensionType, bool]) -> x509.CertificateRevocationListBuilder:
    """A list by hand, from now on for a day."""
    made = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(AUTHORITY.certificate.subject)
        .last_update(NOW)
        .next_update(NOW + DAY)
    )
    for extension, critical in extensions:
        made = made.add_extension(extension, critical)
    return made


def pem_of(made: x509.CertificateRevocationListBuilder, *, key: ec.EllipticCurvePrivateKey = AUTHORITY.key) -> bytes:
    return made.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def entry(*extensions: tuple[x509.ExtensionType, bool]) -> x509.RevokedCertificate:
    made = x509.RevokedCertificateBuilder().serial_number(7).revocation_date(NOW)
    for extension, critical in extensions:
        made = made.add_extension(extension, critical)
    return made.build()


@given(st.dictionaries(st.integers(1, (1 << 159) - 1), st.datetimes(datetime.datetime(1999, 1, 1)), max_size=5))
def test_a_list_says_who_is_revoked(wanted: dict[int, datetime.datetime]) -> None:
    revoked = {serial: time.replace(microsecond=0, tzinfo=datetime.UTC) for serial, time in wanted.items()}
    found = parse(revocation.signed(AUTHORITY.certificate, AUTHORITY.key, revoked))
    assert found.revoked == revoked
    found.require_current(datetime.datetime.now(datetime.UTC))
    assert found.expires - found.issued == revocation.LIST_LIFETIME


def test_numbers_grow_with_time_and_with_every_list() -> None:
    begun = int(datetime.datetime.now(datetime.UTC).timestamp())
    first = parse(revocation.signed(AUTHORITY.certificate, AUTHORITY.key, {}))
    second = parse(revocation.signed(AUTHORITY.certificate, AUTHORITY.key, {}, above=first.number))
    assert begun <= first.number < second.number
    second.require_no_older_than(first.number)
    second.require_no_older_than(second.number)
    with pytest.raises(RevocationListError, match=r"number \d+, but one with \d+ was there"):
        first.require_no_older_than(second.number)


def test_a_list_ends_and_is_not_of_the_future() -> None:
    found = parse(pem_of(builder((x509.CRLNumber(1), False))))
    found.require_current(NOW)
    found.require_current(NOW - DAY / 48)  # the authority's clock may be ahead
    with pytest.raises(RevocationListError, match=r"ended at 2026-05-02 12:00 UTC; replace it"):
        found.require_current(NOW + DAY)
    with pytest.raises(RevocationListError, match="in the future"):
        found.require_current(NOW - DAY)


def test_lists_of_others_are_refused() -> None:
    namesake = CertificateAuthority.create("Station")
    for foreign in (CertificateAuthority.create("Other"), namesake):
        with pytest.raises(RevocationListError, match="not signed by the authority"):
            parse(foreign.revocations)
    with pytest.raises(RevocationListError, match="not signed by the authority"):
        parse(AUTHORITY.revocations, namesake)


NUMBER = (x509.CRLNumber(1), False)
PART = x509.IssuingDistributionPoint(
    full_name=None, relative_name=None, only_contains_user_certs=True, only_contains_ca_certs=False,
    only_some_reasons=None, indirect_crl=False, only_contains_attribute_certs=False,
)  # fmt: skip


@pytest.mark.parametrize(
    "made",
    [
        builder(),
        builder(NUMBER, (x509.DeltaCRLIndicator(1), True)),
        builder(NUMBER, (x509.DeltaCRLIndicator(1), False)),
        builder(NUMBER, (PART, True)),
        builder(NUMBER).add_revoked_certificate(entry((x509.CRLReason(x509.ReasonFlags.remove_from_crl), False))),
        builder(NUMBER).add_revoked_certificate(
            entry((x509.CertificateIssuer([x509.DirectoryName(AUTHORITY.certificate.subject)]), True))
        ),
    ],
    ids=["no number", "changes", "changes, not critical", "a part", "taken off", "another authority's"],
)
def test_signed_lists_of_another_kind_are_refused(made: x509.CertificateRevocationListBuilder) -> None:
    with pytest.raises(RevocationListError):
        parse(pem_of(made))


GOOD = pem_of(builder(NUMBER).add_revoked_certificate(entry()))
DER = x509.load_pem_x509_crl(GOOD).public_bytes(serialization.Encoding.DER)


@given(st.data())
def test_no_flipped_bit_changes_what_a_list_says(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(DER) * 8 - 1))
    changed = bytearray(DER)
    changed[place // 8] ^= 1 << place % 8
    armoured = b"-----BEGIN X509 CRL-----\n%s\n-----END X509 CRL-----\n" % base64.b64encode(bytes(changed))
    with suppress(RevocationListError):  # One byte means nothing and is not signed: the unused bits of the signature.
        assert parse(armoured) == parse(GOOD)


@given(st.binary(max_size=300))
@example(b"")
@example(b"-----BEGIN X509 CRL-----\n-----END X509 CRL-----\n")
@example(AUTHORITY.pem)
def test_hostile_bytes_raise_only_our_error(pem: bytes) -> None:
    with pytest.raises(RevocationListError):
        parse(pem)


@given(st.integers(0, len(GOOD)), st.binary(max_size=4))
def test_damaged_lists_raise_only_our_error(place: int, between: bytes) -> None:
    with suppress(RevocationListError):
        assert parse(GOOD[:place] + between + GOOD[place:]) == parse(GOOD)


def test_lists_without_end_are_refused_unread() -> None:
    with pytest.raises(RevocationListError, match="more than are accepted"):
        parse(GOOD + b"\n" * revocation.MAX_LIST_BYTES)
