"""`weighbridge site compare|endorse|publish|prove|monitor|vet|machines`: endorsers, a log, and who gets around them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.sealed_orders import sealed_order

from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.manifest import load_or_create_key
from weighbridge.attest.sealed_attestation import Launcher
from weighbridge.cli.main import run
from weighbridge.cli.site.images import require_vetted
from weighbridge.core.errors import UsageError
from weighbridge.execution.sealed import image as images

ORIGIN = "images.example.org/log"
FILES = {images.INTERPRETER: b"interpreter", images.PROCESSOR: b"x86-64-v3", "code/a.py": b"print(1)\n"}


def small(at: Path, **changed: bytes) -> Path:
    """An image of three files."""
    for name, content in {**FILES, **{f"code/{key}.py": value for key, value in changed.items()}}.items():
        (at / images.FILES / name).parent.mkdir(parents=True, exist_ok=True)
        (at / images.FILES / name).write_bytes(content)
    (at / images.MANIFEST).write_bytes(images.measure(at / images.FILES).to_cbor())
    return at


@dataclass
class Endorsers:
    """Three endorsers of an image, and the keeper of a log."""

    root: Path
    capture: pytest.CaptureFixture[str]

    def call(self, *words: object, code: int = 0) -> str:
        self.capture.readouterr()
        assert run([str(each) for each in words]) == code, self.capture.readouterr()
        said = self.capture.readouterr()
        return said.out + said.err

    def __post_init__(self) -> None:
        for name in "abc":
            load_or_create_key(self.root / f"{name}.key")
        self.image = small(self.root / "image")
        self.measurement = images.load(self.image).measurement.hex()
        self.proofs = self.policies = 0

    def publish(self, names: str, *, image: Path | None = None, log: str = "log", code: int = 0) -> str:
        given = []
        for name in names:
            out = self.root / f"{name}{len(list(self.root.iterdir()))}.endorsement"
            self.call("site", "endorse", image or self.image, "--key", self.root / f"{name}.key", "--out", out)
            given.append(out)
        key = ("--key", self.root / "log.key", "--origin", ORIGIN)
        return self.call("site", "publish", self.root / log, *given, *key, code=code)

    @property
    def log_key(self) -> str:
        from weighbridge.attest import tlog

        return str(tlog.NoteSigner(ORIGIN, tlog.LOG, (self.root / "log.key").read_bytes()).key)

    def policy(self, threshold: int = 2, witnesses: str = "[]") -> Path:
        keys = [load_or_create_key(self.root / f"{name}.key").public.hex() for name in "abc"]
        self.policies += 1
        path = self.root / f"{self.policies}.toml"
        path.write_text(f'log = "{self.log_key}"\nwitnesses = {witnesses}\nkeys = {keys}\nthreshold = {threshold}\n')
        return path

    def prove(self, *, log: str = "log", measurement: str = "", code: int = 0) -> Path:
        self.proofs += 1
        out = self.root / f"{self.proofs}.proof"
        named = ("--measurement", measurement or self.measurement, "--policy", self.policy(), "--out", out)
        self.call("site", "prove", self.root / log, *named, code=code)
        return out

    def vet(self, proof: Path, *, policy: Path | None = None, measurement: str = "", code: int = 0) -> str:
        named = ("--policy", policy or self.policy(), "--measurement", measurement or self.measurement)
        return self.call("site", "vet", proof, *named, code=code)

    def monitor(self, *more: object, log: str = "log", code: int = 0) -> str:
        seen = ("--seen", self.root / "seen")
        return self.call("site", "monitor", self.root / log, "--policy", self.policy(), *seen, *more, code=code)


@pytest.fixture
def endorsers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Endorsers:
    return Endorsers(tmp_path, capsys)


def test_images_are_compared_file_by_file(endorsers: Endorsers) -> None:
    same = small(endorsers.root / "same")
    other = small(endorsers.root / "other", a=b"print(2)\n", more=b"x")
    assert endorsers.measurement in endorsers.call("site", "compare", endorsers.image, same)
    said = endorsers.call("site", "compare", same, other / images.MANIFEST, code=1)
    assert "code/a.py: in both, with other content" in said
    assert f"code/more.py: in {other / images.MANIFEST} only" in said
    assert "2 files differ" in said
    read = json.loads(endorsers.call("site", "compare", same, other, "--json", code=1))
    assert (read["same"], [each["name"] for each in read["differ"]]) == (False, ["code/a.py", "code/more.py"])
    assert read["differ"][1]["one"] is None
    many = small(endorsers.root / "many", **{f"m{number}": b"" for number in range(50)})
    assert "and 10 more" in endorsers.call("site", "compare", same, many, code=1)
    assert "more (" not in endorsers.call("site", "compare", same, many, "--all", code=1)


def test_an_image_that_two_of_three_signed_is_vetted(endorsers: Endorsers) -> None:
    assert "log = " in endorsers.publish("ab")
    said = endorsers.vet(endorsers.prove())
    assert "signed by 2 of the agreed keys" in said
    assert endorsers.measurement in said


def test_an_entry_of_strangers_does_not_hide_that_of_the_endorsers(endorsers: Endorsers) -> None:
    """Anyone may have the keeper enter an image, also one that is there: with more signatures, and later."""
    endorsers.publish("ab")
    for name in "defg":
        endorsers.call("rules", "key", endorsers.root / f"{name}.key")
    endorsers.publish("adefg")
    endorsers.publish("defg")
    proof = endorsers.prove()
    assert "signed by 2 of the agreed keys" in endorsers.vet(proof)
    endorsers.publish("abc")
    assert "signed by 3 of the agreed keys" in endorsers.vet(endorsers.prove())


@pytest.mark.finding("sealed.image.endorsement")
def test_one_signature_too_few_is_refused(endorsers: Endorsers) -> None:
    """Also if one endorser signs several times, with copies of its key, or its endorsement is given twice."""
    shutil.copy(endorsers.root / "a.key", endorsers.root / "d.key")
    endorsers.publish("ad")
    said = endorsers.vet(endorsers.prove(), code=2)
    assert "sealed.image.endorsement" in said
    assert "1 of the agreed keys signed it, and 2 have to" in said


def test_an_image_that_changed_after_its_list_is_not_signed(endorsers: Endorsers) -> None:
    (endorsers.image / images.FILES / "code" / "a.py").write_bytes(b"evil")
    out = endorsers.root / "x.endorsement"
    said = endorsers.call("site", "endorse", endorsers.image, "--key", endorsers.root / "a.key", "--out", out, code=2)
    assert "other files than its list" in said
    assert not out.exists()
    missing = ("--key", endorsers.root / "none.key", "--out", out)
    assert "there is no key" in endorsers.call("site", "endorse", endorsers.image, *missing, code=2)


def test_endorsements_of_two_images_are_no_entry(endorsers: Endorsers) -> None:
    other = small(endorsers.root / "other", a=b"print(2)\n")
    for name, image in (("a", endorsers.image), ("b", other)):
        out = endorsers.root / f"{name}.endorsement"
        endorsers.call("site", "endorse", image, "--key", endorsers.root / f"{name}.key", "--out", out)
    given = [endorsers.root / f"{name}.endorsement" for name in "ab"]
    key = ("--key", endorsers.root / "log.key", "--origin", ORIGIN)
    assert "different images" in endorsers.call("site", "publish", endorsers.root / "log", *given, *key, code=2)


@pytest.mark.finding("sealed.image.unlogged")
def test_an_image_that_is_not_in_the_log_is_refused(endorsers: Endorsers) -> None:
    endorsers.publish("ab")
    other = small(endorsers.root / "other", a=b"print(2)\n")
    measured = images.load(other).measurement.hex()
    assert not endorsers.prove(measurement=measured, code=2).exists()
    proof = endorsers.prove()
    assert "another image" in endorsers.vet(proof, measurement=measured, code=2)
    policy = endorsers.policy()
    (endorsers.root / "log.key").unlink()
    endorsers.publish("ab", log="own")  # a log of the same name, of another key
    assert "sealed.image.unlogged" in endorsers.vet(endorsers.prove(log="own"), policy=policy, code=2)


@pytest.mark.finding("sealed.image.fork")
def test_a_log_that_forked_is_found_by_its_monitors(endorsers: Endorsers) -> None:
    """The keeper shows an image to one victim alone; its proof holds, and convicts the log."""
    endorsers.publish("ab")
    shutil.copytree(endorsers.root / "log", endorsers.root / "shown")
    assert "1 entries, of which 0 were seen before" in endorsers.monitor()
    evil = small(endorsers.root / "evil", a=b"evil")
    endorsers.publish("ab", image=evil, log="shown")
    proof = endorsers.prove(log="shown", measurement=images.load(evil).measurement.hex())
    endorsers.publish("ab", image=small(endorsers.root / "next", a=b"next"))
    said = endorsers.monitor()
    assert "2 entries, of which 1 were seen before" in said
    assert "1: " in said
    assert "0: " not in said
    assert "sealed.image.fork" in endorsers.monitor("--other", proof, code=2)
    assert "sealed.image.fork" in endorsers.monitor(log="shown", code=2)
    assert "of which 2 were seen" in endorsers.monitor("--other", endorsers.prove())


def test_a_witness_cosigns_what_grew_and_nothing_else(endorsers: Endorsers) -> None:
    endorsers.publish("ab")
    witness = ("--cosign", endorsers.root / "witness.key", "--name", "monitor.example.org")
    line = endorsers.monitor(*witness).split("witnesses = ")[1].strip()
    policy = endorsers.policy(witnesses=line)
    endorsers.vet(endorsers.prove(), policy=policy)
    shutil.rmtree(endorsers.root / "log")
    endorsers.publish("ab", image=small(endorsers.root / "evil", a=b"evil"))  # begun anew
    endorsers.publish("ab")
    assert "sealed.image.fork" in endorsers.monitor(*witness, code=2)
    policy = endorsers.policy(witnesses=line)
    assert "sealed.image.unlogged" in endorsers.vet(endorsers.prove(), policy=policy, code=2)
    assert "give both" in endorsers.monitor("--name", "x", code=2)


def test_a_site_starts_no_image_that_its_policy_does_not_permit(endorsers: Endorsers, tmp_path: Path) -> None:
    """Nothing is appended to the log of starts, so the nonces are not spent."""
    Launcher.issue(CertificateAuthority.create("Maker"), bytes(17)).save(tmp_path / "launcher")
    order = sealed_order(measurement=bytes.fromhex(endorsers.measurement))
    (tmp_path / "order").write_bytes(order.to_cbor())
    endorsers.publish("a")
    words = [f"--{name}={tmp_path / where}" for name, where in
             (("order", "order"), ("identity", "launcher"), ("image", "image"), ("log", "starts"))]  # fmt: skip
    words += [f"--image-policy={endorsers.policy()}"]
    said = endorsers.call("site", "worker", *words, f"--image-proof={endorsers.prove()}", code=2)
    assert "sealed.image.endorsement" in said
    assert "give both" in endorsers.call("site", "worker", *words, code=2)
    assert not (tmp_path / "starts").exists()


def test_terms_that_name_a_policy_are_held_to_it(endorsers: Endorsers) -> None:
    """A party that leaves the policy out, or brings another one, signs nothing."""
    from weighbridge.attest.image_policy import parse_policy

    endorsers.publish("ab")
    policy, proof, measured = endorsers.policy(), endorsers.prove(), bytes.fromhex(endorsers.measurement)
    agreed = parse_policy(policy.read_bytes()).digest
    require_vetted(policy, proof, measured, agreed)
    require_vetted(None, None, measured, b"")
    weaker = endorsers.policy(threshold=1)
    for given in ((None, None), (policy, None), (None, proof), (weaker, proof)):
        with pytest.raises(UsageError):
            require_vetted(*given, measured, agreed)
    with pytest.raises(UsageError):
        require_vetted(policy, proof, measured, b"")


def test_machines_are_launchers_of_one_authority(endorsers: Endorsers, tmp_path: Path) -> None:
    from firmware_sim import device

    maker = CertificateAuthority.create("Both sides' authority")
    (tmp_path / "root.pem").write_bytes(maker.pem)
    for number in range(3):
        Launcher.issue(maker, bytes([number]) * 17).save(tmp_path / str(number))
    named = [tmp_path / str(number) / "launcher.der" for number in range(3)]
    to = ("--root", tmp_path / "root.pem", "--out", tmp_path / "machines.tsv")
    assert "3 machines" in endorsers.call("site", "machines", *named, *to)
    assert (tmp_path / "machines.tsv").read_text().count("\n") == 4
    assert "named twice" in endorsers.call("site", "machines", named[0], named[0], *to, code=2)
    Launcher.issue(CertificateAuthority.create("Other"), bytes(17)).save(tmp_path / "other")
    endorsers.call("site", "machines", tmp_path / "other" / "launcher.der", *to, code=2)
    device.provision(tmp_path / "chip", maker)
    (chip,) = (path for path in (tmp_path / "chip").iterdir() if path.suffix in (".der", ".crt", ".cer"))
    assert "no launcher" in endorsers.call("site", "machines", chip, *to, code=2)
