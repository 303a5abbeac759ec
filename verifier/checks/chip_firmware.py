"""Did trusted firmware sign this log, and was it never replaced by older firmware?

Which firmware signed is in the certificate that comes with every token (DICE TcbInfo): the boot ROM issued it, and the
key under it follows from the same measurement, so firmware cannot say that it is another.
"""

from __future__ import annotations

from collections.abc import Iterator

from verifier.model.facts import LogFacts
from verifier.model.reference_values import FirmwarePolicy
from weighbridge.attest.tcb import TcbInfo
from weighbridge.core.errors import Finding, WeighbridgeError


def check(log: LogFacts, policy: FirmwarePolicy) -> list[Finding]:
    """Compares the firmware behind every verified token with the reference values; each firmware is judged once.

    Entries that an earlier inspection witnessed were judged by the minimal SVN of then, and are not by today's.
    """
    findings = []
    known: set[TcbInfo] = set()
    highest, old, back = -1, False, False
    for where, fresh, tcb in _firmware(log):
        subject = f"chip {log.chip.ueid.hex()} {where}"
        if tcb not in known:
            known.add(tcb)
            findings += _judge(tcb, policy, subject)
        if tcb.mode == "debug":
            continue  # Its SVN says nothing: no fuse was looked at.
        if fresh and tcb.svn < policy.minimal_svn and not old:
            old = True
            findings.append(
                Finding(
                    id="chip.firmware.old",
                    message="the chip ran firmware that is too old to be trusted; have it updated",
                    expected=f"security version number {policy.minimal_svn} or higher",
                    found=_words(tcb),
                    subject=subject,
                )
            )
        if tcb.svn < highest and not back:
            back = True
            findings.append(
                Finding(
                    id="chip.firmware.rolled_back",
                    message="the chip started older firmware than before, which its fuses should prevent",
                    expected=f"security version number {highest} or higher",
                    found=_words(tcb),
                    subject=subject,
                )
            )
        highest = max(highest, tcb.svn)
    return findings


def _firmware(log: LogFacts) -> Iterator[tuple[str, bool, TcbInfo]]:
    """Yields (where, whether it is new to the Verifier, firmware) of everything that verified, oldest first."""
    for index, entry in enumerate(log.entries):
        if not isinstance(entry.verified, WeighbridgeError):
            yield f"entry {index}", index >= log.chip.witnessed_size, entry.verified.identity.tcb
    if not isinstance(log.head, WeighbridgeError):
        yield "head", True, log.head.identity.tcb


def _judge(tcb: TcbInfo, policy: FirmwarePolicy, subject: str) -> list[Finding]:
    findings = []
    if tcb.mode == "debug":
        findings.append(
            Finding(
                id="chip.firmware.debug",
                message="the chip was unlocked for debugging and starts any firmware; inspect it on site",
                expected="a boot ROM that checks what it starts",
                found=_words(tcb),
                subject=subject,
            )
        )
    reference = policy.allowed.get(tcb.measurement)
    if reference is None:
        findings.append(
            Finding(
                id="chip.firmware.unknown",
                message="the chip ran firmware that is none of the reference values; ask what it was",
                expected=f"one of {len(policy.allowed)} reference values",
                found=_words(tcb),
                subject=subject,
                evidence={"measurement": tcb.measurement.hex()},
            )
        )
    elif (tcb.version, tcb.svn, tcb.model) != (reference.version, reference.svn, reference.hwmodel):
        findings.append(
            Finding(
                id="chip.firmware.mismatch",
                message="the chip's boot ROM and the manufacturer say different things about the same firmware",
                expected=f"version {reference.version}, SVN {reference.svn}, model {reference.hwmodel}",
                found=f"version {tcb.version}, SVN {tcb.svn}, model {tcb.model}",
                subject=subject,
                evidence={"measurement": tcb.measurement.hex()},
            )
        )
    return findings


def _words(tcb: TcbInfo) -> str:
    return f"{tcb.mode} boot of version {tcb.version}, SVN {tcb.svn}, {tcb.measurement.hex()[:16]}"
