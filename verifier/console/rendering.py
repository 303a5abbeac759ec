"""Rendering of the console's pages: its own templates and those of the report, in one style."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import ChoiceLoader, PackageLoader, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from verifier.console import journey
from verifier.console.reading import Reading
from verifier.console.search import LONGEST, snapshot_path
from verifier.console.sign_in import CALLER
from verifier.registry import FINISHED
from verifier.report.chip_names import short
from verifier.report.page import curve, page_environment

_INK = (
    "<style>svg{color:#1d2a32;--line:#dce1e3;--accent:#1b6480;--warn:#855700}"
    "@media(prefers-color-scheme:dark){svg{color:#e4eaed;--line:#323e46;--accent:#6bb9d6;--warn:#e2b04a}}</style>"
)
"""Colours for a plot that stands alone, as an image: it inherits none of the page's."""


class Pages:
    """Renders pages for one console.

    Attributes:
        evidence: Whether files of evidence can be had here.
    """

    def __init__(self, reading: Reading, evidence: bool, *, cache: str, db: str) -> None:
        """Loads the templates; see `pages.create` for the arguments."""
        self.evidence = evidence
        self._environment = page_environment()
        self._environment.loader = ChoiceLoader([PackageLoader("verifier.console"), PackageLoader("verifier.report")])
        self._environment.filters |= {
            "chip": _named,
            "transcript": _named,
            "named": _named_text,
            "tone": journey.tone_of,
        }
        self._environment.globals |= {
            "short": short,
            "snapshot_path": snapshot_path,
            "finished": FINISHED,
            "longest": LONGEST,
            "with_evidence": evidence,
            "sources": {"cache": cache, "db": db},
        }

    def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Returns a page.

        Args:
            request: To whom it goes.
            template: Its name.
            status: Of HTTP.
            **values: What the template shows.
        """
        text = self._environment.get_template(template).render(values, status=status, caller=request.scope.get(CALLER))
        return HTMLResponse(text, status)

    def style(self) -> bytes:
        """Returns the style of all pages: the report's, and what only the console has."""
        parts = [
            files("verifier.report") / "templates" / "page.css",
            files("verifier.console") / "static" / "console.css",
        ]
        return b"\n".join(part.read_bytes() for part in parts)

    def plot(self, report: dict[str, Any]) -> str:
        """Returns the plot of p as an SVG file; empty where there is too little to plot."""
        drawn = curve(report)
        head, _, rest = drawn.partition(">")
        return f"{head}>{_INK}{rest}" if drawn else ""


@pass_context
def _named(context: Context, identifier: str) -> Markup:
    marked: Markup = context["names"].marked(identifier)
    return marked


@pass_context
def _named_text(context: Context, text: object) -> Markup:
    marked: Markup = context["names"].marked_text(text)
    return marked
