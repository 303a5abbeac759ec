"""The report of an inspection as one self-contained HTML page, for screens of every width and for paper.

The page is rendered from the report's JSON alone. All text in it may come from a Prover or a chip: the page escapes
everything, runs no script, and refers to nothing outside itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from verifier.report import charts, extent, false_accusation
from verifier.report.earlier_reports import as_current
from verifier.report.finding_groups import group
from verifier.report.ledger import CATEGORIES
from verifier.report.miss_bound import P_IS
from verifier.report.names import Names
from verifier.report.strips import MOST_CHIPS, strips


def render_html(report: Mapping[str, Any]) -> str:
    """Renders a report as one HTML page without references to anything outside it.

    Args:
        report: What `verifier.report.document.build` returned, or the same read back from JSON; one of an earlier
            version is shown as this one.
    """
    context = page_context(report)
    names = context["names"]
    environment = page_environment()
    environment.filters |= {"chip": names.marked, "transcript": names.marked, "named": names.marked_text}
    return environment.get_template("report.html").render(context)


def page_context(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the templates `report_*.html` show of a report, by the names that they use.

    Args:
        report: As `render_html` takes it.
    """
    report = as_current(report)
    drawn = strips(report)
    spans = [span for strip in drawn.values() for span in strip.spans]
    return {
        "report": report,
        "groups": group(report["findings"]),
        "names": Names(report["chips"], report["transcripts"]),
        "strips": drawn,
        "seen": {
            "categories": [each for each in CATEGORIES if any(span.category == each for span in spans)],
            "statuses": sorted({mark.status for strip in drawn.values() for mark in strip.marks}),
        },
        "most_chips": MOST_CHIPS,
        "p_is": P_IS,
        "accused": false_accusation.in_words(report["false_accusation"]),
        # Our own plotting code makes this and puts nothing in it but numbers and our own words.
        "curve": Markup(curve(report)),
        "nothing": extent.nothing_checked(report),
        "without_work": extent.nothing_due_on(report["chips"]),
        "undecided": extent.undecided(report),
        "replays": extent.replays_in_words(report),
    }


def curve(report: Mapping[str, Any]) -> str:
    """Returns the plot of p against the number of chips drawn; see `charts.probability`."""
    probability = report["probability"]
    return charts.probability(probability["curve"], drawn=probability["inputs"]["s"])


def page_environment() -> Environment:
    """Returns the environment of all pages made here: it escapes, refuses what is undefined, and formats figures."""
    environment = Environment(
        loader=PackageLoader("verifier.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": size,
        "percent": percent,
        "hours": hours,
        "of_days": extent.chip_time,
        "big": big,
        "utc": utc,
        "grouped": grouped,
    }
    return environment


def size(value: object) -> str:
    """Formats a number of bytes for people."""
    if not isinstance(value, int | float):
        return "-"
    bytes_ = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if bytes_ < 1000:
            return f"{bytes_:.0f}\u00a0{unit}" if unit == "B" else f"{bytes_:.1f}\u00a0{unit}"
        bytes_ /= 1000
    return f"{bytes_:.1f}\u00a0TB"


def hours(value: object) -> str:
    """Formats milliseconds as hours."""
    return "-" if not isinstance(value, int | float) else f"{value / 3_600_000:,.2f}"


def percent(value: object) -> str:
    """Formats a probability; one that is neither 0 nor 1 never reads as 0 or 100 percent."""
    if not isinstance(value, int | float):
        return "not defined"
    if 0 < value < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= value < 1:
        return "> 99.9 %"
    return f"{100 * value:.1f} %"


def big(value: object) -> Markup | str:
    """Formats a number of any size with four digits, as "2.6 × 10^21" with a raised exponent."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    mantissa, exponent = f"{value:.3e}".split("e")
    return Markup("{}&nbsp;×&nbsp;10<sup>{}</sup>").format(mantissa.rstrip("0").rstrip("."), int(exponent))


def grouped(value: object) -> str:
    """Formats a whole number with its thousands apart."""
    return f"{value:,.0f}" if isinstance(value, int | float) else "-"


def utc(value: object) -> str:
    """Formats a time of RFC 3339 for people."""
    return str(value).replace("T", " ").removesuffix("Z") + (" UTC" if str(value).endswith("Z") else "")
