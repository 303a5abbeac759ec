"""A draw recomputed by docs/formats/draw.md alone: a CBOR decoder, hashes, signatures; nothing of the Verifier's."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import cbor2
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, padding, rsa
from support.draws import House, fleet, heads_of


def record_digest(domain: str, value: Any) -> bytes:
    return blake3(b"weighbridge/" + domain.encode() + b"\x00" + cbor2.dumps(value, canonical=True)).digest()


def below(stream: Any, bound: int) -> int:
    while True:
        number = int.from_bytes(stream.read(8), "big")
        if number < bound * (2**64 // bound):
            return number % bound


class Stream:
    """BLAKE3 in extended-output mode, from the beginning on."""

    def __init__(self, seed: bytes) -> None:
        self.hash, self.place = blake3(b"weighbridge/sampling/1\x00" + seed), 0

    def read(self, count: int) -> bytes:
        data = self.hash.digest(count, seek=self.place)
        self.place += count
        return data


def key_of(vkey: str) -> tuple[str, bytes, int, bytes]:
    """Returns name, identifier, type and public key."""
    name, identifier, rest = vkey.split("+", 2)
    data = base64.b64decode(rest)
    assert hashlib.sha256(name.encode() + b"\n" + data).digest()[:4].hex() == identifier
    return name, bytes.fromhex(identifier), data[0], data[1:]


def logged(value: dict[str, str], log: str, witness: str) -> tuple[dict[str, Any], bytes, int, int]:
    """Checks a proof; returns the entry, its digest, its place, and the witness's time."""
    entry = bytes.fromhex(value["entry"])
    top, note = value["proof"].split("\n\n", 1)
    kind, index, *path = top.split("\n")
    assert kind == "c2sp.org/tlog-proof@v1"
    place = int(index.removeprefix("index "))
    text, signatures = note.rsplit("\n\n", 1)
    text += "\n"
    origin, size, root, _ = text.split("\n")
    found = {}
    for line in signatures.splitlines():
        _, name, data = line.split(" ")
        found[name, base64.b64decode(data)[:4]] = base64.b64decode(data)[4:]
    name, identifier, kind_, public = key_of(log)
    assert (origin, kind_) == (name, 1)
    ed25519.Ed25519PublicKey.from_public_bytes(public).verify(found[name, identifier], text.encode())
    name, identifier, kind_, public = key_of(witness)
    signed = found[name, identifier]
    time = int.from_bytes(signed[:8], "big")
    message = f"cosignature/v1\ntime {time}\n{text}".encode()
    assert kind_ == 4
    ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signed[8:], message)
    node, last, value_ = place, int(size) - 1, hashlib.sha256(b"\x00" + entry).digest()
    for sibling in map(base64.b64decode, path):  # RFC 9162, section 2.1.3.2
        if node % 2 or node == last:
            value_ = hashlib.sha256(b"\x01" + sibling + value_).digest()
            while node % 2 == 0 and node:
                node, last = node >> 1, last >> 1
        else:
            value_ = hashlib.sha256(b"\x01" + value_ + sibling).digest()
        node, last = node >> 1, last >> 1
    assert last == 0
    assert value_ == base64.b64decode(root)
    decoded = cbor2.loads(entry)
    assert cbor2.dumps(decoded, canonical=True) == entry
    return decoded, blake3(entry).digest(), place, time


@pytest.mark.parametrize("by", [(), ("site",), ("owner", "type")])
def test_a_record_is_verified_by_the_page(tmp_path: Path, by: tuple[str, ...]) -> None:
    house = House(tmp_path)
    population = fleet(30)
    house.log.append(b"an entry about something else")
    files = house.record(population, heads_of(population, {2, 7}), by=by, samples=9).files()
    house.close()
    record = json.loads(files[0][1])
    (witness,) = record["witnesses"]
    commitment, committed, first, committed_s = logged(record["commitment"], record["log"], witness)
    closing, closed, second, closed_s = logged(record["closing"], record["log"], witness)
    opening, _, third, _ = logged(record["opening"], record["log"], witness)
    assert first < second < third
    assert committed_s <= commitment["cutoff_ms"] // 1000 <= closed_s
    info, value = record["beacon"], record["value"]
    assert closed_s < info["genesis_time"] + (commitment["round"] - 1) * info["period"]

    lines = record["population"]["lines"].encode()
    assert blake3(lines).digest() == commitment["population"]
    chips = [line.split("\t") for line in lines.decode().split("\n")[1:-1]]
    heads = record["heads"]["lines"].encode()
    assert blake3(heads).digest() == closing["heads"]
    witnessed = {line.split("\t")[0] for line in heads.decode().split("\n")[1:-1]}
    assert len(witnessed) == closing["witnessed"]
    assert (closing["commitment"], opening["commitment"], opening["closing"]) == (committed, committed, closed)
    assert record_digest("draw-secret/1", opening["secret"]) == commitment["secret"]

    public = bytes.fromhex(info["public_key"])
    chain = hashlib.sha256(b"weighbridge/beacon/1\x00weighbridge-rsa-unchained/1\x00")
    chain.update(info["period"].to_bytes(4, "big") + info["genesis_time"].to_bytes(8, "big") + public)
    assert chain.digest() == commitment["beacon"] == bytes.fromhex(info["hash"])
    assert value["round"] == commitment["round"]
    key = serialization.load_der_public_key(public)
    assert isinstance(key, rsa.RSAPublicKey)
    message = b"weighbridge/beacon/1\x00" + value["round"].to_bytes(8, "big")
    key.verify(bytes.fromhex(value["signature"]), message, padding.PKCS1v15(), hashes.SHA256())
    randomness = hashlib.sha256(bytes.fromhex(value["signature"])).digest()
    assert randomness == bytes.fromhex(value["randomness"]) == opening["randomness"]

    parts = [opening["secret"], commitment["registry"], closing["heads"], randomness]
    seed = record_digest("draw-seed/1", parts)
    assert seed == opening["seed"]
    columns = {"owner": 1, "site": 2, "type": 3}
    strata: dict[tuple[str, ...], list[str]] = {}
    for chip in chips:
        strata.setdefault(tuple(chip[columns[name]] for name in commitment["by"]), []).append(chip[0])
    assert [[list(k), len(strata[k])] for k in sorted(strata)] == [[k, n] for k, n, _ in commitment["strata"]]
    result, all_drawn, all_certain = [], [], []
    for stratum, _, samples in commitment["strata"]:
        members = sorted(strata[tuple(stratum)])
        certain = [each for each in members if each not in witnessed]
        places = [each for each in members if each in witnessed]
        stream, count = Stream(record_digest("draw-stratum/1", [seed, stratum])), len(places)
        for k in range(min(samples, count)):
            other = k + below(stream, count - k)
            places[k], places[other] = places[other], places[k]
        drawn = places[: min(samples, count)]
        result.append([stratum, [bytes.fromhex(e) for e in certain], [bytes.fromhex(e) for e in drawn]])
        all_drawn += drawn
        all_certain += certain
    assert record_digest("draw-sample/1", result) == opening["sample"]
    assert (record["drawn"], record["certain"]) == (all_drawn, all_certain)
    assert len(all_drawn) == 9
    assert len(all_certain) == 2
