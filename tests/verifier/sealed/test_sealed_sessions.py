"""Whole inspections in sealed workers: what leaves them, and what parties try against them. The workers are real."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from nacl.signing import SigningKey
from support.populated_station import populate
from support.sealed_isolation import LACKING
from support.sealed_session import Parties, Start
from support.station import Station

from verifier.model.agreed_population import AgreedPopulation
from verifier.registry import Chip
from verifier.sealed.case import Case, seed_of
from verifier.store.tables import UnitRow
from weighbridge.attest import sealed_starts
from weighbridge.attest.beacon import LocalBeacon
from weighbridge.attest.hidden_fields import HiddenFields
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.manifest import load_or_create_key
from weighbridge.attest.outcome_agreement import Agreement
from weighbridge.attest.sealed_attestation import Launcher
from weighbridge.attest.sealed_channel import ProverKey, WorkerKey
from weighbridge.attest.sealed_order import Order
from weighbridge.attest.sealed_session import assent, session_of
from weighbridge.core.digests import cbor
from weighbridge.execution.sealed import image as images

JOBS = {"honest": "declared", "hidden": "hidden"}
WINDOW = 64
LEAVES, PARTED = 75, 200

pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"NOT TESTED: this machine does not permit {LACKING}")


@pytest.fixture(scope="module")
def parties(sealed_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parties]:
    """An honest run, an undeclared one, an idle chip and a dead one, all in confidential boots; and a site."""
    root = tmp_path_factory.mktemp("sealed")
    (root / "station").mkdir()
    (root / "parties").mkdir()
    with Station(root / "station") as station:
        populate(station, JOBS, "idle", confidential=True)
        yield Parties(root / "parties", station, sealed_image, images.load(sealed_image).measurement.hex())


@pytest.fixture(scope="module")
def sealed(parties: Parties) -> Start:
    """A session that ran to its end: draws by both parties' shares and a beacon, an endorsed image, a drawn machine."""
    start = parties.start(4, leaves=LEAVES, vetted=True, beacon=LocalBeacon.load(parties.root / "beacon.key"))
    done = start.run()
    assert done.returncode == 0, done.stdout
    return start


def test_what_leaves_says_what_was_found(sealed: Start) -> None:
    said = sealed.outcome(chips=4)
    assert said["verified"]
    record = said["record"]
    assert (record["status"], record["C"], record["s"]) == ("complete", 4, 4)
    assert record["snapshots"] == {"explained": 1, "unexplained": 1}
    assert "snapshot.unexplained" in record["violations"]


def test_the_verifier_has_nothing_of_the_provers(sealed: Start) -> None:
    """No window of weights, batches, openings, tapes or records is in what the Verifier received or wrote."""
    received = list(_received(sealed))
    inputs = sealed.parties.root / "prover" / f"{sealed.name}.inputs"
    secrets = [path for path in inputs.rglob("*") if path.is_file() and path.stat().st_size >= WINDOW]
    assert {path.relative_to(inputs).parts[0] for path in secrets} == {"openings", "tokens", "transcripts"}
    assert len(secrets) > 8
    for path in secrets:
        content = path.read_bytes()
        windows = [content[at : at + WINDOW] for at in range(0, len(content) - WINDOW + 1, WINDOW)]
        assert not any(window in each for window in windows if any(window) for each in received), path


def test_the_verifier_has_no_value_that_a_token_hides(sealed: Start) -> None:
    """Sizes, positions, FLOPs, names and digests of events, and roots are in nothing that it received or wrote."""
    received = list(_received(sealed))
    openings = list((sealed.parties.root / "prover" / f"{sealed.name}.inputs" / "tokens").rglob("*.cbor"))
    bodies: list[Mapping[str, Any]] = []
    for path in openings:
        fields = HiddenFields.from_cbor(path.read_bytes())
        bodies += [fields.work.to_json(), *([] if fields.body is None else [fields.body])]
    # The boot entry shows the digest of the salt; and a digest of zeros is none.
    values = [
        (name, value)
        for body in bodies
        for name, value in body.items()
        if name != "salt_digest" and value and value != bytes(32)
    ]
    assert {"weights_bytes", "flops", "step", "root", "name", "digest", "busy_ns"} <= {name for name, _ in values}
    there = {name for name, value in values if any(each in data for each in _forms(name, value) for data in received)}
    assert there == set()


def _forms(name: str, value: Any) -> list[bytes]:
    """How a value may stand in a file: with its name, and by itself where that is no chance."""
    forms = [cbor(name) + cbor(value), json.dumps(name).encode() + b": " + str(value).encode() + b","]
    if isinstance(value, bytes):
        forms += [value, value.hex().encode()]
    elif isinstance(value, str):
        forms.append(value.encode())
    elif value >= 1 << 32:  # shorter ones are in other numbers by chance
        forms += [cbor(value), str(value).encode()]
    return forms


def _received(sealed: Start) -> Iterator[bytes]:
    """Yields all that the Verifier has: its files and its registry, and of what is compressed the content too."""
    station = sealed.parties.station.root
    files = [path for path in (sealed.parties.root / "verifier").rglob("*") if path.is_file()]
    # By another process: if this one closed the registry's file, SQLite's locks on it would go with it, and with them
    # what is written here later.
    databases = [
        subprocess.run(["cat", path], capture_output=True, check=True) for path in station.glob("registry.db*")
    ]
    found = [*(path.read_bytes() for path in files), *(each.stdout for each in databases)]
    with closing(sqlite3.connect(station / "registry.db")) as database:
        units = [value for (value,) in database.execute(f"SELECT value FROM {UnitRow.__tablename__}")]
    assert units
    yield from found
    for data in [*units, *found]:
        if data.startswith(zstandard.FRAME_HEADER):
            yield zstandard.ZstdDecompressor().decompress(data, max_output_size=1 << 28)


def test_the_prover_has_the_report_and_may_open_parts_of_it(sealed: Start) -> None:
    parties, n = sealed.parties, sealed.name
    parties.run(
        "prover", f"outcome reveal {n}.session/report.json --salt {n}.inputs/salt --part findings/0 --out {n}.part"
    )
    parties.give("prover", "verifier", f"{n}.part")
    assert '"severity"' in parties.run("verifier", f"outcome part {n}.outcome.bin {n}.part")


def test_key_and_signature_are_the_only_ones_possible(sealed: Start) -> None:
    at, n = sealed.parties.root, sealed.name
    sealed.parties.run(
        "verifier", f"outcome audit {n}.outcome.bin --agreement {n}.agreement --verifier-secret {n}.secret"
        f" --prover-secret {at}/prover/{n}.secret",
    )  # fmt: skip


def test_an_order_runs_once(sealed: Start) -> None:
    at, n = sealed.parties.root, sealed.name
    (at / "prover" / f"{n}.session").rename(at / "prover" / f"{n}.first")
    try:
        done = sealed.run()
        assert done.returncode == 2
        assert "sealed.nonce" in done.stdout
    finally:
        again = at / "prover" / f"{n}.session"
        again.rename(at / "prover" / f"{n}.second")
        (at / "prover" / f"{n}.first").rename(again)


def test_what_a_prover_withholds_is_in_the_record(parties: Parties) -> None:
    start = parties.start(4, leaves=LEAVES, skip=lambda name: name == "hidden")
    done = start.run()
    assert done.returncode == 0, done.stdout
    said = start.outcome(chips=4, code=1)
    assert [each["id"] for each in said["findings"]] == ["outcome.withheld"]
    record = said["record"]
    assert record["snapshots"] == {"explained": 1, "withheld": 1}
    assert "outcome.withheld" in record["violations"]
    assert record["w"] >= 1


@pytest.mark.finding("sealed.nonce")
def test_a_session_with_parts_finds_what_it_finds_without(parties: Parties, sealed: Start) -> None:
    """Two other workers make replays and hand them to the session's; the record says the same but for its nonce."""
    start = parties.start(4, leaves=PARTED, parts=2)
    session = parties.root / "prover" / f"{start.name}.session"
    other = parties.root / "site" / "other"
    Launcher.issue(parties.maker, b"\x02" * 17).save(other)
    makers = [start.worker(session / f"part-{number}.order", other) for number in (1, 2)]
    before = len(sealed_starts.read_starts(parties.root / "site" / "starts"))
    done = start.run(more=[word for each in makers for word in ("--part", each)])
    assert done.returncode == 0, done.stdout
    assert "is not made" not in done.stdout
    said, alone = start.outcome(chips=4), sealed.outcome(chips=4)
    assert said["verified"]
    same = ("status", "C", "s", "w", "snapshots", "violations", "warnings")
    assert {name: said["record"][name] for name in same} == {name: alone["record"][name] for name in same}
    report = json.loads((session / "report.json").read_text())
    assert report["parts"]["replays"] > 0
    assert report["parts"]["refused"] == {}
    assert len(sealed_starts.read_starts(parties.root / "site" / "starts")) == before + 3
    again = subprocess.run(makers[0].split(), capture_output=True, text=True)
    assert again.returncode == 2
    assert "sealed.nonce" in again.stderr


@pytest.mark.finding("usage")
def test_parties_sign_parts_of_the_authority_that_they_trust(parties: Parties) -> None:
    start = parties.start(2, leaves=LEAVES, parts=1)
    n, at = start.name, parties.root
    (at / "verifier" / "another.pem").write_bytes(CertificateAuthority.create("Another").pem)
    signing = f"site assent {n}.order --agreement {n}.agreement --case {n}.case --measurement {parties.measurement}"
    signing += " --key own.key --out never"
    assert "--root" in parties.run("verifier", signing, code=2)
    assert "another authority" in parties.run("verifier", signing, "--root", "another.pem", code=2)
    assert not (at / "verifier" / "never").exists()
    ordering = f"site order --out never --agreement {n}.agreement --case {n}.case --inputs {n}.inputs --key sealed.key"
    ordering += f" --report-key report.key --measurement {parties.measurement} --parts 2"
    assert "--root" in parties.run("prover", ordering, code=2)
    more = start.run(more=["--part", "false", "--part", "false"])
    assert more.returncode == 2
    assert "fewer parts" in more.stdout
    assert not (at / "prover" / f"{n}.session").exists()


def another_secret(start: Start) -> None:
    """The Verifier gives a secret that it is not committed to: with it, it would know the key beforehand."""
    at, n = start.parties.root / "verifier", start.name
    (at / "other.secret").write_bytes(os.urandom(32))
    (at / "other.secret").chmod(0o600)
    start.parties.run(
        "verifier", f"site admit {n}.order --agreement {n}.agreement --case {n}.case --attestation {n}.attestation"
        f" --root root.pem --secret other.secret --out {n}.box",
    )  # fmt: skip


@pytest.mark.finding("sealed.inputs")
def test_nothing_leaves_with_a_secret_that_a_party_chose_later(parties: Parties) -> None:
    start = parties.start(4, leaves=LEAVES)
    done = start.run(before=another_secret)
    assert done.returncode == 2
    assert "sealed." in done.stdout
    assert not list((parties.root / "prover" / f"{start.name}.session").glob("outcome*"))


@pytest.mark.finding("sealed.channel")
def test_nothing_leaves_without_the_verifiers_assent(parties: Parties) -> None:
    start = parties.start(4, leaves=LEAVES)
    at = parties.root / "prover"
    (at / f"{start.name}.verifier.assent").write_bytes((at / f"{start.name}.prover.assent").read_bytes())
    done = start.run()
    assert done.returncode == 2
    assert "sealed.channel" in done.stdout
    assert not list((at / f"{start.name}.session").glob("outcome*"))


def test_parties_sign_no_order_of_another_case(parties: Parties) -> None:
    """A Verifier whose case asks about other chips than were drawn has no signature of its Prover, and vice versa."""
    start = parties.start(2, leaves=LEAVES)
    n, at = start.name, parties.root / "prover"
    other = parties.start(3, leaves=LEAVES)
    for case, measurement in ((f"{other.name}.case", parties.measurement), (f"{n}.case", "00" * 48)):
        said = parties.run(
            "prover", f"site assent {n}.order --agreement {n}.agreement --case {case} --measurement {measurement}"
            f" --key own.key --out never.assent", code=2,
        )  # fmt: skip
        assert "usage" in said
    assert not (at / "never.assent").exists()


def test_a_party_signs_one_order_of_an_agreement_and_gives_its_secret_once(parties: Parties) -> None:
    """With two orders, of other files each, a Prover would choose between two outcomes."""
    start = parties.start(2, leaves=LEAVES)
    n, at = start.name, parties.root
    order = Order.from_cbor((at / "prover" / f"{n}.order").read_bytes())
    (at / "verifier" / "second.order").write_bytes(replace(order, commitment=os.urandom(32)).to_cbor())
    signing = f"--agreement {n}.agreement --case {n}.case --measurement {parties.measurement} --key own.key --out again"
    parties.run("verifier", f"site assent {n}.order {signing}")  # the same once more does no harm
    assert "signed already" in parties.run("verifier", f"site assent second.order {signing}", code=2)
    (at / "verifier" / "copy.agreement").write_bytes((at / "verifier" / f"{n}.agreement").read_bytes())
    (at / "verifier" / "linked.key").symlink_to("own.key")
    for elsewhere in (signing.replace(f"{n}.agreement", "copy.agreement"), signing.replace("own.key", "linked.key")):
        assert "signed already" in parties.run("verifier", f"site assent second.order {elsewhere}", code=2)
    launcher, log = Launcher.load(at / "site" / "launcher"), sealed_starts.append(at / "other-starts", order)
    for name in ("one", "two"):
        keys = WorkerKey().public, bytes(SigningKey.generate().verify_key)
        attestation = launcher.quote(
            order, log, measurement=order.measurement, worker=keys[0], signer=keys[1], isolation=["no-network"]
        )
        (at / "verifier" / f"{name}.attestation").write_bytes(attestation)
    giving = f"site admit {n}.order --agreement {n}.agreement --case {n}.case --root root.pem --secret {n}.secret"
    giving += " --out box --attestation"
    for _ in range(2):
        parties.run("verifier", f"{giving} one.attestation")
    assert "given to another worker" in parties.run("verifier", f"{giving} two.attestation", code=2)


@pytest.mark.finding("sealed.machine")
@pytest.mark.finding("sealed.image.endorsement")
def test_terms_hold_parties_to_a_machine_and_an_image(parties: Parties) -> None:
    """Attested workers on machines that were not drawn get no secret; orders without a vetted image no signature."""
    start = parties.start(2, leaves=LEAVES, vetted=True)
    n, at = start.name, parties.root
    order = Order.from_cbor((at / "verifier" / f"{n}.order").read_bytes())
    log = sealed_starts.append(at / "machine-starts", order)
    giving = f"site admit {n}.order --agreement {n}.agreement --case {n}.case --root root.pem --secret {n}.secret"
    said = {}
    for launcher in (at / "site" / "launcher", *(at / "site" / name for name in "abc")):
        attestation = Launcher.load(launcher).quote(
            order, log, measurement=order.measurement, worker=WorkerKey().public,
            signer=bytes(SigningKey.generate().verify_key), isolation=["no-network"],
        )  # fmt: skip
        (at / "verifier" / f"{launcher.name}.attestation").write_bytes(attestation)
        words = f"{giving} --out {launcher.name}.box --attestation {launcher.name}.attestation"
        assert "--machines" in parties.run("verifier", words, code=2)
        code = 0 if launcher == start.identity() else 2
        said[launcher.name] = "sealed.machine" in parties.run("verifier", words, *start.machines, code=code)
    assert sum(said.values()) == 3
    assert not said[start.identity().name]
    signing = f"site assent {n}.order --agreement {n}.agreement --case {n}.case --key own.key --out never"
    signing += f" --measurement {parties.measurement}"
    assert "--image-policy" in parties.run("verifier", signing, code=2)
    (at / "verifier" / "none.proof").write_bytes(b"none")
    vetting = ("--image-policy", "images.toml", "--image-proof", "none.proof")
    assert "sealed.image.endorsement" in parties.run("verifier", signing, *vetting, code=2)
    assert not (at / "verifier" / "never").exists()


def drawn_from_others(start: Start) -> None:
    """Both parties' people sign an order of a case that draws from fewer chips than their terms name."""
    at, n = start.parties.root, start.name
    agreed = Agreement.from_cbor((at / "prover" / f"{n}.agreement").read_bytes())
    case = Case.from_cbor((at / "prover" / f"{n}.case").read_bytes())
    drawn = {log.chip.ueid for log in case.logs}
    fewer = AgreedPopulation({ueid: each for ueid, each in case.agreed.chips.items() if ueid in drawn})
    logs = {log.chip.ueid: (log, said) for log, said in zip(case.logs, case.contradictions, strict=True)}
    both = [logs[ueid] for ueid in fewer.draw(len(drawn), seed_of(agreed))]
    other = replace(
        case, population=fewer.text, logs=tuple(log for log, _ in both), contradictions=tuple(said for _, said in both)
    )
    order = Order.from_cbor((at / "prover" / f"{n}.order").read_bytes())
    order = replace(order, session=session_of(agreed, other.to_cbor()))
    for party in ("prover", "verifier"):
        (at / party / f"{n}.case").write_bytes(other.to_cbor())
        (at / party / f"{n}.order").write_bytes(order.to_cbor())
        key = load_or_create_key(at / party / "own.key")
        (at / "prover" / f"{n}.{party}.assent").write_bytes(assent(order, key))


@pytest.mark.finding("sealed.population")
@pytest.mark.finding("sealed.inputs")
def test_a_worker_draws_from_the_chips_that_were_agreed_on(parties: Parties) -> None:
    """A chip that is registered after the agreement changes no draw. An order of other chips is refused by name."""
    late = Chip(ueid=b"\x02" * 17, address="127.0.0.1:1")
    start = parties.start(2, leaves=LEAVES, later=lambda: parties.station.registry.register(late))
    n = start.name
    case = Case.from_cbor((parties.root / "prover" / f"{n}.case").read_bytes())
    assert late.ueid not in case.agreed.chips
    assert len(case.agreed) == 4
    drawn_from_others(start)  # no command signs it; the worker refuses it all the same
    said = parties.run(
        "prover", f"site assent {n}.order --agreement {n}.agreement --case {n}.case --measurement"
        f" {parties.measurement} --key own.key --out never.assent", code=2,
    )  # fmt: skip
    assert "sealed.population" in said
    done = start.run()
    assert done.returncode == 2
    assert "sealed.inputs" in done.stdout
    assert not list((parties.root / "prover" / f"{n}.session").glob("outcome*"))


def test_chips_open_to_the_attested_worker_themselves(parties: Parties) -> None:
    """The Prover gathers no opening; chips that were started for its workers encrypt them to this one.

    The last test here: after it, these chips open nothing more on their own machine.
    """
    station, at = parties.station, parties.root / "prover"
    (station.root / "workers.pem").write_bytes(parties.maker.pem)
    options = ["--worker-authority", str(station.root / "workers.pem"), "--worker-image", parties.measurement]
    options += ["--worker-prover", ProverKey.load(at / "sealed.key").public.hex()]
    alive = [name for name in station.chips if name != "dead"]
    for name in alive:
        station.chips[name].stop()
        station.chips[name]._command += options
        station.chips[name].start()
        station.register(name, station.registry.chip(station.ueids[name]).prover_address)
    everything = len(station.registry.chips())  # one that was registered later is among them
    start = parties.start(everything, leaves=LEAVES, skip=lambda _: True)
    assert not (at / f"{start.name}.inputs" / "openings").exists()
    assert not (at / f"{start.name}.inputs" / "tokens").exists()
    named = [
        word for name in alive for word in ("--chip", f"{station.ueids[name].hex()}={station.chips[name].address}")
    ]
    done = start.run(more=[*named, "--credentials", station.root / "prover"])
    assert done.returncode == 0, done.stdout
    assert "opens nothing" not in done.stdout
    record = start.outcome(chips=everything)["record"]
    assert record["snapshots"] == {"explained": 1, "unexplained": 1}
    assert not {"outcome.withheld", "chip.hidden.withheld"} & {*record["violations"], *record["warnings"]}
