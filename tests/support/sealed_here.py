"""A sealed session in this process, which confines nothing: the Prover's files, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.station import LIMITS, Station

from firmware_sim.opening import opened
from prover.keeping.sealed_inputs import gather
from verifier.contact.witness import Witness
from verifier.model.reference_values import FirmwarePolicy
from verifier.model.replay_task import Outcome
from verifier.registry import Registry
from verifier.sealed.case import Case, seed_of
from verifier.sealed.making import Inspectorate
from verifier.sealed.session import Examined, examine
from verifier.stages.read_logs import snapshots_in
from verifier.store.cache import Cache
from weighbridge.attest.outcome_agreement import Agreement
from weighbridge.execution.worker_process import Limits


def inspectorate(station: Station, cache: str) -> Inspectorate:
    root = station.manufacturer.certificate
    return Inspectorate(
        registry=station.registry, cache=Cache(station.root / cache), credentials=station.verifier,
        manufacturer=root, firmware=FirmwarePolicy.of([station.root / "firmware.img"], root, limits=LIMITS),
        witness=Witness(station.registry, root),
    )  # fmt: skip


def given(station: Station, case: Case, out: Path, *without: tuple[str, int]) -> Path:
    """The Prover's files; without the openings of some snapshots, by chip and place among the chip's snapshots."""
    openings = {}
    names = {ueid: name for name, ueid in station.ueids.items()}
    for log in case.logs:
        for number, each in enumerate(snapshots_in(log)):
            name = names[log.chip.ueid]
            if (name, number) not in without:
                openings[log.chip.ueid, each.index] = opened(station.chips[name].socket, each.index)
    gather(out, station.runs, openings)
    return out


def examined(station: Station, case: Case, files: Path, made: Mapping[str, Outcome] | None = None) -> Examined:
    registry = Registry(files.parent / "registry")
    try:
        return examine(
            case, files, registry, Cache(files.parent / "cache"), station.verifier, limits=Limits(seconds=300),
            cancelled=lambda: False, made=made,
        )  # fmt: skip
    finally:
        registry.close()


def statuses(report: dict[str, Any]) -> dict[str, list[str]]:
    return {chip["site"]: [each["status"] for each in chip["snapshots"]] for chip in report["chips"]}


def said(report: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((each["id"], each["subject"]) for each in report["findings"])


def drawn_by(case: Case, agreement: Agreement, beacon: bytes = b"") -> Case:
    """The same logs in the order that another agreement, or a beacon, draws them in."""
    seed = seed_of(agreement, beacon)
    logs = {log.chip.ueid: (log, said) for log, said in zip(case.logs, case.contradictions, strict=True)}
    both = [logs[ueid] for ueid in case.agreed.draw(len(logs), seed)]
    return replace(
        case, plan=replace(case.plan, seed=seed), logs=tuple(log for log, _ in both),
        contradictions=tuple(said for _, said in both), beacon=beacon,
    )  # fmt: skip
