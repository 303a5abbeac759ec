"""What the Verifier remembers of rounding logs made on demand, beyond one inspection and beyond its cache.

How many requests each Prover answered, so that one who never regenerates does not start anew with every inspection. And
what each Prover signed about the log of a step, so that another log for the same step is found whenever it comes.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session, sessionmaker

from verifier.model.supplement_facts import Asked, Count
from verifier.store import database
from verifier.store.tables import RegenerationRow, SupplementRow, SupplementTreeRow
from weighbridge.transcript.supplements import Statement, read_signed

MOST_LOGS = 2
"""Different logs of one step that are remembered: two that a Prover signed are proof already."""
MOST_TREES = 2
"""Different trees of one log that are remembered, likewise."""

Signed = tuple[Statement, bytes, bytes]
"""A statement, who signed it (32 bytes), and the signed envelope."""


class SupplementRecords:
    """The tables about supplements in the Verifier's database."""

    def __init__(self, session: sessionmaker[Session]) -> None:
        """Uses the database behind the registry."""
        self._session = session

    def note(self, inspection: str, asked: Asked) -> None:
        """Counts a request; the same one of an inspection once, as it came out last."""
        with self._session.begin() as session:
            row = {
                "inspection": inspection, "prover": asked.prover, "transcript": asked.transcript,
                "begin": asked.steps[0], "wanted": asked.wanted, "came": asked.came,
            }  # fmt: skip
            database.put(session, RegenerationRow, row)

    def earlier(self, inspection: str) -> dict[str, Count]:
        """Returns by Prover how many requests all other inspections made, and how many of these were answered."""
        whole = func.sum(case((RegenerationRow.came == RegenerationRow.wanted, 1), else_=0))
        query = select(RegenerationRow.prover, func.count(), whole).where(RegenerationRow.inspection != inspection)
        with self._session() as session:
            rows = session.execute(query.group_by(RegenerationRow.prover)).all()
        return {prover: (int(asked), int(answered)) for prover, asked, answered in rows}

    def known(self, draft: bytes, signer: bytes, steps: tuple[int, int]) -> dict[int, list[Statement]]:
        """Returns by step what a key signed about the logs of some steps of a run, the first tree of each log first."""
        found: dict[int, list[Statement]] = {}
        with self._session() as session:
            for row in (SupplementRow, SupplementTreeRow):
                query = select(row.step, row.envelope).where(
                    row.draft == draft, row.signer == signer, row.step >= steps[0], row.step < steps[1]
                )
                for step, envelope in session.execute(query.order_by(row.step, row.rounding)):
                    found.setdefault(step, []).append(read_signed(envelope)[0])
        return found

    def keep(self, signed: Iterable[Signed]) -> None:
        """Remembers statements whose signatures verified: what was signed first about a log, and another tree of it."""
        with self._session.begin() as session:
            for statement, signer, envelope in signed:
                key = {
                    "draft": bytes.fromhex(statement.draft), "signer": signer, "step": statement.step,
                    "rounding": bytes.fromhex(statement.rounding),
                }  # fmt: skip
                there = session.get(SupplementRow, tuple(key.values()))
                first = "" if there is None else read_signed(there.envelope)[0].tree
                if first and first != statement.tree:
                    tree = bytes.fromhex(statement.tree)
                    database.put(session, SupplementTreeRow, key | {"tree": tree, "envelope": envelope})
                else:
                    database.put(session, SupplementRow, key | {"envelope": envelope})
