"""Does a chip hide what a confidential boot hides and nothing else, and was what it hides opened as it committed to it?

Outside of a sealed session nothing is opened, and of hidden fields this check says only whether they are hidden as the
boot entry declares. What they hold stays unverified there (`unread_fields`).
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from verifier.model.facts import LogFacts
from verifier.model.sessions import confidential_boots
from weighbridge.attest.hidden_fields import MISMATCH, hides_body
from weighbridge.attest.tokens import HiddenBody, Token
from weighbridge.core.errors import Finding, WeighbridgeError


def check(log: LogFacts) -> list[Finding]:
    """Reports the first token of each kind of fault.

    A chip with any of these findings does not count as verified: what one entry hides may be the beginning of a run, or
    the work of one.
    """
    declared = confidential_boots(log)
    found = [finding for token in _signed(log) if (finding := _otherwise(log, token, declared)) is not None]
    found += [_unopened(log, index) for index in log.unopened]
    first: dict[str, Finding] = {}
    for each in found:
        first.setdefault(each.id, each)
    return list(first.values())


def _signed(log: LogFacts) -> Iterator[Token]:
    """Yields the tokens as the chip signed them, whatever of them was opened since."""
    for index, entry in enumerate(log.entries):
        if not isinstance(entry.verified, WeighbridgeError):
            yield log.hidden.get(index, entry.verified.token)
    if not isinstance(log.head, WeighbridgeError):
        yield log.head.token


def _otherwise(log: LogFacts, token: Token, declared: Set[int]) -> Finding | None:
    if token.boot_count not in declared:
        if not isinstance(token.work, HiddenBody):
            return None
        return Finding(
            id="chip.hidden.undeclared",
            message="the chip hides fields of a token in a boot whose entry does not say that it is confidential; its "
            "firmware was altered",
            expected="fields that are shown",
            found="a commitment",
            subject=_place(log, token),
        )
    if _hides_all(token):
        return None
    return Finding(
        id="chip.hidden.shown",
        message="the chip shows fields of a token that its confidential boot hides; its firmware was altered",
        expected="a commitment",
        found="fields that are shown",
        subject=_place(log, token),
    )


def _hides_all(token: Token) -> bool:
    if token.kind == "head":
        return token.work is None
    return isinstance(token.work, HiddenBody) and isinstance(token.body, HiddenBody) == hides_body(token)


def _unopened(log: LogFacts, index: int) -> Finding:
    error = log.unopened[index]
    false = error.reason == MISMATCH
    return Finding(
        id=error.reason,
        message="what the Prover gave to open a token is not what the chip committed to"
        if false
        else "the Prover gave nothing that opens a token, so nothing of this chip is verified",
        expected="an opening of the commitment that the chip signed",
        found=error.message,
        subject=f"chip {log.chip.ueid.hex()} entry {index}",
        severity="violation" if false else "warning",
    )


def _place(log: LogFacts, token: Token) -> str:
    return f"chip {log.chip.ueid.hex()} {'head' if token.kind == 'head' else f'entry {token.index}'}"
