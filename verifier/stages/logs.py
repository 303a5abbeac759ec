"""Reads and judges the logs of the chips drawn, and collects the snapshots in them."""

from __future__ import annotations

from verifier import checks
from verifier.checking import judge
from verifier.checks import commitment
from verifier.collected import Collected
from verifier.facts import LogFacts, SnapshotFacts, digest
from verifier.reading import acknowledge, read_log
from verifier.stages.setting import Setting
from weighbridge.errors import WeighbridgeError


def run(setting: Setting, collected: Collected) -> None:
    """Reads every drawn chip's log, then compares them all."""
    collected.chips = [setting.registry.chip(ueid) for ueid in setting.registry.sampled(setting.id)]
    for done, chip in enumerate(collected.chips):
        setting.progress("log", done, len(collected.chips), f"reading the log of chip {chip.ueid.hex()}")
        log = read_log(chip, setting.credentials, setting.manufacturer, setting.witness)
        _judge(setting, collected, log)
        collected.logs.append(log)
        collected.snapshots += snapshots_in(log)
    _compare(setting, collected)


def _judge(setting: Setting, collected: Collected, log: LogFacts) -> None:
    """Judges one log, and remembers as witnessed what nothing is against."""
    ueid = log.chip.ueid
    found = judge(checks.LOG, log, setting.given, subject=f"chip {ueid.hex()}")
    collected.report(found.findings)
    if found.unsampled:
        collected.lost.add(ueid)
    if not found.against and not found.failed:
        collected.sound.add(ueid)
        acknowledge(log, setting.credentials, setting.witness)
        if log.entries:
            setting.registry.witness(ueid, size=len(log.entries), last=log.entries[-1].digest)


def _compare(setting: Setting, collected: Collected) -> None:
    """Looks for one device behind two logs; neither log is worth anything then."""
    found = judge(checks.LOGS, collected.logs, setting.given, subject="all logs")
    collected.report(found.findings)
    if found.failed:
        collected.sound.clear()
    named = (ueid for finding in found.against for ueid in finding.evidence.get("chips", ()))
    collected.sound -= {bytes.fromhex(ueid) for ueid in named}


def snapshots_in(log: LogFacts) -> list[SnapshotFacts]:
    """Returns the snapshots of a log, each with the drafts that the chip had logged before it."""
    found: list[SnapshotFacts] = []
    drafts: list[tuple[int, bytes]] = []
    for index, entry in enumerate(log.entries):
        if isinstance(entry.verified, WeighbridgeError):
            continue
        token = entry.verified.token
        if token.kind == "event" and token.body["name"] == commitment.EVENT:
            drafts.append((index, digest(token, "digest")))
        elif token.kind == "snapshot":
            found.append(SnapshotFacts(chip=log.chip, index=index, verified=entry.verified, drafts=list(drafts)))
    return found
