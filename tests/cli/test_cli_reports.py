"""`weighbridge report` and `weighbridge rules`: text, exit codes, and one line for whatever is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.reported import build, collect

from verifier.report import signing
from verifier.report.inspectorate_policy import Policy
from verifier.report.regime import Regime
from verifier.rules import ruleset
from weighbridge.attest.dsse import Trust
from weighbridge.attest.manifest import SigningKey, load_or_create_key
from weighbridge.cli.main import run

KEY = SigningKey.generate()
SOURCE = """
format = 1
id = "example"
version = 1
title = "Example"

[[rules]]
id = "small"
title = "No run above 2000 FLOPs"
holds = "runs.all(r, r.flops < threshold)"
threshold = 2000.0

[[rules]]
id = "tiny"
title = "No run above 500 FLOPs"
holds = "runs.all(r, r.flops < 500.0)"
remedy = "ask why"

[[rules]]
id = "score"
title = "No good score"
holds = "runs.all(r, r.scores.maths < 0.5)"
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports, signed and not, a rule set in all forms, and two parties."""
    root = tmp_path_factory.mktemp("files")
    (root / "rules.toml").write_text(SOURCE)
    rules = ruleset.load(root / "rules.toml")
    keys = [load_or_create_key(root / f"{name}.key") for name in "ab"]
    (root / "rules.dsse").write_bytes(ruleset.sign(rules, keys))
    parties = "".join(f'{name} = "{key.public.hex()}"\n' for name, key in zip("ab", keys, strict=True))
    (root / "parties.toml").write_text(f"quorum = 2\n[parties]\n{parties}")
    applied = Regime(rules=ruleset.verify((root / "rules.dsse").read_bytes(), Trust.load(root / "parties.toml")))
    report = build(collect(root / "inspected"), applied)
    (root / "report.json").write_text(json.dumps(report))
    (root / "report.dsse").write_bytes(signing.sign(report, KEY))
    clean = build(collect(root / "clean", honest=True))
    (root / "clean.dsse").write_bytes(signing.sign(clean, KEY))
    (root / "key.pub").write_text(KEY.public.hex() + "\n")
    return root


def test_the_text_of_a_report(
    files: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    assert run(["report", "show", str(files / "report.dsse")]) == 1
    golden("report_show.txt", capsys.readouterr().out)
    assert run(["report", "show", str(files / "clean.dsse")]) == 0
    golden("report_show_clean.txt", capsys.readouterr().out)


def test_an_undecided_rule_never_reads_as_clean(
    files: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Not even if the policy calls it a note, and not if a Verifier of an earlier version called the report clean."""
    document = {
        "format": 1, "id": "one", "version": 1, "title": "One",
        "rules": [{"id": "score", "title": "No good score", "holds": "runs.all(r, r.scores.maths < 0.5)"}],
    }  # fmt: skip
    keys = [load_or_create_key(files / f"{name}.key") for name in "ab"]
    (tmp_path / "rules.dsse").write_bytes(ruleset.sign(ruleset.parse(document), keys))
    signed = ruleset.verify((tmp_path / "rules.dsse").read_bytes(), Trust.load(files / "parties.toml"))
    report = build(
        collect(tmp_path / "honest", honest=True),
        Regime(rules=signed, policy=Policy(severities={"rule.undecided": "info"})),
    )
    assert (report["counts"]["violations"], report["counts"]["warnings"]) == (0, 0)
    assert report["verdict"] == "findings"
    for verdict in ("findings", "clean"):
        stated = signing.sign(report | {"verdict": verdict}, KEY)
        (tmp_path / "report.dsse").write_bytes(stated)
        page = tmp_path / f"{verdict}.html"
        assert run(["report", "show", str(tmp_path / "report.dsse"), "--html", str(page)]) == 1
        said = capsys.readouterr().out
        assert said.splitlines()[0].endswith(": findings")
        assert "rules that could not be decided, so that this report is not clean: score" in said
        assert "1 rule could not be decided: score." in page.read_text()
        assert "Nothing was found" not in page.read_text()
        consistent = run(["report", "verify", str(tmp_path / "report.dsse"), "--key", KEY.public.hex()]) == 0
        assert consistent is (verdict == "findings")
        capsys.readouterr()
    scored = report["facts"]["runs"][0] | {"scores": {"maths": 0.4}}
    (tmp_path / "facts.json").write_text(json.dumps({"runs": [scored]}))
    assert run(["rules", "eval", str(tmp_path / "rules.dsse"), "--facts", str(tmp_path / "facts.json")]) == 0
    assert run(["rules", "eval", str(tmp_path / "rules.dsse"), "--facts", str(tmp_path / "report.dsse")]) == 1


def test_json_and_signed_say_the_same(files: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("report.json", "report.dsse"):
        assert run(["report", "show", str(files / name), "--json", "--html", str(tmp_path / f"{name}.html")]) == 1
        assert json.loads(capsys.readouterr().out) == json.loads((files / "report.json").read_text())
    assert (tmp_path / "report.json.html").read_text() == (tmp_path / "report.dsse.html").read_text()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_hostile_report_is_shown_or_refused(
    data: st.DataObject, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Law: whatever a report holds in the place of any part, showing it ends with exit code 0, 1 or 2."""
    report = json.loads((files / "report.json").read_text())
    name = data.draw(st.sampled_from(sorted(report)))
    leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3)
    inner = report[name]
    if isinstance(inner, dict) and inner and data.draw(st.booleans()):
        inner[data.draw(st.sampled_from(sorted(inner)))] = data.draw(leaves | st.lists(leaves, max_size=2))
    else:
        report[name] = data.draw(leaves | st.dictionaries(st.text(max_size=3), leaves, max_size=2))
    (files / "hostile.json").write_text(json.dumps(report))
    assert run(["report", "show", str(files / "hostile.json")]) in (0, 1, 2)
    capsys.readouterr()


def test_verify_passes_what_is_signed_and_follows(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["report", "verify", str(files / "report.dsse"), "--key", str(files / "key.pub")]
    rules = ["--rule-set", str(files / "rules.dsse"), "--parties", str(files / "parties.toml")]
    assert run(common) == 0
    assert run([*common, *rules, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.partition("\n")[2]) == {"verified": True, "findings": []}
    assert run(["report", "verify", str(files / "clean.dsse"), "--key", KEY.public.hex(), *rules]) == 1
    assert "report.rules" in capsys.readouterr().out


def test_verify_catches_what_is_not(files: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = SigningKey.generate().public.hex()
    assert run(["report", "verify", str(files / "report.dsse"), "--key", other]) == 1
    assert "report.signer" in capsys.readouterr().out
    assert run(["report", "verify", str(files / "report.json"), "--key", str(files / "key.pub")]) == 1
    assert "no signature" in capsys.readouterr().out
    data = bytearray((files / "report.dsse").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "altered.dsse").write_bytes(data)
    assert run(["report", "verify", str(tmp_path / "altered.dsse"), "--key", str(files / "key.pub")]) in (1, 2)
    assert "document." in capsys.readouterr().err
    report = json.loads((files / "report.json").read_text())
    report["counts"]["violations"] = 0
    (tmp_path / "cooked.dsse").write_bytes(signing.sign(report, KEY))  # by a Verifier that lies about its own findings
    assert run(["report", "verify", str(tmp_path / "cooked.dsse"), "--key", str(files / "key.pub")]) == 1
    assert "counts.violations" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "show", "nothing"], "cannot read"),
        (["report", "show", "{rules.toml}"], "is no report"),
        (["report", "show", "{rules.dsse}"], "another kind"),
        (["report", "verify", "{report.dsse}", "--key", "ab"], "64 hexadecimal digits"),
        (["report", "verify", "{report.dsse}", "--key", "{key.pub}", "--rule-set", "{rules.dsse}"], "go together"),
        (["rules", "check", "{report.json}"], "has no 'format'"),
        (["rules", "check", "nothing.toml"], "cannot read"),
        (["rules", "sign", "{rules.toml}", "--key", "nothing.key", "--out", "x"], "weighbridge rules key"),
        (["rules", "sign", "{rules.toml}", "--key", "{a.key}", "--out", "{report.dsse}"], "another kind"),
        (["rules", "verify", "{report.dsse}", "--parties", "{parties.toml}"], "another kind"),
        (["rules", "verify", "{rules.dsse}", "--parties", "{rules.toml}"], "quorum"),
        (["rules", "eval", "{rules.toml}", "--facts", "{rules.toml}"], "is not JSON"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(files / each[1:-1]) if each.startswith("{") else each for each in arguments]
    assert run(given) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_rules_from_check_to_eval(files: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["rules", "check", str(files / "rules.toml")]) == 0
    digest = ruleset.load(files / "rules.toml").digest
    assert digest in capsys.readouterr().out
    assert run(["rules", "key", str(tmp_path / "c.key")]) == 0
    public = capsys.readouterr().out.strip()
    assert load_or_create_key(tmp_path / "c.key").public.hex() == public
    out = tmp_path / "signed.dsse"
    for name in ("a", "b"):
        if name == "b":  # one signature is not enough
            assert run(["rules", "verify", str(out), "--parties", str(files / "parties.toml")]) == 1
            assert "document.signers" in capsys.readouterr().err
        signing_key = str(files / f"{name}.key")
        assert run(["rules", "sign", str(files / "rules.toml"), "--key", signing_key, "--out", str(out)]) == 0
    capsys.readouterr()
    assert run(["rules", "verify", str(out), "--parties", str(files / "parties.toml"), "--json"]) == 0
    verified = json.loads(capsys.readouterr().out)
    assert (verified["digest"], verified["signers"]) == (digest, ["a", "b"])
    assert run(["rules", "verify", str(out), "--parties", str(files / "parties.toml"), "--after", str(out)]) == 0
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps({"runs": [{"id": "r", "flops": 100, "scores": {"maths": 0.1}}]}))
    capsys.readouterr()
    assert run(["rules", "eval", str(out), "--facts", str(facts), "--threshold", "1e6"]) == 0
    shown = capsys.readouterr().out
    assert "holds: small" in shown
    assert "rule.unbacked" in shown
    facts.write_text(json.dumps({"runs": [{"id": "r", "flops": 600}]}))
    assert run(["rules", "eval", str(out), "--facts", str(facts)]) == 1
    shown = capsys.readouterr().out
    assert "violated: tiny" in shown
    assert "undecided: score" in shown
