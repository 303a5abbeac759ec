"""Rolling monitoring periods: what the draws of several inspections are worth together.

The registry's database keeps every draw for good: when it was, what it was to catch, its record, and, once the
inspection is over, how many chips of each group were drawn and verified. A run that lasted k periods met k draws. Two
answers, both against the Prover who spreads the run so as to be missed most often in every period anew:

- *at least*: in each period only snapshots count that were taken in it. These are independent from period to period,
  and so are the draws: p = 1 - prod_j (1 - p_j) is a lower bound.
- *accumulating*: snapshots stay on chips, so that at the end of period j a chip holds one with probability
  1 - exp(-f T_1..j), the days since the run began (`analysis.periods`). Taken as independent, which is a little high
  where few chips are involved.

Chips of any of the periods that did not verify after their draw was known were chosen by the Prover. They are reckoned
together, as `analysis.silence` says: the run is seen if more drawn chips show it than did not verify, over all periods.

A longer run of the same H FLOPs needs fewer chips at a time, so both are given for each k.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

from analysis.silence import least_probability_despite
from verifier.draw.derivation import grouped_draw
from verifier.draw.log_entries import Aim
from verifier.store.tables import DrawRow
from weighbridge.core.errors import NotFoundError

_DAY_MS = 24 * 3600 * 1000
MOST_PERIODS = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """One draw of the past.

    Attributes:
        inspection: Identifier of its inspection.
        drawn_ms: When its sample was known, in milliseconds since 1970.
        aim: What it was to catch.
        groups: As `verifier.draw.derivation.detection` gives them: of each group `chips`, `drawn`, `unverified`, speed.
            Outcomes of earlier versions have no `unverified`, and `drawn` counts the verified chips only.
    """

    inspection: str
    drawn_ms: int
    aim: Aim
    groups: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Accumulated:
    """What the last k periods are worth together, against a run as long as all of them.

    Attributes:
        periods: k.
        inspections: Identifiers, the oldest first.
        run_days: Length of the run.
        at_least: p with the snapshots of each period alone.
        accumulating: p with snapshots that stay on the chips.
    """

    periods: int
    inspections: tuple[str, ...]
    run_days: float
    at_least: float
    accumulating: float

    def to_json(self) -> dict[str, Any]:
        """Returns every field."""
        return {
            "periods": self.periods,
            "inspections": list(self.inspections),
            "run_days": self.run_days,
            "at_least": self.at_least,
            "accumulating": self.accumulating,
        }


class Draws:
    """The table of draws in the Verifier's database."""

    def __init__(self, session: sessionmaker[Session]) -> None:
        """Opens the table.

        Args:
            session: Makes sessions on the database.
        """
        self._session = session

    def keep(self, inspection: str, *, drawn_ms: int, aim: Aim, record: bytes) -> None:
        """Keeps a draw; one that is kept already stays as it is.

        Args:
            inspection: Identifier of its inspection, which the registry knows.
            drawn_ms: When its sample was known, in milliseconds since 1970.
            aim: What it is to catch.
            record: Digest under which its record lies in the cache directory; empty if it has none.
        """
        with self._session.begin() as session:
            if session.get(DrawRow, inspection) is None:
                session.add(
                    DrawRow(
                        inspection=inspection,
                        drawn_ms=drawn_ms,
                        aim=json.dumps(aim.to_json()),
                        record=record,
                        outcome=None,
                    )
                )

    def finish(self, inspection: str, groups: Sequence[Mapping[str, Any]]) -> None:
        """Keeps what a draw came to, once it is known which chips could be verified."""
        with self._session.begin() as session:
            session.execute(
                update(DrawRow).where(DrawRow.inspection == inspection).values(outcome=json.dumps([*map(dict, groups)]))
            )

    def record(self, inspection: str) -> bytes:
        """Returns the digest of a draw's record.

        Raises:
            NotFoundError: There is no such draw, or it has no record.
        """
        with self._session() as session:
            row = session.get(DrawRow, inspection)
            if row is None or not row.record:
                raise NotFoundError(
                    f"inspection {inspection!r:.80} has no record of a draw (yet); watch it, or name another",
                    resource="draw",
                    name=inspection,
                )
            return row.record

    def past(self, aim: Aim | None = None, before_ms: int | None = None) -> list[Past]:
        """Returns the finished draws, the oldest first.

        Args:
            aim: Take only draws with the same period.
            before_ms: Take only draws up to this time.
        """
        with self._session() as session:
            rows = session.scalars(select(DrawRow).where(DrawRow.outcome.is_not(None)).order_by(DrawRow.drawn_ms))
            found = [
                Past(
                    inspection=row.inspection,
                    drawn_ms=row.drawn_ms,
                    aim=Aim(**json.loads(row.aim)),
                    groups=json.loads(row.outcome or "[]"),
                )
                for row in rows
                if before_ms is None or row.drawn_ms <= before_ms
            ]
        return [each for each in found if aim is None or each.aim.period_days == aim.period_days]


def rolling(draws: Sequence[Past], period_days: float) -> list[Past]:
    """Returns the latest run of draws of which each is about one monitoring period after the one before.

    From the newest back: of the draws between half a period and one and a half periods earlier the one closest to a
    whole period is next; where there is none, monitoring had a gap and the run of periods ends.

    Args:
        draws: The oldest first.
        period_days: T_m.

    Returns:
        The oldest first; at most 120.
    """
    period_ms = period_days * _DAY_MS
    chosen: list[Past] = [draws[-1]] if draws else []
    while chosen and len(chosen) < MOST_PERIODS:
        due = chosen[-1].drawn_ms - period_ms
        near = [each for each in draws if abs(each.drawn_ms - due) <= period_ms / 2 and each not in chosen]
        if not near:
            break
        chosen.append(min(near, key=lambda each: abs(each.drawn_ms - due)))
    return chosen[::-1]


def accumulated(draws: Sequence[Past], aim: Aim) -> list[Accumulated]:
    """Returns what the last 1, 2, ... periods are worth together.

    Args:
        draws: One draw of each period, the oldest first, as `rolling` gives them.
        aim: The size of violation and snapshot rate to reckon with, and the length of the period.
    """
    found = []
    for count in range(1, len(draws) + 1):
        latest, days = draws[-count:], count * aim.period_days
        at_least = _seen(latest, aim, days, [aim.period_days] * count)
        # Of a single period both are the same, and with many strata either takes seconds.
        accumulating = at_least
        if count > 1:
            accumulating = _seen(latest, aim, days, [number * aim.period_days for number in range(1, count + 1)])
        found.append(
            Accumulated(
                periods=count,
                inspections=tuple(each.inspection for each in latest),
                run_days=days,
                at_least=at_least,
                accumulating=accumulating,
            )
        )
    return found


def _seen(draws: Sequence[Past], aim: Aim, run_days: float, logged_days: Sequence[float]) -> float:
    """Returns p of some draws against a run of `run_days`; at each its chips have logged for so many days."""
    # Where the run does not fit on the chips that there were, it was not on them.
    fits = [(each, days) for each, days in zip(draws, logged_days, strict=True) if _fits(each, aim, run_days)]
    if not fits:
        return 0.0
    return least_probability_despite(
        [
            grouped_draw(
                each.groups,
                flops_threshold=aim.flops_threshold,
                run_days=run_days,
                snapshot_rate_per_day=aim.snapshot_rate_per_day,
                logged_days=days,
            )
            for each, days in fits
        ],
        withheld=sum(group.get("unverified", 0) for each, _ in fits for group in each.groups),
    )[0]


def _fits(draw: Past, aim: Aim, run_days: float) -> bool:
    power = math.fsum(group["chips"] * group["chip_flops_per_day"] for group in draw.groups)
    return aim.flops_threshold / run_days <= power * (1 + 1e-12)
