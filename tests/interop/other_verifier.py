"""Verifies tokens and checkpoints with other people's libraries, in an environment that has nothing of ours.

It reads a JSON list of cases from stdin and writes one of answers to stdout: what a verified token or checkpoint says,
or `refused` with the library's reason. Byte strings are hex, and integers that are keys of CBOR maps become text.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import cbor2
import cwt
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from OpenSSL import crypto
from sigstore._internal.merkle import verify_merkle_inclusion
from sigstore._internal.rekor.checkpoint import SignedCheckpoint, verify_checkpoint
from sigstore._internal.trust import Keyring
from sigstore.models import TransparencyLogEntry
from sigstore_models.common.v1 import LogId, PublicKey, PublicKeyDetails
from sigstore_models.rekor.v1 import Checkpoint, InclusionProof, KindVersion
from sigstore_models.rekor.v1 import TransparencyLogEntry as Entry

ALGORITHM, CONTENT_TYPE, X5CHAIN = 1, 3, 33


def token(case: dict[str, str]) -> dict[str, Any]:
    """Verifies a token: OpenSSL the x5chain up to the root, python-cwt the signature by its leaf."""
    data = bytes.fromhex(case["token"])
    outer = cbor2.loads(data)
    if outer.tag != cwt.CWT.CBOR_TAG:
        raise ValueError(f"tag {outer.tag} is not that of a CWT")
    sign1 = outer.value
    protected, unprotected, *_ = sign1.value
    store = crypto.X509Store()
    store.add_cert(crypto.load_certificate(crypto.FILETYPE_PEM, case["root"].encode()))
    leaf, device = (crypto.load_certificate(crypto.FILETYPE_ASN1, der) for der in unprotected[X5CHAIN])
    crypto.X509StoreContext(store, leaf, [device]).verify_certificate()
    key = leaf.get_pubkey().to_cryptography_key()
    headers = cbor2.loads(protected)
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    # Not cwt.CWT: it wants a `kid`, and the key is named by the chain instead.
    payload = cwt.COSE.new().decode(sign1, cwt.COSEKey.from_pem(pem, alg="ES384"))
    claims = cwt.Claims.new(cbor2.loads(payload)).to_dict()
    return {
        "algorithm": headers[ALGORITHM],
        "content_type": headers[CONTENT_TYPE],
        "serial_number": dict(device.get_subject().get_components())[b"serialNumber"].decode(),
        "claims": readable(claims),
    }


def checkpoint(case: dict[str, Any]) -> dict[str, Any]:
    """Verifies a checkpoint's signature by the log's key, and by an inclusion proof that an entry is in its tree."""
    signed = SignedCheckpoint.from_text(case["checkpoint"])
    # RFC 8410: what comes before the 32 bytes of an Ed25519 key in its SubjectPublicKeyInfo.
    spki = bytes.fromhex("302a300506032b6570032100" + case["key"])
    key = PublicKey(raw_bytes=base64.b64encode(spki), key_details=PublicKeyDetails.PKIX_ED25519)
    proof = InclusionProof(
        log_index=str(case["index"]),
        root_hash=base64.b64encode(bytes.fromhex(signed.checkpoint.log_hash)),
        tree_size=str(signed.checkpoint.log_size),
        hashes=[base64.b64encode(bytes.fromhex(each)) for each in case["hashes"]],
        checkpoint=Checkpoint(envelope=case["checkpoint"]),
    )
    entry = TransparencyLogEntry(
        Entry(
            log_index=str(case["index"]),
            log_id=LogId(key_id=base64.b64encode(bytes.fromhex(case["key_id"]))),
            kind_version=KindVersion(kind="token", version="1"),
            inclusion_proof=proof,
            canonicalized_body=base64.b64encode(bytes.fromhex(case["entry"])),
        )
    )
    verify_checkpoint(Keyring([key]), entry)
    verify_merkle_inclusion(entry)
    return {"origin": signed.checkpoint.origin, "size": signed.checkpoint.log_size, "root": signed.checkpoint.log_hash}


def readable(value: Any) -> Any:
    """Returns CBOR data as JSON has it."""
    match value:
        case bytes():
            return value.hex()
        case dict():
            return {str(key): readable(each) for key, each in value.items()}
        case list() | tuple():
            return [readable(each) for each in value]
    return value


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Answers one case."""
    try:
        return token(case) if "token" in case else checkpoint(case)
    except Exception as error:  # Each library has its own ways to refuse; genuine cases are asked beside false ones.
        return {"refused": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    assert "weighbridge" not in sys.modules
    json.dump([answer(case) for case in json.load(sys.stdin)], sys.stdout)
