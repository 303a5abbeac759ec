"""The console's pages: one function for each address. All of them only read."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException

from verifier.console import journey
from verifier.console.evidence_files import BusyError, EvidenceFiles
from verifier.console.reading import Reading
from verifier.console.rendering import Pages
from verifier.console.search import LONGEST, Found, search
from verifier.report.page import page_context, render_html
from weighbridge.core.errors import NotFoundError, WeighbridgeError

_HERE = FilePath(__file__).parent
_FILES = {"htmx.min.js": "text/javascript", "htmx-LICENSE.txt": "text/plain", "icon.svg": "image/svg+xml"}
_CHIPS = 50
_NEWEST = 8
_REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Of the report itself, which is one file with its style in it and runs no script."""

Handler = TypeVar("Handler", bound=Callable[..., Response])

_Inspection = Annotated[str, Path(pattern=r"^[0-9a-f]{1,64}$")]
_Ueid = Annotated[str, Path(pattern=r"^([0-9a-f]{2}){17,33}$")]
_Entry = Annotated[int, Path(ge=0, lt=1 << 63)]
_Limit = Annotated[int, Query(ge=1, le=500)]
_Seen = Annotated[str, Query(max_length=64)]


def create(reading: Reading, evidence: EvidenceFiles | None, *, cache: str = "CACHE", db: str = "DB") -> FastAPI:
    """Returns the application. It trusts every caller: `sign_in.SignIn` stands before it.

    Args:
        reading: The database.
        evidence: Puts files of evidence together; without it pages name the command that does.
        cache: What that command says for the Verifier's cache.
        db: What it says for the database.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    pages = Pages(reading, evidence is not None, cache=cache, db=db)
    router = APIRouter()
    _add_lists(router, reading, pages)
    _add_inspection(router, reading, pages)
    _add_chips(router, reading, pages)
    if evidence is not None:
        _add_evidence(router, evidence)
    _add_files(router, pages)
    app.include_router(router)
    _add_errors(app, pages)
    return app


def _get(router: APIRouter, path: str) -> Callable[[Handler], Handler]:
    return router.api_route(path, methods=["GET", "HEAD"], response_class=HTMLResponse)


def _add_lists(router: APIRouter, reading: Reading, pages: Pages) -> None:
    @_get(router, "/")
    def fleet(request: Request) -> Response:
        states = reading.registry.states()
        lines = reading.registry.inspections(limit=_NEWEST)
        return pages.page(
            request, "fleet.html", here="fleet", states=states, sites=reading.coverage(), lines=lines, limit=_NEWEST,
            seen=_mark(lines),
        )  # fmt: skip

    @_get(router, "/inspections")
    def inspections(request: Request, limit: _Limit = 100) -> Response:
        lines = reading.registry.inspections(limit=limit)
        return pages.page(request, "inspections.html", here="inspections", lines=lines, limit=limit, seen=_mark(lines))

    @_get(router, "/inspections/rows")
    def rows(request: Request, limit: _Limit = 100, seen: _Seen = "") -> Response:
        lines = reading.registry.inspections(limit=limit)
        if seen == _mark(lines):
            return Response(status_code=204)  # nothing changed: the page stays as it is, and the reader's place in it
        return pages.page(request, "rows.html", lines=lines, limit=limit, seen=_mark(lines))

    @_get(router, "/search")
    def find(request: Request, q: Annotated[str, Query(max_length=LONGEST)] = "") -> Response:
        found: Found = search(reading, q)
        return pages.page(request, "search.html", here="search", query=q, found=found)


def _add_inspection(router: APIRouter, reading: Reading, pages: Pages) -> None:
    @_get(router, "/inspections/{inspection}")
    def inspection(request: Request, inspection: _Inspection) -> Response:
        line = reading.line(inspection)
        report = reading.report(inspection) if line.stage == "done" else None
        if report is None:
            lines = reading.progress(inspection)
            return pages.page(
                request, "running.html", here="inspections", line=line, progress=lines, seen=_mark([line, lines])
            )
        return pages.page(request, "inspection.html", here="inspections", line=line, **_shown(report, pages))

    @_get(router, "/inspections/{inspection}/live")
    def live(request: Request, inspection: _Inspection, seen: _Seen = "") -> Response:
        line = reading.line(inspection)
        if line.stage == "done":
            return Response(status_code=204, headers={"HX-Refresh": "true"})
        lines = reading.progress(inspection)
        mark = _mark([line, lines])
        if seen == mark:
            return Response(status_code=204)
        return pages.page(request, "live.html", line=line, progress=lines, seen=mark)

    @_get(router, "/inspections/{inspection}/report")
    def report(inspection: _Inspection) -> Response:
        return HTMLResponse(
            render_html(_report(reading, inspection)), headers={"Content-Security-Policy": _REPORT_POLICY}
        )

    @_get(router, "/inspections/{inspection}/p.svg")
    def plot(inspection: _Inspection) -> Response:
        drawn = pages.plot(_report(reading, inspection))
        if not drawn:
            raise HTTPException(404, "this fleet is too small for a plot")
        return Response(drawn, media_type="image/svg+xml")

    @_get(router, "/inspections/{inspection}/snapshots/{ueid}/{entry}")
    def snapshot(request: Request, inspection: _Inspection, ueid: _Ueid, entry: _Entry) -> Response:
        report = _report(reading, inspection)
        chip = next((each for each in report["chips"] if each["ueid"] == ueid), None)
        row = None if chip is None else next((each for each in chip["snapshots"] if each["index"] == entry), None)
        if chip is None or row is None:
            raise HTTPException(404, "this inspection looked at no such snapshot")
        about = journey.findings_about(report, chip, row)
        shown = _shown({**report, "findings": about}, pages, numbered=report["findings"])
        found = reading.registry.find(ueid, 1)
        way = journey.stations(
            report, chip, row, found[0] if found else None, reading.entry_digest(bytes.fromhex(ueid), entry)
        )
        return pages.page(request, "snapshot.html", here="inspections", chip=chip, row=row, stations=way, **shown)


def _add_chips(router: APIRouter, reading: Reading, pages: Pages) -> None:
    @_get(router, "/chips")
    def chips(request: Request, after: Annotated[str, Query(pattern=r"^(([0-9a-f]{2}){17,33})?$")] = "") -> Response:
        listed, registry = reading.chips(after=after, limit=_CHIPS + 1), reading.registry
        more = listed[_CHIPS - 1].ueid.hex() if len(listed) > _CHIPS else ""
        return pages.page(
            request, "chips.html", here="chips", chips=listed[:_CHIPS], more=more, size=registry.tree_size,
            parties=registry.statements.parties(), root=registry.root().hex(), states=registry.states(),
        )  # fmt: skip

    @_get(router, "/chips/{ueid}")
    def chip(request: Request, ueid: _Ueid) -> Response:
        identity = bytes.fromhex(ueid)
        known = reading.registry.chip(identity)
        custody, drawn = reading.custody(identity), reading.inspections_of(identity)
        return pages.page(request, "chip.html", here="chips", chip=known, custody=custody, drawn=drawn)


def _add_evidence(router: APIRouter, evidence: EvidenceFiles) -> None:
    @_get(router, "/inspections/{inspection}/evidence")
    def download(
        inspection: _Inspection,
        finding: Annotated[int | None, Query(ge=0)] = None,
        chip: Annotated[str, Query(pattern=r"^(([0-9a-f]{2}){17,33})?$")] = "",
        entry: Annotated[int | None, Query(ge=0, lt=1 << 63)] = None,
    ) -> Response:
        snapshot = None if not chip or entry is None else (chip, entry)
        out = evidence.write(inspection, finding=finding, snapshot=snapshot)
        remove = BackgroundTask(shutil.rmtree, out.parent, ignore_errors=True)
        return FileResponse(out, media_type="application/zip", filename=out.name, background=remove)


def _add_files(router: APIRouter, pages: Pages) -> None:
    kept = {name: ((_HERE / "static" / name).read_bytes(), kind) for name, kind in _FILES.items()}
    kept["console.css"] = (pages.style(), "text/css")

    @_get(router, "/static/{name}")
    def static(name: str) -> Response:
        if name not in kept:
            raise HTTPException(404, "there is no such file")
        content, kind = kept[name]
        return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})


def _add_errors(app: FastAPI, pages: Pages) -> None:
    def refused(request: Request, status: int, message: str) -> Response:
        return pages.page(request, "error.html", status=status, here="", message=message)

    @app.exception_handler(HTTPException)
    def http(request: Request, error: HTTPException) -> Response:
        return refused(request, error.status_code, str(error.detail))

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        names = ", ".join(sorted({str(each["loc"][-1]) for each in error.errors()}))
        return refused(request, 400, f"this address has no proper {names}")

    @app.exception_handler(WeighbridgeError)
    def ours(request: Request, error: WeighbridgeError) -> Response:
        status = 404 if isinstance(error, NotFoundError) else 503 if isinstance(error, BusyError) else 400
        return refused(request, status, error.message)


def _report(reading: Reading, inspection: str) -> dict[str, Any]:
    report = reading.report(inspection)
    if report is None:
        raise HTTPException(404, f"inspection {inspection} has no report")
    return report


def _shown(report: Mapping[str, Any], pages: Pages, numbered: Any = None) -> dict[str, Any]:
    """Returns what the report's own templates need, with links to evidence where files of it can be had."""
    shown = page_context(report)
    if pages.evidence:
        findings = report["findings"] if numbered is None else numbered
        numbers = {id(each): number for number, each in enumerate(findings)}
        path = f"/inspections/{report['inspection']}/evidence?finding="
        shown["evidence_link"] = lambda case: f"{path}{numbers[id(case)]}"
    return shown


def _mark(value: Any) -> str:
    """Returns what changes when something that is shown does."""
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()
