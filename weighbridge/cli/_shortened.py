"""Identifiers that a user shortened, as git takes them: any beginning that only one of them has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from weighbridge.core.errors import UsageError

_NAMED = 8


def resolve(given: str, known: Iterable[str], what: str, advice: str) -> str:
    """Returns the one identifier that begins with `given`; one that is given whole is taken, whatever others begin so.

    Args:
        given: What the user typed.
        known: The identifiers that there are, or those of them that may begin so.
        what: What they identify, for messages: `inspection`.
        advice: What to do if there is none.

    Raises:
        UsageError: None begins so, or several do; the message lists some of them.
    """
    found = [each for each in dict.fromkeys(known) if each.startswith(given)]
    if given in found:
        return given
    if not given or not found:
        raise UsageError(f"there is no {what} {given!r:.100}; {advice}")
    if len(found) > 1:
        listed = ", ".join(islice(found, _NAMED)) + (", ..." if len(found) > _NAMED else "")
        raise UsageError(f"{given!r:.100} may be {listed}; give more of the {what}'s identifier")
    return found[0]


def resolve_chip(given: str, known: Mapping[str, str], advice: str) -> str:
    """Returns the UEID of the one chip whose name is `given`, or whose UEID begins with it.

    Args:
        given: What the user typed.
        known: Names of the chips that there are (empty for none), by UEID in hexadecimal.
        advice: What to do if there is none.

    Raises:
        UsageError: There is none, or there are several; the message lists some of them.
    """
    named = [ueid for ueid, name in known.items() if name == given and name]
    if len(named) == 1:
        return named[0]
    if named:
        listed = ", ".join(named[:_NAMED]) + (", ..." if len(named) > _NAMED else "")
        raise UsageError(f"several chips are called {given!r:.100}: {listed}; give the beginning of its UEID")
    return resolve(given.lower(), known, "chip", advice)
