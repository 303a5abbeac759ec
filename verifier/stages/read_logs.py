"""Reads and judges the logs of the chips drawn, and collects the snapshots in them.

A log is durable before it is judged, and judged before the witness takes it in: so an inspection that goes on after a
kill sees the chip as it was at the first contact, and not as something that its own first attempt had witnessed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice

from verifier import checks
from verifier.checks import commitment
from verifier.contact.log_reading import Contact, acknowledge, first_contact, read_log
from verifier.model import fact_codec, hidden_tokens
from verifier.model.collected import Collected
from verifier.model.facts import CustodyFacts, LogFacts, SnapshotFacts, digest
from verifier.model.sessions import since_attached
from verifier.registry import Chip
from verifier.stages.setting import Setting
from weighbridge.attest.tokens import HiddenBody, Token, event_name, is_confidential
from weighbridge.core.errors import WeighbridgeError

AGREED = "agreed"
"""Kind of the units with the digests of the certificates that both parties of a sealed inspection agreed on."""
READ_AHEAD = 8
"""Chips that are read at a time. A chip that is dead or far away costs waiting, and the others need not wait for it."""


def run(setting: Setting, collected: Collected) -> None:
    """Reads every drawn chip's log, then compares them all."""
    drawn = setting.registry.sampled(setting.id)
    with closing(_logs(setting, drawn)) as logs:
        for read in logs:
            log = _opened(setting, read)
            chip, ueid = log.chip, log.chip.ueid
            custody = CustodyFacts(chip=chip, contradictions=setting.registry.contradictions(ueid))
            subject = f"chip {ueid.hex()}"
            collected.report(setting.judged("custody", subject, checks.CUSTODY, custody, subject=subject).findings)
            collected.chips.append(chip)
            collected.logs.append(log)
            collected.snapshots += snapshots_in(log)
            _judge(setting, collected, log)
    _compare(setting, collected)


def _logs(setting: Setting, drawn: Sequence[bytes]) -> Generator[LogFacts, None, None]:
    """Yields the logs of chips, in order; while one is judged the next are read, as most of that is waiting."""
    coming, reading = iter(drawn), deque[Callable[[], LogFacts]]()
    with ThreadPoolExecutor(max_workers=READ_AHEAD, thread_name_prefix="logs") as pool:
        try:
            for done, ueid in enumerate(drawn):
                setting.progress("log", done, len(drawn), f"reading the log of chip {ueid.hex()}")
                reading.extend(_reading(setting, each, pool) for each in islice(coming, READ_AHEAD - len(reading)))
                yield setting.units.once(
                    "log",
                    ueid.hex(),
                    reading.popleft(),
                    to=fact_codec.log_to,
                    of=lambda raw: fact_codec.log_of(raw, setting.manufacturer),
                )
        finally:  # what is being read is waited for; it is read again when the inspection goes on
            pool.shutdown(cancel_futures=True)


def _opened(setting: Setting, log: LogFacts) -> LogFacts:
    """Adds what a sealed session alone has: the certificate that was agreed on, and what the chip's tokens hide."""
    log = replace(log, agreed=setting.units.get(AGREED, log.chip.ueid.hex(), bytes) or b"")
    openings = setting.units.get(hidden_tokens.UNIT, log.chip.ueid.hex(), hidden_tokens.openings_of)
    return log if openings is None else hidden_tokens.revealed(log, openings)


def _reading(setting: Setting, ueid: bytes, pool: ThreadPoolExecutor) -> Callable[[], LogFacts]:
    """Begins to read a log, unless that was done already, and returns what waits for it."""
    chip, contact = setting.units.once(
        "contact", ueid.hex(), partial(_begin, setting, ueid), to=_contact_to, of=_contact_of
    )
    # What an earlier process stored is not asked for again, unless it cannot be read.
    read = partial(read_log, chip, setting.credentials, setting.manufacturer, setting.witness, contact)
    return read if ("log", ueid.hex()) in setting.units else pool.submit(read).result


def _begin(setting: Setting, ueid: bytes) -> tuple[Chip, Contact]:
    """What is known of a chip before it is asked for anything."""
    chip = setting.registry.chip(ueid)
    return chip, first_contact(chip, setting.witness)


def _contact_to(known: tuple[Chip, Contact]) -> list[object]:
    chip, contact = known
    return [fact_codec.chip_to(chip), contact.tag, contact.since_ms]


def _contact_of(raw: list[bytes | int]) -> tuple[Chip, Contact]:
    chip, tag, since_ms = raw
    assert isinstance(tag, bytes)
    assert isinstance(since_ms, int)
    return fact_codec.chip_of(chip), Contact(tag, since_ms)


def _judge(setting: Setting, collected: Collected, log: LogFacts) -> None:
    """Judges one log, and remembers as witnessed what nothing is against."""
    ueid = log.chip.ueid
    found = setting.judged("log", ueid.hex(), checks.LOG, log, subject=f"chip {ueid.hex()}")
    collected.report(found.findings)
    if found.not_sampled:
        collected.lost.add(ueid)
    if not found.counted and not found.failed:
        collected.sound.add(ueid)
        setting.units.once(
            "witnessed", ueid.hex(), partial(_witness, setting, log), to=lambda _: None, of=lambda _: None
        )


def _witness(setting: Setting, log: LogFacts) -> None:
    """Takes a log in and tells the chip; doing it twice does no harm."""
    acknowledge(log, setting.credentials, setting.witness)
    if log.entries:
        setting.registry.witness(log.chip.ueid, size=len(log.entries), last=log.entries[-1].digest)


def _compare(setting: Setting, collected: Collected) -> None:
    """Looks for one device behind two logs; neither log is worth anything then."""
    found = setting.judged("logs", "", checks.LOGS, collected.logs, subject="all logs")
    collected.report(found.findings)
    if found.failed:
        collected.sound.clear()
    named = (ueid for finding in found.counted for ueid in finding.evidence.get("chips", ()))
    collected.sound -= {bytes.fromhex(ueid) for ueid in named}


def snapshots_in(log: LogFacts) -> list[SnapshotFacts]:
    """Returns the snapshots of a log, each with the drafts that the chip had logged before it."""
    found: list[SnapshotFacts] = []
    drafts: list[tuple[int, bytes]] = []
    tokens: list[Token] = []
    confidential: set[int] = set()
    for index, entry in enumerate(log.entries):
        if isinstance(entry.verified, WeighbridgeError):
            continue
        token = entry.verified.token
        tokens.append(token)
        if token.kind == "boot" and is_confidential(token):
            confidential.add(token.boot_count)
        elif event_name(token) == commitment.EVENT:
            drafts.append((index, digest(token, "digest")))
        elif token.kind == "snapshot":
            work = since_attached(tokens)
            found.append(
                SnapshotFacts(
                    chip=log.chip,
                    index=index,
                    verified=entry.verified,
                    drafts=list(drafts),
                    work=work,
                    confidential=token.boot_count in confidential or isinstance(token.body, HiddenBody),
                )
            )
    return found
