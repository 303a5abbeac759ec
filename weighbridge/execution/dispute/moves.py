"""What parties say in a dispute: terms that differ, a challenge and its answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import DIGEST_SIZE
from weighbridge.core.errors import UsageError
from weighbridge.execution.dispute.asking import SLICES, Traced
from weighbridge.execution.dispute.confidential import TERMS_ITEMS
from weighbridge.execution.dispute.leaves import tree_root
from weighbridge.execution.dispute.memory_messages import Granted
from weighbridge.execution.dispute.messages import Answer, Challenge, Course, Message
from weighbridge.transcript.supplements import read_signed


def other_tables(mine: bytes, messages: Iterable[Message]) -> str:
    """Says what a party is told before it speaks whose table of slices is not the other one's; "" if it is.

    A party that goes on loses nothing: parties with other terms have no step to dispute.

    Args:
        mine: The party's terms, encoded.
        messages: What was said so far.

    Raises:
        FormatError: What the other party said is no terms.
    """
    said = next((each.content for each in messages if isinstance(each.content, Course | Challenge)), None)
    return "" if said is None else apart(said.terms, mine)


def apart(challenger: bytes, defender: bytes) -> str:
    """Says whose table of slices is which, of parties whose tables differ; "" if they do not.

    Args:
        challenger: The challenger's terms, encoded.
        defender: The defender's terms, encoded.

    Raises:
        FormatError: One of them is no terms.
    """
    one, other = _table(challenger), _table(defender)
    if one == other:
        return ""
    return (
        f"the parties have other tables of slices, the challenger {one} and the defender {other}; both and the referee "
        "need one version"
    )


def _table(terms: bytes) -> str:
    raw = decode_cbor(terms, max_depth=8, max_items=TERMS_ITEMS)
    found = raw.get(SLICES, "none") if isinstance(raw, dict) else "none"
    return found[:64] if isinstance(found, str) and found[:64].isalnum() else "none"


def challenge(mine: Traced, step: int, *, own: bool, supplements: Sequence[bytes] = ()) -> Challenge:
    """Returns the message that opens a dispute.

    Args:
        mine: The challenger's tree.
        step: Number of the step.
        own: Whether the record is the challenger's own; else it is the one that it disputes.
        supplements: Signed statements about the step to show beside the one that lies beside the transcript.
    """
    return Challenge(
        terms=mine.terms, tape=mine.tape, state=mine.state, step=step, record=mine.record, own=own,
        log=mine.log, leaves=b"".join(mine.leaves), draft=mine.draft, supplements=_shown(mine, supplements),
    )  # fmt: skip


def require_own(mine: Traced) -> None:
    """Checks before a party stands by its leaves that they are those that it signed, as it would lose by any others.

    Raises:
        UsageError: Here the step comes out otherwise (`dispute.supplement`), or the supplement was changed.
    """
    if mine.signed and bytes.fromhex(read_signed(mine.signed)[0].tree) != tree_root(mine.leaves):
        raise UsageError(
            "the supplement of this step that lies beside the transcript states another tree than this machine makes; "
            "go on where that supplement was made, or with its copy of the transcript",
            code="dispute.supplement",
        )


def _shown(mine: Traced, supplements: Sequence[bytes]) -> list[bytes]:
    return list(dict.fromkeys(each for each in (mine.signed, *supplements) if each))


def answer(mine: Traced | None, asked: Challenge, supplements: Sequence[bytes] = ()) -> Answer:
    """Returns the defender's answer; an empty one if the challenge is about another step than that of the defender.

    A step of another run of the defender is another step, although it may have the same record: its log may be another.

    Args:
        mine: The defender's tree; None of a step that cannot be disputed.
        asked: The challenge.
        supplements: As for `challenge`.
    """
    if mine is None or (mine.terms, mine.tape, mine.state) != (asked.terms, asked.tape, asked.state):
        return Answer(record=b"", log=bytes(32), leaves=b"")
    if not asked.own and asked.draft != mine.draft:
        return Answer(record=b"", log=bytes(32), leaves=b"")
    return Answer(
        record=mine.record, log=mine.log, leaves=b"".join(mine.leaves), draft=mine.draft,
        supplements=_shown(mine, supplements),
    )  # fmt: skip


def declined(due: str) -> Course | Answer | Granted:
    """Returns what a defender sends that shows nothing of its run, and takes no part: no party loses by it.

    Args:
        due: What is due from it.

    Raises:
        UsageError: It has taken part already, or is no defender.
    """
    if due == "course":
        return Course(terms=b"", states=b"", inputs=b"")
    if due == "answer":
        return Answer(record=b"", log=bytes(DIGEST_SIZE), leaves=b"")
    if due == "doubt":
        return Granted()
    raise UsageError("a defender declines before it answers; once it took part it can only go on, or forfeit")
