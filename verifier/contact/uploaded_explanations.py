"""Where snapshots came from by transcripts that Provers uploaded, if no Prover's service says it.

Whose uploads may speak for a chip? Its own log says so: a run commits to its draft on the chip before the first
snapshot. So only a transcript with such a draft is looked at, and no other Prover's upload can get between.
"""

from __future__ import annotations

from typing import Protocol

from verifier.contact.uploads import Whole
from verifier.model.facts import Explanation, SnapshotFacts, digest, number
from verifier.store.cache import Cache
from weighbridge.attest.tokens import Token, claims_position
from weighbridge.execution.transcript_facts import OpenedTranscript


class HandedIn(Protocol):
    """Where transcripts are that Provers handed in."""

    def whole(self) -> list[Whole]:
        """Returns them; each is in the cache, or was."""


class Uploaded:
    """The uploads of one inspection; each transcript is opened once. One thread at a time uses it."""

    def __init__(self, uploads: HandedIn, cache: Cache) -> None:
        """Looks in `uploads` whenever it is asked, for transcripts in `cache`."""
        self._uploads, self._cache = uploads, cache
        self._opened: dict[str, tuple[OpenedTranscript, dict[tuple[bytes, int], tuple[int, int]]] | None] = {}

    def explain(self, snapshot: SnapshotFacts) -> Explanation | None:
        """Returns where a snapshot came from by the uploads; None if none of them says. It is a claim as any other.

        Args:
            snapshot: The snapshot, with the drafts that its chip logged before.
        """
        drafts = [draft for _, draft in snapshot.drafts]
        known = self._uploads.whole()
        candidates = [each for each in known if each.draft in drafts]
        # The newest run first; of one run what tells most of it.
        candidates.sort(key=lambda each: (drafts.index(each.draft), each.steps), reverse=True)
        token = snapshot.verified.token
        for by_name in (True, False):
            for each in candidates:
                place = self._named(each, snapshot) if by_name else self._in_history(each, token)
                if place is not None:
                    return Explanation(transcript_id=each.id, step=place[0], op=place[1], ranks=_ranks(each, known))
        return None

    def _named(self, whole: Whole, snapshot: SnapshotFacts) -> tuple[int, int] | None:
        """Returns the position at which a transcript names a snapshot."""
        opened = self._open(whole.id)
        return None if opened is None else opened[1].get((snapshot.chip.ueid, snapshot.index))

    def _in_history(self, whole: Whole, token: Token) -> tuple[int, int] | None:
        """Returns the position that a token claims, if the transcript's history up to there is the token's."""
        opened = self._open(whole.id)
        if opened is None or not claims_position(token):
            return None
        step, op = number(token, "step"), number(token, "op")
        there = 0 <= step <= opened[0].steps and opened[0].head(step - 1) == digest(token, "head")
        return (step, op) if there else None

    def _open(self, identifier: str) -> tuple[OpenedTranscript, dict[tuple[bytes, int], tuple[int, int]]] | None:
        if identifier not in self._opened:
            found = self._cache.find(identifier)
            self._opened[identifier] = None if found is None else (found, _snapshots(found))
        return self._opened[identifier]


def _snapshots(transcript: OpenedTranscript) -> dict[tuple[bytes, int], tuple[int, int]]:
    """Returns (chip UEID, log index) to position of every snapshot that a transcript names."""
    return {(ueid, index): (step, op) for ueid, index, step, op in transcript.all_snapshots()}


def _ranks(whole: Whole, known: list[Whole]) -> tuple[str, ...]:
    """Returns the transcripts of all ranks of a transcript's job that the same Prover uploaded, by rank."""
    if whole.coordinate is None:
        return ()
    job = whole.coordinate.job
    beside = {
        each.coordinate.rank: each.id
        for each in sorted(known, key=lambda each: each.steps)
        if each.coordinate is not None and each.coordinate.job == job and each.certificate == whole.certificate
    }
    beside[whole.coordinate.rank] = whole.id
    return tuple(beside.get(rank, "") for rank in range(job.ranks))
