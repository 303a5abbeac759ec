"""Is the log whole, in order, fresh, and the same log that was witnessed before?"""

from __future__ import annotations

from dataclasses import replace

from verifier.model.facts import Entry, LogFacts, digest, number
from weighbridge.attest.tokens import GENESIS, Token
from weighbridge.core import merkle
from weighbridge.core.errors import Finding, ProofError, WeighbridgeError


def check(log: LogFacts) -> list[Finding]:
    """Checks head, signatures, hash chain, counters, clocks, the tree, and consistency with what was witnessed."""
    findings = [*_head(log), *_entries(log), *_order(log)]
    findings += _witnessed(log) or _history(log)
    return findings or _tree(log)


def _chip(log: LogFacts) -> str:
    return f"chip {log.chip.ueid.hex()}"


def _head(log: LogFacts) -> list[Finding]:
    if isinstance(log.head, WeighbridgeError):
        found = log.head.finding(subject=_chip(log))
        # The registered holder of the chip has to show it.
        return [replace(found, evidence={**found.evidence, "holder": log.chip.owner})]
    token = log.head.token
    if token.kind != "head" or token.nonce != log.nonce:
        return [
            Finding(
                id="chip.nonce.mismatch",
                message="the log head is not signed over this inspection's nonce, so it may be an old one played back",
                expected=f"head over {log.nonce.hex()}",
                found=f"{token.kind} over {token.nonce.hex() if token.nonce else 'no nonce'}",
                subject=_chip(log),
            )
        ]
    if log.error is not None:
        return [log.error.finding(subject=_chip(log))]
    if len(log.entries) != number(token, "size"):
        return [
            Finding(
                id="chip.log.incomplete",
                message="the chip did not show as many entries as it signed for",
                expected=f"{number(token, 'size')} entries",
                found=f"{len(log.entries)} entries",
                subject=_chip(log),
            )
        ]
    last = log.entries[-1] if log.entries else None
    if last is not None and not isinstance(last.verified, WeighbridgeError) and last.digest != digest(token, "last"):
        return [
            Finding(
                id="chip.log.head",
                message="the newest entry shown is not the one that the chip signed for",
                expected=digest(token, "last").hex(),
                found=last.digest.hex(),
                subject=_chip(log),
            )
        ]
    return []


def _entries(log: LogFacts) -> list[Finding]:
    """One finding for each entry that does not verify or does not continue the one before, and one for the counter."""
    findings = []
    before: Entry | None = None
    counted = True
    for index, entry in enumerate(log.entries):
        subject = f"{_chip(log)} entry {index}"
        if isinstance(entry.verified, WeighbridgeError):
            findings.append(entry.verified.finding(subject=subject))
        else:
            token = entry.verified.token
            if token.index != index or token.kind == "head":
                if not counted:
                    continue  # every entry after a missing one is out of place
                counted = False
                findings.append(
                    Finding(
                        id="chip.log.counter",
                        message="the monotonic counter does not follow the log: entries were dropped, doubled or moved",
                        expected=f"entry with counter {index}",
                        found=f"{token.kind} with counter {token.index}",
                        subject=subject,
                    )
                )
            elif before is None or not isinstance(before.verified, WeighbridgeError):
                # After an entry that does not verify nothing new could be learnt here.
                expected = before.digest if before is not None else GENESIS
                if token.previous != expected:
                    findings.append(
                        Finding(
                            id="chip.log.chain",
                            message="the entry does not continue the one before it: the log was altered or forked",
                            expected=expected.hex(),
                            found=token.previous.hex(),
                            subject=subject,
                        )
                    )
        before = entry
    return findings


def _order(log: LogFacts) -> list[Finding]:
    """Boots and clocks may only move forwards."""
    tokens = [entry.verified.token for entry in log.entries if not isinstance(entry.verified, WeighbridgeError)]
    findings = []
    for earlier, later in zip([None, *tokens], tokens, strict=False):
        problem = _boot_problem(earlier, later)
        if problem:
            findings.append(
                Finding(
                    id="chip.log.boot",
                    message=f"{problem}; the chip's memory of its own past was tampered with",
                    expected="boot counter and boot seed change together, in a boot entry, forwards only",
                    found=f"boot {later.boot_count} after {earlier.boot_count if earlier else 'nothing'}",
                    subject=f"{_chip(log)} entry {later.index}",
                )
            )
        elif earlier is not None and _clock_ran_back(earlier, later):
            findings.append(
                Finding(
                    id="chip.log.clock",
                    message="the chip's clock ran backwards between two entries",
                    expected=f"not before {earlier.time_ms} ms (uptime {earlier.uptime_ms} ms)",
                    found=f"{later.time_ms} ms (uptime {later.uptime_ms} ms)",
                    subject=f"{_chip(log)} entry {later.index}",
                )
            )
    return findings


def _boot_problem(earlier: Token | None, later: Token) -> str:
    if earlier is None:
        return "" if later.kind == "boot" or later.index != 0 else "the log does not begin with a boot"
    if later.index != earlier.index + 1:
        return ""  # an entry between them is unreadable and already reported
    if later.kind == "boot":
        fresh = later.boot_count > earlier.boot_count and later.boot_seed != earlier.boot_seed
        return "" if fresh else "a boot entry does not count up or repeats its seed"
    same = later.boot_count == earlier.boot_count and later.boot_seed == earlier.boot_seed
    return "" if same else "the boot changed without a boot entry"


def _clock_ran_back(earlier: Token, later: Token) -> bool:
    if later.boot_count == earlier.boot_count and later.uptime_ms < earlier.uptime_ms:
        return True
    return later.time_ms < earlier.time_ms


def _witnessed(log: LogFacts) -> list[Finding]:
    size, last = log.chip.witnessed_size, log.chip.witnessed_last
    if size == 0 or isinstance(log.head, WeighbridgeError) or log.error is not None:
        return []
    if len(log.entries) < size:
        return [
            Finding(
                id="chip.log.rolled_back",
                message="the log is shorter than an earlier inspection saw it: entries were removed",
                expected=f"at least {size} entries",
                found=f"{len(log.entries)} entries",
                subject=_chip(log),
            )
        ]
    entry = log.entries[size - 1]
    if entry.digest != last and not isinstance(entry.verified, WeighbridgeError):
        return [
            Finding(
                id="chip.log.changed",
                message="the log is not a continuation of what an earlier inspection saw",
                expected=f"entry {size - 1} = {last.hex()}",
                found=entry.digest.hex(),
                subject=_chip(log),
            )
        ]
    return []


def _history(log: LogFacts) -> list[Finding]:
    """What the log's checkpoints say: those of the past, the counter, and the one that came with the head."""
    if isinstance(log.head, WeighbridgeError) or log.head.token.kind != "head":
        return []
    evidence = {"held": log.held.checkpoint.decode(), "shown": log.report.note.encode().decode() if log.report else ""}
    size, counter = number(log.head.token, "size"), number(log.head.token, "counter")
    if size < max(counter, log.held.size):
        return [
            Finding(
                id="chip.log.rolled_back",
                message="the chip has fewer entries than it acknowledged: an older image of its memory was restored",
                expected=f"at least {max(counter, log.held.size)} entries",
                found=f"{size} entries",
                subject=_chip(log),
                evidence=evidence,
            )
        ]
    if isinstance(log.history, ProofError):
        return [
            Finding(
                id="chip.log.changed",
                message="the log is not a continuation of the one that the witness holds: the chip shows two histories",
                expected=f"a tree that begins with the {log.held.size} entries under {log.held.root.hex()}",
                found=log.history.message,
                subject=_chip(log),
                evidence=evidence,
            )
        ]
    if log.history is None or log.history.reason == "chip.identity.mismatch":  # chip_identity says that
        return []
    return [log.history.finding(subject=_chip(log))]


def _tree(log: LogFacts) -> list[Finding]:
    """Entries of which each is good may still not be all that were signed for."""
    assert not isinstance(log.head, WeighbridgeError)
    found, signed = merkle.root([merkle.leaf_hash(entry.data) for entry in log.entries]), digest(log.head.token, "root")
    if found == signed:
        return []
    return [
        Finding(
            id="chip.log.head",
            message="the entries shown are not those under the root that the chip signed",
            expected=signed.hex(),
            found=found.hex(),
            subject=_chip(log),
        )
    ]
