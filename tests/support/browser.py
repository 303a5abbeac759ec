"""A real browser for tests of pages: the system's Chromium, headless, driven by Playwright, which downloads none.

Import the fixtures `browser` and `page_at` into a test module. Where there is no Chromium, tests that ask for them are
skipped, and say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

playwright_api = pytest.importorskip("playwright.sync_api", reason="NO BROWSER: install the extra [dev] for Playwright")
Browser, Page = playwright_api.Browser, playwright_api.Page

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NONE = f"NO BROWSER: none of {', '.join(PROGRAMS)} is installed (apt-get install chromium), so pages are not looked at"
WIDTHS = (320, 390, 600, 768, 1024, 1280)
"""Pixels: the narrowest telephone, a usual one, and up to a laptop."""
_OPTIONS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
]  # tests may run as root, in a container with little shared memory


def program() -> str | None:
    """Returns the path of a Chromium, or None; `WEIGHBRIDGE_BROWSER` names another one."""
    named = os.environ.get("WEIGHBRIDGE_BROWSER")
    return named or next((found for each in PROGRAMS if (found := shutil.which(each))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser, one for all tests of a module: Playwright bears no second one that another module still holds."""
    path = program()
    if path is None:
        pytest.skip(NONE)
    with playwright_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=_OPTIONS)
        yield running
        running.close()


@pytest.fixture
def page_at(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Returns a function that opens an address in a window of some width; what the page logs as an error fails it."""
    opened: list[Page] = []
    errors: list[str] = []

    def show(address: str | Path, width: int = 1280, *, dark: bool = False) -> Page:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address.as_uri() if isinstance(address, Path) else address)
        opened.append(page)
        return page

    yield show
    for page in opened:
        page.close()
    assert errors == []


def sideways(page: Page) -> list[str]:
    """Returns what sticks out of a page to the right, so that it scrolls sideways; empty if it does not scroll."""
    return list(
        page.evaluate("""() => {
            const root = document.scrollingElement;
            if (root.scrollWidth <= innerWidth) return [];
            const all = [...document.querySelectorAll("body *")];
            const out = all.filter(e => e.getBoundingClientRect().right > innerWidth);
            return [`${root.scrollWidth} px of ${innerWidth}`, ...out.slice(0, 5).map(e => e.outerHTML.slice(0, 120))];
        }""")
    )


def scrollers(page: Page) -> list[str]:
    """Returns the elements of a page that scroll sideways within themselves."""
    return list(
        page.evaluate("""() => [...document.querySelectorAll("body *")]
            .filter(e => e.scrollWidth > e.clientWidth + 1)
            .filter(e => ["auto", "scroll"].includes(getComputedStyle(e).overflowX))
            .map(e => e.outerHTML.slice(0, 120))""")
    )


def print_to_pdf(page: Path, out: Path) -> None:
    """Prints a page as a user's browser does from the command line, on its default paper."""
    path = program()
    if path is None:
        pytest.skip(NONE)
    command = [path, "--headless", *_OPTIONS, "--no-pdf-header-footer", f"--print-to-pdf={out}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
