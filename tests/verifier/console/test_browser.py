"""The console in a real browser: both widths, keyboard, light and dark, live pages, and an accessibility check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="install the extra [console]")
pytest.importorskip("axe_playwright_python", reason="NO BROWSER: install the extra [dev] for axe-core")

from axe_playwright_python.sync_playwright import Axe
from support.browser import browser as browser
from support.browser import scrollers, sideways
from support.console_station import CLEAN, HOSTILE_ID, MANY, RUNNING, ConsoleStation

WIDTHS = (1280, 390)
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}


@pytest.fixture(scope="module")
def signed_in(station: ConsoleStation, browser: Any) -> Iterator[Callable[..., Any]]:
    """Returns a function that opens a page of the console, signed in as an inspector; what it logs fails the test."""
    own = station.root / "credentials" / "inspector"
    shown = {"origin": station.origin, "certPath": own / "certificate.pem", "keyPath": own / "key.pem"}
    contexts: dict[tuple[int, bool], Any] = {}
    errors: list[str] = []

    def show(path: str, width: int = 1280, *, dark: bool = False) -> Any:
        if (width, dark) not in contexts:
            contexts[width, dark] = browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light",
                ignore_https_errors=True, client_certificates=[shown],
            )  # fmt: skip
            contexts[width, dark].set_default_timeout(15_000)
        page = contexts[width, dark].new_page()
        page.on("console", lambda message: errors.append(f"{path}: {message.text}"))
        page.on("pageerror", lambda error: errors.append(f"{path}: {error}"))
        page.goto(station.origin + path)
        return page

    yield show
    for context in contexts.values():
        context.close()
    assert errors == []


def paths(station: ConsoleStation) -> list[str]:
    """One page of every kind, with whatever another party chose in it."""
    other = station.reports[HOSTILE_ID]["chips"][1]
    return [
        "/",
        f"/inspections/{HOSTILE_ID}",
        f"/inspections/{MANY}",
        f"/inspections/{RUNNING}",
        f"/inspections/{HOSTILE_ID}/snapshots/{other['ueid']}/{other['snapshots'][0]['index']}",
        "/chips",
        f"/chips/{other['ueid']}",
        "/search?q=pwned",
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_pages_fit_run_nothing_of_others_and_are_accessible(
    width: int, station: ConsoleStation, signed_in: Callable[..., Any]
) -> None:
    """Dark pages at one width and light ones at the other."""
    axe = Axe()
    for path in paths(station):
        page = signed_in(path, width, dark=width < 600)
        assert sideways(page) == [], path
        assert scrollers(page) == [], path
        assert page.evaluate("typeof pwned") == "undefined", path
        if (width > 600 and MANY not in path) or path in ("/", f"/inspections/{HOSTILE_ID}"):
            found = axe.run(page, options=RULES)  # takes longer than all else
            assert found.violations_count == 0, f"{path}\n{found.generate_report()}"
        page.close()


def test_the_accessibility_check_sees_faults(browser: Any) -> None:
    page = browser.new_page()
    page.set_content("<html><body><img src='x.png'><p style='color:#ccc;background:#fff'>faint</p></body></html>")
    found = {each["id"] for each in Axe().run(page, options=RULES).response["violations"]}
    page.close()
    assert {"image-alt", "color-contrast", "html-has-lang"} <= found


def test_without_a_certificate_a_browser_sees_nothing(station: ConsoleStation, browser: Any) -> None:
    context = browser.new_context(ignore_https_errors=True)
    page = context.new_page()
    with pytest.raises(Exception, match="ERR_"):
        page.goto(station.origin + "/")
    context.close()


def test_all_of_it_is_reached_by_keyboard(station: ConsoleStation, signed_in: Callable[..., Any]) -> None:
    """From the first key on: skip the head of the page, search for a chip, open it, open its snapshot."""
    page = signed_in("/")
    chip = station.reports[CLEAN]["chips"][0]
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top >= 0")
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")
    page.locator("#q").focus()
    page.keyboard.type(chip["ueid"][:12])
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?q=*")
    press_to(page, f"/chips/{chip['ueid']}")
    page.wait_for_url("**/chips/*")
    press_to(page, f"/inspections/{CLEAN}/snapshots/{chip['ueid']}/{chip['snapshots'][0]['index']}")
    page.wait_for_url("**/snapshots/**")
    assert page.locator("h1").inner_text().endswith("from silicon to verdict")
    assert page.locator(".way li").count() == 6
    page.close()


def press_to(page: Any, path: str) -> None:
    """Presses Tab until a link has the focus, which must be visible, and then Enter."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('href')") == path:
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"no key leads to {path}")


def test_an_inspection_at_work_is_followed_until_its_report(
    station: ConsoleStation, signed_in: Callable[..., Any]
) -> None:
    identifier = "11fe000000000000"
    registry, report = station.registry, station.reports[CLEAN] | {"inspection": "11fe000000000000"}
    registry.start_inspection(identifier, seed=b"", plan={"samples": 1}, chips=[])
    page, listed = signed_in(f"/inspections/{identifier}"), signed_in("/inspections", 390)
    assert page.locator("#live .tag").inner_text() == "starting"
    registry.set_stage(identifier, "replay_snapshots")
    page.locator("#live .tag", has_text="replay snapshots").wait_for()
    registry.set_stage(identifier, "done", report, {"verdict": "clean", "violations": 0, "warnings": 0})
    page.locator("strong", has_text="Nothing was found").first.wait_for()
    listed.locator(f"tr:has-text('{identifier}') .tag", has_text="clean").wait_for()
    page.close()
    listed.close()


def test_focus_stays_where_it_was_while_nothing_changes(station: ConsoleStation, signed_in: Callable[..., Any]) -> None:
    page = signed_in("/inspections")
    page.locator("#rows a").first.focus()
    with page.expect_response("**/inspections/rows*") as asked:
        pass
    assert asked.value.status == 204
    assert page.evaluate("document.activeElement.closest('#rows') !== null")
    page.close()


def test_evidence_is_downloaded_by_a_click(station: ConsoleStation, signed_in: Callable[..., Any]) -> None:
    chip = station.reports[CLEAN]["chips"][0]
    page = signed_in(f"/inspections/{CLEAN}/snapshots/{chip['ueid']}/{chip['snapshots'][0]['index']}")
    with page.expect_download() as started:
        page.get_by_text("Download the evidence").click()
    assert started.value.suggested_filename.endswith(".zip")
    assert started.value.path().stat().st_size > 1000
    page.close()
