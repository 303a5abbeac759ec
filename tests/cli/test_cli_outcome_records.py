"""`weighbridge outcome`: two parties agree by files, a third machine makes the record, and any reader verifies it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.reported import build, collect

from verifier.model.agreed_population import AgreedPopulation
from verifier.report import outcome
from weighbridge.attest.beacon import LocalBeacon
from weighbridge.attest.outcome_agreement import Agreement, Committed, Side
from weighbridge.attest.sealed_report import LEAVES, Part
from weighbridge.attest.signed_outcome import sign
from weighbridge.cli.main import run
from weighbridge.core import merkle
from weighbridge.core.digests import cbor

Run = Callable[..., int]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return build(collect(tmp_path_factory.mktemp("collected")))


@pytest.fixture
def at(
    reported: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    """A directory with a report, the parties' keys and terms that fit it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.json").write_text(json.dumps(reported))
    keys = {}
    for role in ("prover", "verifier"):
        assert run(["rules", "key", f"{role}.key"]) == 0
        keys[role] = capsys.readouterr().out.strip()
    plan = reported["plan"]
    lines = [f'{role} = "{public}"' for role, public in keys.items()]
    lines += [
        f"{name} = {plan[name]}"
        for name in ("flops_threshold", "chip_flops_per_day", "period_days", "snapshot_rate_per_day")
    ]
    lines += ['inspection = "november"', "size = 1", "leaves_after_s = 3600"]
    lines += ["inspection_bits = 2000", "year_bits = 3000"]
    (tmp_path / "terms.toml").write_text("\n".join(lines))
    assert run(["outcome", "terms", "terms.toml", "--out", "terms.cbor"]) == 0
    assert "a record discloses at most 1" in capsys.readouterr().out
    return tmp_path


SECRETS = ["--agreement", "agreement.cbor", "--prover-secret", "prover.secret", "--verifier-secret", "verifier.secret"]


def join(role: str, number: str = "") -> int:
    return run(
        [
            "outcome", "join", f"{role}{number}.side", "--terms", "terms.cbor", "--role", role, "--key", f"{role}.key",
            "--book", f"{role}.book", "--out", f"{role}{number}.commitment",
        ]
    )  # fmt: skip


def agree() -> None:
    for role in ("prover", "verifier"):
        assert join(role) == 0
    for role, other in (("prover", "verifier"), ("verifier", "prover")):
        assert run(["outcome", "open", f"{role}.side", f"{other}.commitment", "--out", f"{role}.share"]) == 0
    for role, other in (("prover", "verifier"), ("verifier", "prover")):
        secret = ["--secret", f"{role}.secret"]
        assert run(["outcome", "agree", f"{role}.side", f"{other}.share", "--out", f"{role}.agreement", *secret]) == 0
    assert Path("prover.agreement").read_bytes() == Path("verifier.agreement").read_bytes()
    Path("prover.agreement").rename("agreement.cbor")


def make(*more: str) -> int:
    return run(["outcome", "record", *more, *SECRETS, "--salt", "salt", "--out", "outcome.bin"])


def test_what_two_parties_agreed_on_is_made_verified_and_opened(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agree()
    capsys.readouterr()
    assert run(["outcome", "key", *SECRETS]) == 0
    key = capsys.readouterr().out.strip()
    assert make("report.json") == 0
    assert f"outcome.bin has {len((at / 'outcome.bin').read_bytes())} bytes" in (said := capsys.readouterr().out)
    assert key in said
    verify = ["report", "verify", "outcome.bin", "--key", key, "--agreement", "agreement.cbor"]
    assert run([*verify, "--due", "1,1,0", "--chips", "8"]) == 0
    assert "outcome of inspection november, complete: findings" in capsys.readouterr().out
    assert run(["outcome", "reveal", "report.json", "--salt", "salt", "--part", "plan", "--out", "plan.part"]) == 0
    capsys.readouterr()
    assert run(["outcome", "part", "outcome.bin", "plan.part"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((at / "report.json").read_text())["plan"]
    assert run(["outcome", "audit", "outcome.bin", *SECRETS]) == 0
    for secret in ("prover.side", "prover.secret", "salt", "prover.book"):
        assert (at / secret).stat().st_mode & 0o077 == 0


@pytest.mark.finding("sealed.beacon")
def test_no_party_opens_its_share_once_the_beacon_may_be_known(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A party that waits for the beacon's value before it opens its share would choose whether there is a draw. The
    other party takes no share that comes so late."""
    beacon = LocalBeacon.load(at / "beacon.key")
    number = beacon.info.round_after(int(time.time() * 1000) + 2000)
    (at / "info").write_text(json.dumps(beacon.info.to_json()))
    (at / "population").write_bytes(AgreedPopulation.of([(bytes(17), b"")]).text)
    drawing = f'\nsamples = 1\npopulation = "population"\nbeacon = "info"\nround = {number}'
    (at / "terms.toml").write_text((at / "terms.toml").read_text() + drawing)
    assert run(["outcome", "terms", "terms.toml", "--out", "terms.cbor"]) == 0
    for role in ("prover", "verifier"):
        assert join(role) == 0
    assert run(["outcome", "open", "prover.side", "verifier.commitment", "--out", "prover.share"]) == 0
    side = Side.from_cbor((at / "verifier.side").read_bytes())  # a Verifier whose own software does not refuse
    side.take(Committed.from_cbor((at / "prover.commitment").read_bytes()))
    (at / "kept.share").write_bytes(side.open().to_cbor())
    time.sleep(max(0.0, beacon.info.time_ms(number) / 1000 - time.time()))
    capsys.readouterr()
    agreed = ["--out", "agreement.cbor", "--secret", "prover.secret"]
    assert run(["outcome", "agree", "prover.side", "kept.share", *agreed]) == 2
    assert "sealed.beacon" in capsys.readouterr().err
    assert not (at / "agreement.cbor").exists()
    assert not (at / "prover.secret").exists()
    assert run(["outcome", "open", "verifier.side", "prover.commitment", "--out", "verifier.share"]) == 2
    assert "sealed.beacon" in capsys.readouterr().err
    assert not (at / "verifier.share").exists()
    assert join("prover", "2") == 2
    assert "sealed.beacon" in capsys.readouterr().err


def test_an_inspection_without_an_end_has_a_record_too(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agree()
    assert make("--ended", "late", "--due", "1,1,0", "--chips", "8") == 0
    late = len((at / "outcome.bin").read_bytes())
    (at / "salt").unlink()
    capsys.readouterr()
    assert make("report.json", "--json") == 0
    assert late == json.loads(capsys.readouterr().out)["bytes"]
    (at / "salt").unlink()
    assert make("--ended", "late") == 2
    assert make() == 2
    assert make("report.json", "--ended", "late") == 2


def test_a_second_commitment_is_refused_also_by_another_process(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The Verifier has seen the Prover's share, and would choose another one of its own."""
    assert (join("prover"), join("verifier")) == (0, 0)
    assert run(["outcome", "open", "prover.side", "verifier.commitment", "--out", "prover.share"]) == 0
    (at / "verifier.book").unlink()
    assert join("verifier", "2") == 0
    assert run(["outcome", "open", "prover.side", "verifier2.commitment", "--out", "prover.share"]) == 2
    assert "second commitment" in capsys.readouterr().err
    assert run(["outcome", "open", "verifier2.side", "prover.commitment", "--out", "verifier2.share"]) == 0
    agreed = ["--out", "agreement.cbor", "--secret", "prover.secret"]
    assert run(["outcome", "agree", "prover.side", "verifier2.share", *agreed]) == 2
    assert "another share" in capsys.readouterr().err
    assert not (at / "agreement.cbor").exists()
    assert not (at / "prover.secret").exists()


def test_a_share_is_not_shown_before_the_other_party_has_committed(
    at: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert join("prover") == 0
    assert run(["outcome", "open", "prover.side", "prover.commitment", "--out", "prover.share"]) == 2
    assert "not signed by the verifier" in capsys.readouterr().err
    assert not (at / "prover.share").exists()


def test_a_start_is_charged_once_and_within_the_budget(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert join("prover") == 0
    assert join("prover") == 2  # the side is there
    assert "takes part in one start" in capsys.readouterr().err
    assert join("prover", "2") == 2  # the book has it
    assert "outcome.budget" in capsys.readouterr().err
    assert not (at / "prover2.commitment").exists()
    (at / "terms.toml").write_text((at / "terms.toml").read_text() + "\nattempt = 1\n")
    assert run(["outcome", "terms", "terms.toml", "--out", "terms.cbor"]) == 0
    assert join("prover", "2") == 2  # two starts are more than the inspection has
    assert "the inspection has 2000" in capsys.readouterr().err


def test_a_record_needs_the_agreed_secrets_and_plan(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agree()
    (at / "other.secret").write_bytes(bytes(32))
    (at / "other.secret").chmod(0o600)
    wrong = [*SECRETS[:5], "other.secret", "--salt", "salt", "--out", "outcome.bin"]
    assert run(["outcome", "record", "report.json", *wrong]) == 2
    assert "another secret" in capsys.readouterr().err
    report = json.loads((at / "report.json").read_text())
    report["plan"]["period_days"] *= 2
    (at / "longer.json").write_text(json.dumps(report))
    assert make("longer.json") == 2
    assert "outcome.terms" in capsys.readouterr().err
    (at / "prover.secret").chmod(0o644)
    assert make("report.json") == 2
    assert "others may read" in capsys.readouterr().err
    assert not (at / "outcome.bin").exists()
    assert not (at / "salt").exists()


def test_a_salt_serves_one_record_and_opens_its_report_only(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agree()
    assert make("report.json") == 0
    assert make("report.json") == 2
    assert "a salt serves one record" in capsys.readouterr().err
    report = json.loads((at / "report.json").read_text())
    report["chips"][0]["verified"] = not report["chips"][0]["verified"]
    (at / "kinder.json").write_text(json.dumps(report))
    assert run(["outcome", "reveal", "kinder.json", "--salt", "salt", "--part", "chips/0", "--out", "chip.part"]) == 0
    assert run(["outcome", "part", "outcome.bin", "chip.part"]) == 1
    assert "outcome.part" in capsys.readouterr().err
    assert run(["outcome", "reveal", "report.json", "--salt", "salt", "--part", "chips/99", "--out", "x.part"]) == 2
    assert run(["outcome", "reveal", "report.json", "--salt", "salt", "--out", "x.part"]) == 2
    assert "chips/0" in capsys.readouterr().err


def test_snapshots_whose_inputs_did_not_come_are_named(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agree()
    for wrong in ("x", "ab:1=late", f"{'0' * 34}:1=clean"):
        assert make("report.json", "--silent", wrong) == 2
    chip = json.loads((at / "report.json").read_text())["chips"][0]
    name = f"{chip['ueid']}:{chip['snapshots'][0]['index']}=late"
    assert make("report.json", "--silent", name) == 2  # it was verified
    assert "could be verified" in capsys.readouterr().err


def test_a_missing_key_is_not_made_up(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (at / "prover.key").unlink()
    assert join("prover") == 2
    assert "weighbridge rules key prover.key" in capsys.readouterr().err
    assert run(["rules", "key", "prover.key"]) == 0
    assert join("prover") == 2  # the terms name another one
    assert not (at / "prover.book").exists()


@pytest.mark.parametrize(
    ("side", "book", "out"),
    [
        ("book", "book", "out"), ("side", "book", "book"), ("side", "book", "side"), ("side", "book", "./prover.key"),
        ("missing/side", "book", "out"), ("side", "book", "missing/out"), ("side", "missing/book", "out"),
        ("side", ".", "out"), ("link", "book", "out"),
    ],
)  # fmt: skip
def test_no_file_takes_the_place_of_a_book_and_nothing_is_charged_in_vain(
    at: Path, capsys: pytest.CaptureFixture[str], side: str, book: str, out: str
) -> None:
    """A book that a side replaced would take the same start again; a charge without a side is an attempt lost."""
    (at / "link").symlink_to("nowhere")
    before = sorted(at.iterdir())
    arguments = [side, "--terms", "terms.cbor", "--role", "prover", "--key", "prover.key", "--book", book, "--out", out]
    assert run(["outcome", "join", *arguments]) == 2
    assert "usage" in capsys.readouterr().err
    assert sorted(at.iterdir()) == before


def test_no_secret_and_no_side_is_replaced_by_what_is_sent(at: Path) -> None:
    assert (join("prover"), join("verifier")) == (0, 0)
    kept = (at / "prover.side").read_bytes()
    assert run(["outcome", "open", "prover.side", "verifier.commitment", "--out", "prover.side"]) == 2
    assert (at / "prover.side").read_bytes() == kept
    for role, other in (("prover", "verifier"), ("verifier", "prover")):
        assert run(["outcome", "open", f"{role}.side", f"{other}.commitment", "--out", f"{role}.share"]) == 0
    assert run(["outcome", "agree", "prover.side", "verifier.share", "--out", "x", "--secret", "x"]) == 2
    assert not (at / "x").exists()


def forged(at: Path, content: bytes) -> None:
    """A record, and a part of any content that it commits to: whoever has both secrets makes them."""
    agreed = Agreement.from_cbor((at / "agreement.cbor").read_bytes())
    signer = agreed.worker_key((at / "prover.secret").read_bytes(), (at / "verifier.secret").read_bytes())
    tree = merkle.Tree([merkle.leaf_hash(cbor([bytes(32), "x", content]))] * LEAVES)
    bound = outcome.Bound(terms=agreed.terms, nonce=agreed.nonce, key=signer.public, sealed=tree.root())
    made = outcome.without_end("late", bound, [outcome.Drawn(False, 1)], population=8)
    (at / "forged.bin").write_bytes(sign(made, signer))
    (at / "forged.part").write_bytes(Part("x", content, 0, bytes(32), tuple(tree.inclusion_proof(0))).to_cbor())


def test_a_part_that_the_other_party_made_up_steers_no_terminal(at: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agree()
    for content in (b"\xff", b"", b'"\x1b[2J"', b"NaN", b" 1", b"[" * 100_000, b"9" * 5000, b'"\\ud800"'):
        forged(at, content)
        assert run(["outcome", "part", "forged.bin", "forged.part"]) == 2
        assert "no canonical JSON" in capsys.readouterr().err
    forged(at, '"\x7f\u009b2J\u202e"'.encode())
    capsys.readouterr()
    assert run(["outcome", "part", "forged.bin", "forged.part"]) == 0
    said = capsys.readouterr().out
    assert said.strip().isprintable()
    assert json.loads(said) == "\x7f\u009b2J\u202e"


@pytest.mark.parametrize("text", ['{"schema": 1}', '{"schema": 1, "plan": [], "chips": {}}', '{"schema": NaN}'])
def test_a_report_of_another_form_makes_no_record(at: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    agree()
    (at / "other.json").write_text(text)
    assert make("other.json") == 2
    assert "malformed" in capsys.readouterr().err
    assert not (at / "salt").exists()
