"""`weighbridge registry ...`: the session of docs/registry.md as it stands, and what goes wrong around it."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from support.custody_trade import Trade, ueid

from weighbridge.attest.custody_statements import read, sign
from weighbridge.cli.main import run
from weighbridge.cli.referee import _parties
from weighbridge.core.errors import UsageError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "registry.md"
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def call(*words: str | Path) -> tuple[int, str]:
    """Runs a command and returns its exit code and what it printed, errors included."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = run([str(word) for word in words])
    return code, out.getvalue()


def test_the_session_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: dict[str, str] = {}
    registry = ""
    for line in "".join(BLOCKS).splitlines():
        words = shlex.split(line.replace("REGISTRY", registry))
        target = None
        if ">" in words:
            target = words[words.index(">") + 1]
            words = words[: words.index(">")]
        assert words[0] == "weighbridge"
        code, text = call(*words[1:])
        assert code == 0, (line, text)
        said[line] = text
        if target:
            Path(target).write_text(text)
        if words[2] == "party":
            registry = text.split()[-1]
    answers = list(said.values())
    shown = next(text for line, text in said.items() if "registry show 01" in line)
    assert "state: installed" in shown
    assert "holder: acme" in shown
    assert "maker: fab" in shown
    assert len(re.findall(r"^  \d+ 2026-", shown, flags=re.MULTILINE)) == 4
    assert any("to be countersigned by acme" in text for text in answers)
    assert "0 findings" in next(text for line, text in said.items() if " audit " in line)
    assert "event: sold" in answers[-1]
    assert "chips: 2" in answers[-1]
    assert Path("another.db").exists()
    assert (Path("verifier.db.registry-key").stat().st_mode & 0o777) == 0o600


@pytest.fixture
def trade(tmp_path: Path) -> Trade:
    trade = Trade(tmp_path)
    trade.supply(range(30))
    return trade


def test_an_audit_with_findings_exits_1_and_names_who_answers(trade: Trade, tmp_path: Path) -> None:
    db = tmp_path / "registry.db"
    code, text = call("registry", "audit", "--db", db, "--json")
    assert (code, json.loads(text)["findings"]) == (0, [])
    trade.say("installed", "bolt", [3], site="bolt-1")
    code, text = call("registry", "audit", "--db", db, "--json")
    said = json.loads(text)
    assert (code, [finding["id"] for finding in said["findings"]]) == (1, ["registry.gap"])
    assert said["root"] == trade.registry.root().hex()
    (tmp_path / "looked-for").write_text(f"{ueid(4).hex()}\n\n")
    code, text = call("registry", "audit", "--db", db, "--not-found", tmp_path / "looked-for")
    assert code == 1
    assert "registry.missing" in text


def test_forged_and_one_sided_statements_exit_1_and_replayed_ones_2(trade: Trade, tmp_path: Path) -> None:
    db, size = tmp_path / "registry.db", trade.registry.tree_size
    sale = trade.write("resold", "acme", [1], to="bolt")
    (tmp_path / "one-sided").write_bytes(sign(read(sale).statement, trade.keys["acme"]))
    (tmp_path / "forged").write_bytes(sale[:-1] + bytes([sale[-1] ^ 1]))
    (tmp_path / "good").write_bytes(trade.write("resold", "acme", [1], to="bolt"))
    for name, code, reason in (
        ("one-sided", 1, "registry.handover.onesided"),
        ("forged", 1, "registry.signature"),
        ("absent", 2, "usage"),
    ):
        found, text = call("registry", "event", "submit", tmp_path / name, "--db", db)
        assert found == code, text
        assert reason in text
    assert trade.registry.tree_size == size
    assert call("registry", "event", "submit", tmp_path / "good", "--db", db)[0] == 0
    code, text = call("registry", "event", "submit", tmp_path / "good", "--db", db)
    assert (code, "registry.replayed" in text) == (2, True)
    assert trade.registry.chip(ueid(1)).owner == "bolt"


def test_a_bad_table_names_its_lines(trade: Trade, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("ueid\nxyz\n01\n")
    code, text = call("registry", "import", tmp_path / "bad.csv", "--db", tmp_path / "registry.db")
    assert code == 2
    assert "line 2" in text
    assert "line 3" in text
    code, text = call("registry", "export", "-", "--db", tmp_path / "registry.db")
    assert (code, len(text.splitlines())) == (0, 31)


def test_a_copy_of_the_log_that_was_altered_exits_1(trade: Trade, tmp_path: Path) -> None:
    db, key = tmp_path / "registry.db", tmp_path / "registry.db.registry-key.pub"
    assert call("registry", "log", "export", tmp_path / "log", "--db", db)[0] == 0
    code, text = call("registry", "log", "fsck", tmp_path / "log", "--public-key", key, "--json")
    assert (code, json.loads(text)["states"]) == (0, {"installed": 30})
    bundle = next(path for path in (tmp_path / "log" / "tile" / "entries").rglob("*") if path.is_file())
    data = bundle.read_bytes()
    bundle.write_bytes(data.replace(b"acme-1", b"acme-2"))
    code, text = call("registry", "log", "fsck", tmp_path / "log", "--public-key", key, "--json")
    ids = {finding["id"] for finding in json.loads(text)["findings"]}
    assert (code, ids) == (1, {"registry.log.altered"})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["show", "--db", "nowhere.db"], "no database"),
        (["show", "xyz", "--db", "DB"], "there is no chip"),
        (["show", "01", "--db", "DB"], "give more"),
        (["party", "x", "--db", "DB", "--public-key", "DB"], "PEM"),
        (["party", "x", "--db", "DB", "--role", "king", "--public-key", "DB"], "roles are"),
        (["event", "show", "DB"], "no custody statement"),
        (
            ["event", "sign", "lost", "--registry", "r", "--by", "acme", "--private-key", "DB", "--out", "o"],
            "which chips",
        ),
        (["log", "fsck", "nowhere", "--public-key", "PUB"], "cannot read"),
        (["log", "prove", "999", "--db", "DB", "--out", "o"], "no leaf"),
        (["audit", "--db", "DB", "--lost-share", "7"], "correct the policy"),
    ],
)
def test_bad_usage_exits_2_and_says_what_to_do(trade: Trade, tmp_path: Path, words: list[str], says: str) -> None:
    db = str(tmp_path / "registry.db")
    places = {
        "DB": db,
        "PUB": db + ".registry-key.pub",
        "o": str(tmp_path / "o"),
        "nowhere.db": str(tmp_path / "no.db"),
    }
    code, text = call("registry", *(places.get(word, word) for word in words))
    assert code == 2, text
    assert says in text
    assert not (tmp_path / "no.db").exists()


def test_many_chips_become_several_statements(trade: Trade, tmp_path: Path) -> None:
    pem = trade.keys["fab"].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "fab.pem").write_bytes(pem)
    (tmp_path / "chips").write_text("\n".join(ueid(number).hex() for number in range(100, 4200)))
    code, text = call(
        "registry", "event", "sign", "made", "--registry", trade.registry.name, "--by", "fab", "--type", "WB-1",
        "--private-key", tmp_path / "fab.pem", "--chips", tmp_path / "chips", "--out", tmp_path / "made.cose",
        "--time", "2023-12-01T00:00:00Z",
    )  # fmt: skip
    assert code == 0, text
    files = sorted(tmp_path.glob("made-*.cose"))
    assert len(files) == 3
    assert call("registry", "event", "submit", *files, "--db", tmp_path / "registry.db")[0] == 0
    assert trade.registry.states() == {"installed": 30, "made": 4100}


def test_parties_of_a_registry_are_those_of_a_referee(trade: Trade, tmp_path: Path) -> None:
    """Under the key that each has now, if that can sign messages of a dispute; one key, one organisation."""
    db, before = str(tmp_path / "registry.db"), trade.keys["acme"]
    acme, bolt = (_parties([], db).get(_raw(trade, name)) for name in ("acme", "bolt"))
    assert (acme, bolt) == ("acme", "bolt")
    assert "fab" not in _parties([], db).values()  # it signs with P-384
    trade.join("acme", "owner")
    assert _parties([], db)[_raw(trade, "acme")] == "acme"
    assert before.public_key().public_bytes_raw() not in _parties([], db)  # type: ignore[union-attr]
    stranger = "ab" * 32
    assert _parties([f"court={stranger}"], db)[bytes.fromhex(stranger)] == "court"
    with pytest.raises(UsageError, match="another one"):
        _parties([f"court={_raw(trade, 'acme').hex()}"], db)


def _raw(trade: Trade, name: str) -> bytes:
    key = trade.keys[name].public_key()
    assert isinstance(key, Ed25519PublicKey)
    return key.public_bytes_raw()
