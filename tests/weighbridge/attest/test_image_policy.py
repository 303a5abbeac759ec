"""An image runs if k different agreed keys signed it and the agreed log has it, with all agreed cosignatures."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.endorsed_images import ENDORSERS, KEYS, LOG, POLICY, WITNESS, entry, release

from weighbridge.attest import image_log, tlog
from weighbridge.attest.image_policy import ImagePolicy, parse_policy, vetted
from weighbridge.attest.image_release import Endorsed, endorse
from weighbridge.attest.sealed_order import SealedWorkerError
from weighbridge.core import merkle
from weighbridge.core.errors import UsageError


def proof(at: Path, made: Endorsed, signer: tlog.NoteSigner = LOG) -> bytes:
    """Enters an image in a log, after others, and proves it."""
    if not at.exists():
        for number in range(7, 10):
            image_log.append(at, signer, entry(number))
    return image_log.append(at, signer, made).proof(made.release.measurement, KEYS).encode()


def refused(code: str, data: bytes, policy: ImagePolicy = POLICY, measurement: bytes | None = None) -> None:
    with pytest.raises(SealedWorkerError) as caught:
        vetted(data, policy, measurement)
    assert caught.value.reason == code


def text(policy: ImagePolicy) -> str:
    return (
        f'log = "{policy.log}"\nwitnesses = {[str(each) for each in policy.witnesses]}\n'
        f"keys = {[each.hex() for each in policy.keys]}\nthreshold = {policy.threshold}\n"
    )


def test_an_image_that_enough_signed_is_permitted(tmp_path: Path) -> None:
    for number, signers in enumerate((2, 3)):
        found = vetted(proof(tmp_path / "log", entry(number, signers)), POLICY, release(number).measurement)
        assert (found.release, len(found.signers), found.index) == (release(number), signers, 3 + number)
        assert found.checkpoint.size == 4 + number


@pytest.mark.finding("sealed.image.endorsement")
def test_one_signature_too_few_is_refused(tmp_path: Path) -> None:
    refused("sealed.image.endorsement", proof(tmp_path / "log", entry(signers=1)))
    refused("sealed.image.endorsement", proof(tmp_path / "log", entry(2)), replace(POLICY, threshold=3))


def test_keys_that_were_not_agreed_on_do_not_count(tmp_path: Path) -> None:
    """A Prover that makes up endorsers has as many as it likes."""
    other = replace(POLICY, keys=tuple(sorted([ENDORSERS[0].public, ENDORSERS[2].public])))
    refused("sealed.image.endorsement", proof(tmp_path / "log", entry()), other)


def test_one_key_that_signs_twice_counts_once(tmp_path: Path) -> None:
    """Also where the log's keeper helps: what is double in an entry is no entry."""
    whole = entry(signers=1)
    twice = Endorsed.__new__(Endorsed)
    object.__setattr__(twice, "release", whole.release)
    object.__setattr__(twice, "signatures", whole.signatures * 2)
    data = twice.to_cbor()
    root = merkle.leaf_hash(data)
    checkpoint = tlog.Checkpoint(LOG.key.name, 1, root).text
    made = tlog.Proof(0, (), tlog.Note(checkpoint, (LOG.sign(checkpoint),)), data)
    refused("sealed.image.endorsement", made.encode())


def test_a_proof_of_another_image_is_refused(tmp_path: Path) -> None:
    refused("sealed.image.endorsement", proof(tmp_path / "log", entry(0)), POLICY, release(1).measurement)


@pytest.mark.finding("sealed.image.unlogged")
def test_an_image_that_is_not_in_the_log_is_refused(tmp_path: Path) -> None:
    """Neither with the place of another entry, nor with a log of the party's own, also under the agreed name."""
    good = tlog.parse_proof(proof(tmp_path / "log", entry(0)))
    refused("sealed.image.unlogged", replace(good, extra=entry(1).to_cbor()).encode())
    refused("sealed.image.unlogged", replace(good, index=good.index - 1).encode())
    refused("sealed.image.unlogged", replace(good, hashes=good.hashes[:-1]).encode())
    own = tlog.NoteSigner(LOG.key.name, tlog.LOG, os.urandom(32))
    refused("sealed.image.unlogged", proof(tmp_path / "own", entry(0), own))
    named = tlog.Checkpoint("other.example.org/log", 1, merkle.leaf_hash(entry(0).to_cbor())).text
    moved = tlog.Proof(0, (), tlog.Note(named, (LOG.sign(named),)), entry(0).to_cbor())
    refused("sealed.image.unlogged", moved.encode())


def test_every_witness_has_to_have_cosigned(tmp_path: Path) -> None:
    policy = replace(POLICY, witnesses=(WITNESS.key,))
    plain = proof(tmp_path / "log", entry(0))
    refused("sealed.image.unlogged", plain, policy)
    log = image_log.read(tmp_path / "log", LOG.key)
    cosigned = image_log.cosign(tmp_path / "log", log, WITNESS, 7).proof(release(0).measurement, KEYS)
    assert vetted(cosigned.encode(), policy).index == 3
    pretender = tlog.NoteSigner(WITNESS.key.name, tlog.WITNESS, os.urandom(32))
    forged = replace(cosigned, checkpoint=log.note.with_signature(pretender.sign(log.note.text, 7)))
    refused("sealed.image.unlogged", forged.encode(), policy)


@pytest.mark.parametrize("data", [b"", b"none", b"c2sp.org/tlog-proof@v1\nindex 0\n\n"])
def test_what_is_no_proof_is_refused(data: bytes) -> None:
    refused("sealed.image.endorsement", data)


def test_a_proof_without_its_entry_is_refused(tmp_path: Path) -> None:
    good = tlog.parse_proof(proof(tmp_path / "log", entry(0)))
    for extra in (None, b"", b"x", endorse(release(0), ENDORSERS[0]).to_cbor()):
        refused("sealed.image.endorsement", replace(good, extra=extra).encode())


def test_a_policy_comes_back_from_what_people_write() -> None:
    for policy in (POLICY, replace(POLICY, witnesses=(WITNESS.key,), threshold=1)):
        assert parse_policy(text(policy).encode()) == policy
    shuffled = replace(POLICY, keys=KEYS)
    assert parse_policy(text(shuffled).encode()).digest == POLICY.digest


def test_every_field_of_a_policy_is_in_its_digest() -> None:
    log = tlog.NoteSigner(LOG.key.name, tlog.LOG, os.urandom(32)).key
    others = (
        replace(POLICY, threshold=1), replace(POLICY, keys=KEYS[:2]), replace(POLICY, witnesses=(WITNESS.key,)),
        replace(POLICY, log=log), replace(POLICY, log=replace(LOG.key, name="other")),
    )  # fmt: skip
    assert len({each.digest for each in (POLICY, *others)}) == 6


def test_what_is_no_policy_is_refused() -> None:
    good = text(POLICY)
    for wrong in (
        "", "x", good.replace("threshold = 2", "threshold = 0"), good.replace("threshold = 2", "threshold = 4"),
        good.replace("threshold = 2", "threshold = true"), good.replace("threshold = 2", 'threshold = "2"'),
        good + "more = 1\n", good.replace(KEYS[0].hex(), KEYS[1].hex()), good.replace(KEYS[0].hex(), "00"),
        good.replace(KEYS[0].hex(), "xy" * 32), good.replace(str(LOG.key), str(WITNESS.key)),
        good.replace("witnesses = []", f'witnesses = ["{LOG.key}"]'), good.replace("witnesses = []", "witnesses = [1]"),
        good.replace("witnesses = []", f'witnesses = ["{WITNESS.key}", "{WITNESS.key}"]'),
        good.replace("witnesses = []", "witnesses = 1"), "keys = " + "[" * 5000, good + "#" * (1 << 14),
    ):  # fmt: skip
        with pytest.raises(UsageError):
            parse_policy(wrong.encode())
    with pytest.raises(UsageError):
        parse_policy(b"\xff")
