"""Did each run begin where it says: from a seed that was replayed, or from the state of a parent that made it?

A parent is examined as the run itself is: its last steps before the declared state are replayed, and its programs and
ledger are judged. What cannot be examined explains no more than a parent that is not declared at all. And the ledgers
of all runs of a lineage, and of all ranks of a job, are judged together, or each could bring in as much as a budget.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from verifier.checks.replay_outcome import mismatch, within
from verifier.model.lineage import MOST_ANCESTORS, Lineage
from verifier.model.policies import TRANSCRIPTS_AS_DESIGNED, TranscriptPolicy
from weighbridge.core.errors import Finding, Severity, WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript
from weighbridge.program.tape_policy import AS_DESIGNED, TapePolicy
from weighbridge.transcript.parentage import Parent, unexplained

_DESCRIBED = ("structure", "literals")
"""Channels in which a run is charged only what is new given the runs before it."""

_FURTHER = 0.25
"""Of a budget, what each further run adds to it: a budget is four times the most that honest runs chose."""


def check(
    line: Lineage, policy: TranscriptPolicy = TRANSCRIPTS_AS_DESIGNED, programs: TapePolicy = AS_DESIGNED
) -> list[Finding]:
    """Checks the beginning of one run."""
    if isinstance(line.parent, WeighbridgeError):
        return [line.parent.finding(subject=f"transcript {line.id}")]
    return [*_began(line, policy), *_together(line, policy, programs)]


def _began(line: Lineage, policy: TranscriptPolicy) -> list[Finding]:
    if isinstance(line.parent, Parent):
        return _declared(line, line.parent, policy)
    if not line.entered:
        return []
    if line.elsewhere:
        return [_split(line)]
    if policy.origin == "accepted":
        return []
    return [
        Finding(
            id="transcript.origin.undeclared",
            message="the run began from content that no recorded program made, and declares no parent that held it; "
            "ask where it came from",
            expected="an initialisation that was recorded, or Recorder(parent=...)",
            found=f"{line.bytes} bytes in {line.entered.total()} storages",
            subject=f"transcript {line.id}",
            severity=policy.origin,
            evidence={"bytes": line.bytes},
        )
    ]


def _split(line: Lineage) -> Finding:
    parent, size = max(line.elsewhere.items(), key=lambda item: (item[1], item[0]))
    return Finding(
        id="transcript.run.split",
        message="the run goes on from what another run had trained, and does not declare it as its parent; count the "
        "two as one run",
        expected=f"the parent {parent} declared in the draft",
        found=f"{size} of the {line.bytes} bytes that it began from were made by that run",
        subject=f"transcript {line.id}",
        evidence={"transcripts": sorted(line.elsewhere), "bytes": size},
    )


def _declared(line: Lineage, parent: Parent, policy: TranscriptPolicy) -> list[Finding]:
    if not isinstance(line.found, OpenedTranscript):
        why = line.found.message if isinstance(line.found, WeighbridgeError) else "no Prover was asked"
        return [
            Finding(
                id="transcript.parent.missing",
                message=f"the transcript that the run declares as its parent cannot be had ({why}); demand it",
                expected=parent.transcript,
                found="no transcript",
                subject=f"transcript {line.id}",
                severity="warning",
            )
        ]
    steps = line.found.steps
    named = line.found.state(parent.step - 1) if parent.step <= steps else b""
    if named != parent.state:
        return [
            _mismatch(
                line, parent, f"state {parent.state.hex()}", f"state {named.hex()}" if named else f"{steps} steps only"
            )
        ]
    found = _led_to(line, parent, policy)
    if line.cut:
        found.append(_unverified(line, policy, f"it has more ancestors than {MOST_ANCESTORS}", "too many ancestors"))
    held, made = line.held, line.made
    if isinstance(held, WeighbridgeError):
        return found or [_unverified(line, policy, held.message, held.reason)]
    if isinstance(made, WeighbridgeError):
        return found or [_unverified(line, policy, made.message, made.reason)]
    if held is None or made is None:
        return found
    foreign = unexplained(line.entered, held)
    given = unexplained(Counter({leaf: n for leaf, n in line.trained.items() if leaf in held}), made)
    if foreign or given:
        found.append(
            _mismatch(
                line,
                parent,
                f"{line.bytes} bytes of that state, those of weights made there by training",
                " and ".join(
                    f"{size} bytes that it {what}"
                    for size, what in ((foreign, "does not hold"), (given, "was only given, or sums up"))
                    if size
                ),
            )
        )
    return found


def _led_to(line: Lineage, parent: Parent, policy: TranscriptPolicy) -> list[Finding]:
    """Passes on what the replay of the parent's last steps found; its data are judged where it was fetched."""
    result = line.replayed
    if result is None:
        return [_unverified(line, policy, "it is one rank of a job, which is not replayed alone", "one rank", "info")]
    if isinstance(result, WeighbridgeError):
        return [_unverified(line, policy, result.message, result.reason)]
    subject = f"transcript {parent.transcript}"
    own = [replace(f, subject=within(subject, f.subject)) for f in result.findings if not f.id.startswith("data.")]
    if result.verdict == "mismatch" and not any(f.severity == "violation" for f in own):
        own.append(mismatch(subject, result.first_difference))
    if result.verdict == "inconclusive":
        own.append(_unverified(line, policy, "its replay was inconclusive", "inconclusive"))
    return own


def _together(line: Lineage, policy: TranscriptPolicy, programs: TapePolicy) -> list[Finding]:
    """Judges what a run and all that it goes on from, or is a job with, chose together."""
    if isinstance(line.chosen, WeighbridgeError):
        return [_unverified(line, policy, line.chosen.message, line.chosen.reason)]
    if line.runs < 2:
        return []
    findings = []
    for channel, bits in line.chosen.items():
        budget = programs.budgets.get(channel)
        if budget is None:
            continue
        if channel not in _DESCRIBED:
            budget *= 1 + _FURTHER * (line.runs - 1)
        if bits > budget:
            findings.append(
                Finding(
                    id="transcript.chosen_bits",
                    message=f"the run, its ancestors and the other ranks of its job chose {bits:,.0f} bits of "
                    f"{channel} together; they may be weights made elsewhere, brought in run by run: read the programs "
                    "(weighbridge tape show)",
                    expected=f"at most {budget:,.0f} bits of {channel} in {line.runs} runs",
                    found=f"{bits:,.0f} bits",
                    subject=f"the lineage of transcript {line.id}",
                    severity=programs.chosen,
                    evidence={"channel": channel, "bits": bits, "budget": budget, "runs": line.runs},
                )
            )
    return findings


def _unverified(
    line: Lineage, policy: TranscriptPolicy, why: str, reason: str, severity: Severity | None = None
) -> Finding:
    """A parent that cannot be examined explains as little as one that is not declared."""
    if severity is None:
        severity = "info" if policy.origin == "accepted" else policy.origin
    named = f"step {line.parent.step} of {line.parent.transcript}" if isinstance(line.parent, Parent) else "the parent"
    return Finding(
        id="transcript.parent.unverified",
        message=f"the state that the run declares as its beginning could not be verified: {why}",
        expected=f"the state before {named}, replayed",
        found=reason,
        subject=f"transcript {line.id}",
        severity=severity,
    )


def _mismatch(line: Lineage, parent: Parent, expected: str, found: str) -> Finding:
    return Finding(
        id="transcript.parent.mismatch",
        message="the run did not begin from the state that it declares as its parent",
        expected=expected,
        found=found,
        subject=f"transcript {line.id}",
        evidence={"parent": parent.transcript, "step": parent.step},
    )
