"""Numbers as text, for reports and pages: never more certain than they are."""

from __future__ import annotations

from typing import Any


def number(value: Any) -> str:
    """Returns a number as text: whole ones below a million with separators, others to four digits."""
    if value is None:
        return "none"
    plain = float(value)
    if plain.is_integer() and abs(plain) < 1e6:
        return f"{int(plain):,}"
    return f"{plain:,.4g}" if 1e-3 <= abs(plain) < 1e6 else f"{plain:.4g}"


def percent(value: float | None) -> str:
    """Returns a fraction as a percentage, with more digits near 0 and 1, which are written only if true."""
    if value is None:
        return "does not fit"
    if value in (0.0, 1.0):
        return f"{value:.0%}"
    for digits in range(2, 12):
        text = f"{value:.{digits}%}"
        if float(text[:-1]) not in (0.0, 100.0):
            return text
    return "almost 100 %" if value > 0.5 else "almost 0 %"


def size(value: float) -> str:
    """Returns bytes with a decimal prefix, such as `24 PB`."""
    scaled = value
    for unit in ("B", "kB", "MB", "GB", "TB", "PB", "EB"):
        if scaled < 1000:
            return f"{scaled:.3g} {unit}"
        scaled /= 1000
    return f"{scaled:,.3g} ZB"


def seconds(value: float) -> str:
    """Returns a duration in the largest unit that it has one of, such as `3.2 years`."""
    for unit, length in (("years", 365 * 86400.0), ("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if value >= length:
            return f"{value / length:,.3g} {unit}" if value / length < 1e6 else f"{value / length:.3g} {unit}"
    return f"{value:.3g} s"
