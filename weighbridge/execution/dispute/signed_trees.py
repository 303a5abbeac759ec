"""Trees that a party signed when it handed out the rounding log of a step: in a dispute it may name no other leaves.

A step with logs on demand binds its roundings by one digest over all outputs, which no single leaf shows. Checksums are
linear, and a party that chooses roundings can keep them. So what binds is its signature on a supplement with the root
of the step's tree (docs/formats/supplement.md): the leaves that it posts have that root, or its claim is false. Nothing
is executed for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weighbridge.core.errors import FormatError
from weighbridge.execution.dispute.asking import Claim
from weighbridge.execution.dispute.messages import DisputeError
from weighbridge.transcript.state import state_digest
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.supplements import Statement, read_signed


def require(supplements: Sequence[bytes], step: int, draft: bytes | None) -> None:
    """Checks signed statements that a message shows.

    Args:
        supplements: The statements, as they were signed.
        step: The step that is disputed.
        draft: Digest of the draft of the run that is disputed (32 bytes); None between two trainings.

    Raises:
        DisputeError: One is forged, states no tree, or is of another step or run; the message is not taken.
    """
    for each in supplements:
        try:
            said, _ = read_signed(each)
        except FormatError as error:
            raise DisputeError(f"A supplement that a message shows is refused: {error.message}") from None
        if not said.tree:
            raise DisputeError("A supplement that a message shows states no tree, and binds no leaves; leave it out.")
        if said.step != step or (draft is not None and said.draft != draft.hex()):
            raise DisputeError("A supplement that a message shows is of another step or run than the disputed one.")


def binding(supplements: Iterable[bytes], key: bytes, draft: bytes) -> tuple[bytes, ...]:
    """Returns those statements that bind a party: it signed them about the run that it speaks of.

    Args:
        supplements: What messages showed, all of which `require` took.
        key: The party's raw public key (32 bytes).
        draft: Digest of the draft of its run (32 bytes); nothing if it names none, which frees it from no signature.
    """
    found = []
    for each in supplements:
        said, signer = read_signed(each)
        if signer == key and said.draft == (draft.hex() or said.draft):
            found.append(each)
    return tuple(found)


def contradiction(claim: Claim, record: StepRecord) -> str:
    """Says how a claim contradicts what its party signed about the same record; "" if it does not.

    Args:
        claim: The claim.
        record: Its record, decoded.
    """
    for each in claim.supplements:
        said, _ = read_signed(each)
        if not _same(said, claim, record):
            continue
        if bytes.fromhex(said.tree) != claim.root:
            return f"the party signed another tree of step {said.step} than the leaves have that it names"
        if bytes.fromhex(said.rounding) != claim.log:
            return f"the party signed another rounding log of step {said.step} than it names"
    return ""


def _same(said: Statement, claim: Claim, record: StepRecord) -> bool:
    """Says whether a statement is about the record of a claim: the same step from and to the same states."""
    before = bytes.fromhex(said.before) or state_digest({}, {})
    outputs, state = bytes.fromhex(said.outputs), bytes.fromhex(said.state)
    return (said.step, before, state, outputs) == (record.step, claim.state, record.state, record.outputs)
