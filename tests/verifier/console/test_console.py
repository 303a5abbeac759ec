"""The console over TLS: who may read, that it only reads, and what hostile names and addresses do to it."""

from __future__ import annotations

import contextlib
import datetime
import html.parser
import re
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

import pytest

pytest.importorskip("fastapi", reason="install the extra [console]")

from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from support.console_station import CLEAN, HOSTILE_ID, MANY, RUNNING, ConsoleStation, ask

from verifier.console.sign_in import POLICY, Door
from verifier.evidence import bundle
from verifier.registry import Registry
from weighbridge.attest.revocation import RevocationList
from weighbridge.core.errors import UsageError

PATHS = ["/", "/inspections", f"/inspections/{CLEAN}", f"/inspections/{RUNNING}/live", "/inspections/rows", "/nothing"]


def test_without_a_certificate_of_the_authority_nobody_gets_past_tls(station: ConsoleStation) -> None:
    for caller in (None, "stranger", "expired"):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            station.ask("/", caller)
    assert station.ask("/").status == 200


@pytest.mark.parametrize("caller", ["prover", "chip"])
def test_provers_and_chips_may_read_nothing(station: ConsoleStation, caller: str) -> None:
    """Every address is refused alike, fragments and files too, so that not even what exists can be learnt."""
    for path in [*PATHS, "/static/console.css"]:
        answer = station.ask(path, caller)
        assert (answer.status, "identity.role" in answer.text) == (403, True), path
        assert "may not read" in answer.text


@pytest.mark.parametrize("caller", ["inspector", "own"])
def test_operators_and_verifiers_may_read(station: ConsoleStation, caller: str) -> None:
    assert [station.ask(path, caller).status for path in PATHS] == [200, 200, 200, 200, 200, 404]


def test_a_certificate_that_expires_ends_an_open_connection(station: ConsoleStation) -> None:
    station.issue("brief", "operator", lifetime=datetime.timedelta(seconds=2))
    with contextlib.closing(station.connect("brief")) as connection:
        before = ask(connection, "/")
        time.sleep(2.1)
        after = ask(connection, "/")
    assert (before.status, after.status) == (200, 403)
    assert "identity.expired" in after.text


def test_a_certificate_that_is_revoked_ends_an_open_connection(station: ConsoleStation) -> None:
    directory, own = station.issue("leaving", "operator"), station.root / "credentials" / "own"
    with contextlib.closing(station.connect("leaving")) as connection:
        assert ask(connection, "/").status == 200
        serial = ssl._ssl._test_decode_cert(str(directory / "certificate.pem"))["serialNumber"]  # type: ignore[attr-defined]
        station.authority.revoke([int(serial, 16)])
        (own / "revocations.pem").write_bytes(station.authority.revocations)
        after = ask(connection, "/")
    assert (after.status, "identity.revoked" in after.text) == (403, True)
    assert station.ask("/", "inspector").status == 200


def test_without_a_list_that_can_be_relied_on_nobody_reads(station: ConsoleStation) -> None:
    listed = station.root / "credentials" / "own" / "revocations.pem"
    good = listed.read_bytes()
    assert RevocationList.parse(good, station.authority.certificate).number
    try:
        listed.write_bytes(b"no list")
        assert station.ask("/").status == 403
    finally:
        listed.write_bytes(good)
    assert station.ask("/").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"])
def test_nothing_but_reading_is_answered(station: ConsoleStation, method: str) -> None:
    for path in PATHS:
        answer = station.ask(path, method=method)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD"), path


def test_the_database_itself_refuses_changes(station: ConsoleStation) -> None:
    reading = Registry(station.root / "registry.sqlite", read_only=True)
    try:
        before = [each.id for each in reading.inspections()]
        assert len(before) >= 4
        for statement in ("DELETE FROM inspections", "UPDATE chips SET owner = ''", "CREATE TABLE more (one INTEGER)"):
            with pytest.raises(OperationalError, match="readonly"), reading.session.begin() as session:
                session.execute(text(statement))
        assert [each.id for each in reading.inspections()] == before
    finally:
        reading.close()


def test_reading_makes_no_database(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Registry(tmp_path / "mistyped.sqlite", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_what_the_verifier_writes_is_seen_at_once(station: ConsoleStation) -> None:
    marked = re.search(r"seen=(\w+)", station.ask(f"/inspections/{RUNNING}").text)
    assert marked is not None
    path = f"/inspections/{RUNNING}/live?seen={marked[1]}"
    assert station.ask(path).status == 204
    station.said[RUNNING].say("fetch", 2, 3, "a transcript has arrived")
    station.said[RUNNING].flush()
    assert "a transcript has arrived" in station.ask(path).text


class Links(html.parser.HTMLParser):
    """Collects where a page leads, and what would run."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []
        self.runs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.paths += [given[name] or "" for name in ("href", "src", "hx-get") if name in given]
        self.runs += [name for name in given if name.startswith("on") or name == "style"]
        if tag in ("script", "img", "iframe", "object", "embed", "base", "form"):
            self.runs.append(f"{tag} {given.get('src') or given.get('action')}")


def test_every_link_leads_somewhere_and_hostile_names_stay_text(station: ConsoleStation) -> None:
    """All pages are walked through from the first one."""
    known = {"script /static/htmx.min.js", "form /search"}
    waiting, seen, texts = ["/"], {"/"}, ""
    with contextlib.closing(station.connect("inspector")) as connection:
        while waiting:
            path = waiting.pop()
            answer = ask(connection, path)
            assert answer.status == (204 if "seen=" in path else 200), path
            if path.endswith("/report"):  # a page of its own, with its style in it
                assert answer.headers["content-security-policy"].startswith("default-src 'none'")
                assert "script-src" not in answer.headers["content-security-policy"]
                continue
            assert answer.headers["content-security-policy"] == POLICY
            if not answer.headers.get("content-type", "").startswith("text/html"):
                continue
            page = Links()
            page.feed(answer.text)
            texts += answer.text
            ran = {each for each in page.runs if not re.fullmatch(r"img /inspections/\w+/p\.svg", each)}
            assert ran <= known, path
            assert "<script>pwned" not in answer.text
            assert "49" not in re.findall(r"onerror=pwned=1&gt;(\S\S)", answer.text)
            for link in page.paths:
                there = urljoin(path, link).partition("#")[0]
                assert there.startswith("/"), f"{path} leads to another host: {link}"
                kind = re.sub(r"010000[0-9a-f]{28}|(?<==)\d+$", "*", there)  # one of many alike is enough
                if kind not in seen:
                    seen.add(kind)
                    waiting.append(there)
    assert texts.count("&lt;script&gt;pwned=1&lt;/script&gt;") > 5
    kinds = {urlsplit(path).path.split("/")[1] for path in seen}
    assert kinds == {"", "inspections", "chips", "static"}
    assert any("snapshots" in path for path in seen)
    assert any("evidence" in path for path in seen)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../sign_in.py",
        "/static/%2e%2e/sign_in.py",
        "/static/..%2f..%2fregistry.sqlite",
        "/static//etc/passwd",
        "/inspections/../../etc/passwd",
        "/inspections/%2e%2e%2fregistry",
        "/inspections/c1ea'--",
        f"/inspections/{CLEAN}/snapshots/{'0' * 34}/1",
        f"/inspections/{CLEAN}/snapshots/{'0' * 34}/-1",
        f"/inspections/{CLEAN}/snapshots/..%2f..%2f/1",
        f"/inspections/{CLEAN}/evidence?finding=99999",
        f"/inspections/{CLEAN}/evidence",
        f"/inspections/{RUNNING}/evidence?finding=0",
        f"/inspections/{'0' * 64}",
        "/inspections?limit=1000000000",
        "/chips/%00",
        "/chips?after=zz",
        "/docs",
        "/chips/",
        "/openapi.json",
    ],
)
def test_addresses_that_are_none_are_refused_in_words(station: ConsoleStation, path: str) -> None:
    answer = station.ask(path)
    assert answer.status in (400, 404)
    assert answer.headers["content-security-policy"] == POLICY
    for leaked in ("Traceback", "root:", "def ", "sqlite3"):
        assert leaked not in answer.text


def test_search_finds_chips_runs_and_digests(station: ConsoleStation) -> None:
    clean, many = station.reports[CLEAN], station.reports[MANY]
    chip, run = clean["chips"][0]["ueid"], clean["transcripts"][0]
    for query, link in {
        many["chips"][1]["name"]: f"/chips/{many['chips'][1]['ueid']}",
        chip[:10]: f"/chips/{chip}",
        CLEAN[:4]: f"/inspections/{CLEAN}",
        run["name"]: f"/inspections/{CLEAN}#runs",
        run["id"][:16].upper(): f"/inspections/{CLEAN}/snapshots/{chip}/",
        many["findings"][3]["evidence"]["digests"][0]: f"/inspections/{MANY}#findings",
        "<script>pwned": f"/inspections/{HOSTILE_ID}",
    }.items():
        assert f'href="{link}' in station.ask(f"/search?q={quote(query)}").text, query
    assert "Nothing was found" in station.ask("/search?q=neverheardof").text
    assert "<script>pwned" not in station.ask(f"/search?q={quote('<script>pwned')}").text


@pytest.mark.parametrize("query", ["%", "_", "\\", "' OR 1=1 --", "%00", "\u202e", "[", "ab"])
def test_what_a_search_means_to_the_database_is_text(station: ConsoleStation, query: str) -> None:
    answer = station.ask(f"/search?q={quote(query)}")
    assert answer.status == 200
    assert "rack-" not in answer.text


def test_huge_queries_are_refused(station: ConsoleStation) -> None:
    assert station.ask(f"/search?q={'a' * 201}").status == 400
    assert station.ask(f"/search?q={'a' * 100_000}").status == 400
    assert station.ask("/").status == 200


def test_evidence_can_be_downloaded(station: ConsoleStation, tmp_path: Path) -> None:
    chip = station.reports[CLEAN]["chips"][0]
    answer = station.ask(f"/inspections/{CLEAN}/evidence?chip={chip['ueid']}&entry={chip['snapshots'][0]['index']}")
    assert answer.headers["content-type"] == "application/zip"
    assert 'filename="evidence-' in answer.headers["content-disposition"]
    (tmp_path / "evidence.zip").write_bytes(answer.body)
    parts = bundle.read(tmp_path / "evidence.zip", tmp_path)
    assert {"report.dsse", "index.html", bundle.STATEMENT} <= set(parts)


@pytest.mark.finding("console.busy")
def test_one_file_of_evidence_is_put_together_at_a_time(station: ConsoleStation) -> None:
    """Who asks meanwhile is told so; the pages are there for everybody all along, and for another file afterwards."""
    chip = station.reports[CLEAN]["chips"][0]
    path = f"/inspections/{CLEAN}/evidence?chip={chip['ueid']}&entry={chip['snapshots'][0]['index']}"
    with ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(station.ask, path) for _ in range(11)]
        assert pool.submit(station.ask, "/").result().status == 200
    seen = [each.result() for each in answers]
    assert {each.status for each in seen} == {200, 503}
    assert all("another file of evidence" in each.text for each in seen if each.status == 503)
    assert station.ask(path).status == 200


def test_a_console_needs_credentials_of_a_verifier_or_an_operator(station: ConsoleStation) -> None:
    with pytest.raises(UsageError, match="credentials of prover"):
        Door(station.root / "credentials" / "prover")


def test_a_renewed_certificate_is_shown_without_a_restart(station: ConsoleStation) -> None:
    own = station.root / "credentials" / "own"
    before = shown(station)
    renewed = station.authority.renew_role((own / "certificate.pem").read_bytes())
    (own / "certificate.pem").write_bytes(renewed)
    station.ask("/")
    assert shown(station) != before
    assert ssl.DER_cert_to_PEM_cert(shown(station)) == renewed.decode()


def shown(station: ConsoleStation) -> bytes:
    with contextlib.closing(station.connect("inspector")) as connection:
        connection.connect()
        return connection.sock.getpeercert(binary_form=True)  # type: ignore[no-any-return, attr-defined]


def test_a_certificate_that_may_not_read_keeps_nobody_out(station: ConsoleStation) -> None:
    """It opens more connections than the console has, and sends nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(80):
            connection = stack.enter_context(contextlib.closing(station.connect("prover")))
            with contextlib.suppress(OSError):
                connection.connect()
        assert station.ask("/").status == 200
