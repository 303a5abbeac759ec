"""Goes on with an inspection where its case ends, with the Prover's files and no other party.

It is the inspection that a Verifier runs, over a registry that has the drawn chips and no other: what was asked of
chips and Provers is there already, unit by unit, so nothing is asked (`verifier.units`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verifier.contact.log_reading import first_contact
from verifier.contact.uploaded_explanations import Uploaded
from verifier.contact.witness import Witness
from verifier.inspection import Inspection, InspectionStoppedError, Progress
from verifier.model import fact_codec, hidden_tokens
from verifier.model.facts import LogFacts
from verifier.model.replay_task import Outcome
from verifier.registry import Registry
from verifier.report.outcome import Drawn, Missing
from verifier.report.regime import Regime
from verifier.sealed import inputs
from verifier.sealed.case import Case, regime_of
from verifier.stages.read_logs import AGREED, snapshots_in
from verifier.store.cache import Cache
from verifier.store.tables import ChipRow, ContradictionRow
from verifier.units import Units
from weighbridge.attest.identity import Credentials
from weighbridge.attest.tlog import NoteKey
from weighbridge.core.errors import ChipError, ProverError, WeighbridgeError
from weighbridge.execution.worker_process import Limits


class _Remembering(Witness):
    """The witness that holds the logs of a case, as far as a session needs it: it has the key's public half alone."""

    def __init__(self, registry: Registry, case: Case) -> None:
        super().__init__(registry, case.manufacturer)
        self._public = case.witness

    @property
    def key(self) -> NoteKey | None:
        return self._public


@dataclass(frozen=True, slots=True)
class Examined:
    """What a session found.

    Attributes:
        report: The full report.
        missing: Of the snapshots that could not be verified, those whose openings the Prover withheld.
    """

    report: dict[str, Any]
    missing: Missing


def examine(
    case: Case,
    files: Path,
    registry: Registry,
    cache: Cache,
    credentials: Credentials,
    *,
    limits: Limits,
    cancelled: Callable[[], bool],
    made: Mapping[str, Outcome] | None = None,
) -> Examined:
    """Runs the inspection to its end.

    Args:
        case: What to inspect.
        files: The Prover's, as `inputs` says.
        registry: An empty one, for this session.
        cache: An empty one, on the file system of `files`.
        credentials: Any; nothing is connected to.
        limits: Of each replay.
        cancelled: Whether to end; then `InspectionStoppedError` is raised.
        made: Replays that parts made (`parts`), by their keys; all others are made here.

    Raises:
        WeighbridgeError: The rules or the policy of the case are none.
    """
    begun = begin(case, files, registry, cache, cancelled=cancelled)
    for key, outcome in (made or {}).items():
        begun.units.put("replay", key, fact_codec.outcome_to(outcome))
    inspection = Inspection(
        identifier=case.inspection, plan=case.plan, registry=registry, cache=cache, credentials=credentials,
        manufacturer=case.manufacturer, firmware=case.firmware, progress=begun.progress, witness=begun.witness,
        limits=limits, regime=begun.regime, cancelled=cancelled, uploaded=begun.uploaded,
    )  # fmt: skip
    report = inspection.run()
    withheld = begun.withheld
    unverified = {
        (chip["ueid"], each["index"])
        for chip in report["chips"]
        for each in chip["snapshots"]
        if each["status"] == "unverified"
    }
    return Examined(report, {each: "withheld" for each in withheld & unverified})


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """A session in which all answers are in place.

    Attributes:
        regime: Rules and policy of the case.
        units: What an inspection would have asked for.
        witness: That of the case.
        uploaded: The Prover's transcripts.
        progress: Raises `InspectionStoppedError` once it is time to end.
        withheld: The snapshots that nothing opens.
    """

    regime: Regime
    units: Units
    witness: Witness
    uploaded: Uploaded
    progress: Progress
    withheld: set[tuple[str, int]]


def begin(case: Case, files: Path, registry: Registry, cache: Cache, *, cancelled: Callable[[], bool]) -> Begun:
    """Puts all answers where an inspection finds them; as `examine`."""

    def progress(*_: object) -> None:
        if cancelled():
            raise InspectionStoppedError("the outcome leaves now")

    applied = regime_of(case)
    _register(case, registry)
    units = Units(registry.session, cache, case.inspection)
    witness = _Remembering(registry, case)
    withheld = _place(case, files, units, witness)
    uploaded = Uploaded(inputs.Handed(files, cache), cache)
    return Begun(regime=applied, units=units, witness=witness, uploaded=uploaded, progress=progress, withheld=withheld)


def due(case: Case) -> list[Drawn]:
    """Returns what is known of each drawn chip before any replay."""
    return [Drawn(False, len(snapshots_in(log))) for log in case.logs]


def _register(case: Case, registry: Registry) -> None:
    """Puts the drawn chips into the registry, without addresses, and the inspection."""
    with registry.session.begin() as session:
        for log, said in zip(case.logs, case.contradictions, strict=True):
            chip = {**fact_codec.chip_to(log.chip), "address": "", "prover_address": ""}
            session.add(ChipRow(**chip))
            session.flush()
            session.add_all(
                ContradictionRow(
                    ueid=log.chip.ueid, place=each.index, reason=each.reason, expected=each.expected, found=each.found
                )
                for each in said
            )
    drawn = [log.chip.ueid for log in case.logs]
    registry.start_inspection(case.inspection, seed=case.plan.seed, plan=case.plan.to_json(), chips=drawn)


def _place(case: Case, files: Path, units: Units, witness: Witness) -> set[tuple[str, int]]:
    """Puts what the case and the Prover's files say where the inspection finds it; returns what was withheld."""
    withheld: set[tuple[str, int]] = set()
    population = case.agreed
    units.put("population", "", len(population))
    for log in case.logs:
        name = log.chip.ueid.hex()
        known = _unaddressed(log)
        opened_tokens = inputs.token_openings(files, known)
        units.put(AGREED, name, population.chips.get(known.chip.ueid, b""))
        units.put(hidden_tokens.UNIT, name, hidden_tokens.openings_to(opened_tokens))
        contact = first_contact(known.chip, witness)
        units.put("contact", name, [fact_codec.chip_to(known.chip), contact.tag, contact.since_ms])
        units.put("log", name, fact_codec.log_to(known))
        units.put("witnessed", name, None)
        whole = hidden_tokens.revealed(known, opened_tokens)
        for snapshot in snapshots_in(whole):
            opened = inputs.opening(files, snapshot)
            if whole.unopened:  # what one entry hides may begin another run, or be the work of one
                opened = ChipError(f"entry {min(whole.unopened)} of the chip is not opened; the Prover withholds it")
            place = f"{name}/{snapshot.index}"
            if isinstance(opened, WeighbridgeError):  # what is not opened is not explained either, whatever is named
                withheld.add((name, snapshot.index))
                units.put("explanation", place, fact_codec.explanation_to(ProverError(opened.message)))
            units.put("opening", place, fact_codec.opening_to(opened))
    return withheld


def _unaddressed(log: LogFacts) -> LogFacts:
    return replace(log, chip=replace(log.chip, address="", prover_address=""))
