"""A chip's log with what the tokens of its confidential boots hide, as far as a Prover opened it to a sealed worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from verifier.model.facts import LogFacts
from weighbridge.attest import hidden_fields
from weighbridge.attest.tokens import HiddenBody, Token
from weighbridge.core.errors import TokenError, WeighbridgeError

UNIT = "hidden"
"""Kind of the units with the openings of a chip's tokens (`verifier.units`). A sealed session alone has some."""


def revealed(log: LogFacts, openings: Mapping[int, bytes]) -> LogFacts:
    """Returns the log with the fields that its tokens hide; what does not open stays hidden, and `unopened` says why.

    Args:
        log: As the chip showed it.
        openings: What is said to open each entry, by its index; hostile.
    """
    entries, hidden, unopened = list(log.entries), dict[int, Token](), dict[int, WeighbridgeError]()
    for index in places(log):
        verified = log.entries[index].verified
        assert not isinstance(verified, WeighbridgeError)
        signed = verified.token
        try:
            token = _opened(signed, index, openings.get(index))
        except TokenError as error:
            unopened[index] = error
        else:
            hidden[index], entries[index] = signed, replace(entries[index], verified=replace(verified, token=token))
    return replace(log, entries=entries, hidden=hidden, unopened=unopened)


def places(log: LogFacts) -> list[int]:
    """Returns the places of the tokens that hide fields."""
    return [
        index
        for index, entry in enumerate(log.entries)
        if not isinstance(entry.verified, WeighbridgeError) and isinstance(entry.verified.token.work, HiddenBody)
    ]


def openings_to(openings: Mapping[int, bytes]) -> list[list[Any]]:
    """Returns openings as data for CBOR."""
    return [[index, data] for index, data in sorted(openings.items())]


def openings_of(raw: list[list[Any]]) -> dict[int, bytes]:
    """Inverse of `openings_to`."""
    return {int(index): bytes(data) for index, data in raw}


def _opened(token: Token, index: int, opening: bytes | None) -> Token:
    if opening is None:
        raise TokenError(f"no opening of entry {index} came; the Prover withholds it", code=hidden_fields.WITHHELD)
    return hidden_fields.reveal(token, opening)
