"""Attacks on a Verifier's process by parties with certificates of their own, while others call and report."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from redteam.row import Outcome, comes_to_nothing
from redteam.workshop import Workshop
from support.untrained_transcripts import write_transcript

from benchmarks.soak_flood import Site, soak
from prover.keeping.upload import upload
from verifier.contact.uploads import WHOLE
from weighbridge.attest.identity import Credentials
from weighbridge.core.errors import QuotaError, WeighbridgeError

SECONDS = 5.0
PATIENCE_S = 30.0
"""How long an honest party tries before it counts as shut out."""
FILES = 60
"""What each certificate may keep at the Verifier that is flooded with uploads."""


def shut_out(attacks: Mapping[str, Collection[str]], shop: Workshop, seed: int) -> Outcome:
    """Attacks while an operator calls and an honest chip reports snapshot after snapshot."""
    for seconds in (
        SECONDS,
        4 * SECONDS,
        16 * SECONDS,
    ):  # attackers have what processors are left over, which may be none
        measured = soak(shop.place(), seconds, attacks)
        if all(measured["tried"].values()):
            break
    else:
        raise AssertionError(f"an attacker had no time to try anything: {measured['tried']}")
    stolen = sum(tried.get("nonce of victim OK", 0) for tried in measured["tried"].values())
    calm, flood = measured["calls"]["calm"], measured["calls"]["flood"]
    if any(each["failed"] for each in calm.values()):
        raise AssertionError(calm)
    failed = {name: sum(each["failed"].values()) for name, each in flood.items()}
    unserved = max(count / (count + flood[name]["calls"]) for name, count in failed.items())
    return Outcome(findings=frozenset(), gain=max(unserved, float(stolen > 0)), cost=0.0)


def uploads(shop: Workshop, seed: int) -> Outcome:
    """A Prover uploads until it may keep no more, then goes on without end; another hands in its transcripts."""
    place, mine, theirs = shop.place(), shop.place(), shop.place()
    with ExitStack() as stack:
        site = Site(place, stack, "--upload-files", str(FILES))
        hostile = Credentials.load(place / "hostile-prover")
        honest = site.authority.issue_role("prover", "honest")
        whole: list[str] = []
        while len(whole) < FILES:
            run = mine / str(len(whole))
            write_transcript(run, name=f"{seed}.{len(whole)}")
            try:
                whole.append(upload(run, site.address, hostile, patience_s=PATIENCE_S).id)
            except QuotaError:
                break
        flood = site.attacker("prover", SECONDS, ("fill_disk", "ask_uploads"))
        served = failed = 0
        while flood.poll() is None:
            run = theirs / str(served + failed)
            write_transcript(run, name=f"{seed}, honest, {served + failed}")
            try:
                upload(run, site.address, honest, patience_s=PATIENCE_S)
                served += 1
            except QuotaError:
                break  # of its own
            except WeighbridgeError:
                failed += 1
        if not json.loads(flood.communicate()[0]) or not served + failed:
            raise AssertionError("the attacker had no time to try anything, or no other Prover had")
        kept = _files(*(place / "cache" / each for each in whole), place / "cache" / "uploads")
    excess = max(0, kept - FILES) / FILES
    return Outcome(findings=frozenset(), gain=max(excess, failed / (served + failed)), cost=0.0)


def _files(*directories: Path) -> int:
    """The number of files in directories, without the Verifier's notes on whole uploads."""
    found = [each for directory in directories for each in directory.rglob("*") if each.is_file()]
    return sum(not each.name.endswith(WHOLE) for each in found)


BY_CALLS = "attacks on services"
SHUT_OUT = "shut others out of a Verifier"
UNSERVED = "the largest share of one kind of an operator's or an honest chip's calls that was not answered"
HELD = ("watch_health", "reflect", "silent_calls", "cancel_at_once", "connect_often")

ROWS = (
    *(
        comes_to_nothing(
            name=name,
            source=BY_CALLS,
            wants=wants,
            gains=gains,
            attack=partial(shut_out, attacks),
            note=note,
        )
        for name, wants, gains, attacks, note in (
            (
                "nonces of another party's chip are asked for, and reports made in its name",
                "keep a rival's chip from its witness, so that it stops training",
                f"1 if a nonce was had; else {UNSERVED}",
                {"chip": ("steal_nonces", "use_up_nonces"), "prover": ("steal_nonces",)},
                "A chip's certificate names the chips that it speaks for, and only a chip's signature uses a nonce up.",
            ),
            (
                "streams, health watches and calls without an end, by one certificate",
                SHUT_OUT,
                UNSERVED,
                {"chip": HELD},
                "Each role has workers of its own, and each certificate a share of them; health is apart, and "
                "cannot be watched.",
            ),
            (
                "reports without an end, of its own chip and of others, by one certificate",
                SHUT_OUT,
                UNSERVED,
                {"chip": ("fill_memory", "trickle", "faulty_requests", "own_nonces")},
                "Head and history are verified before entries are read; a certificate has a quarter of the memory.",
            ),
        )
    ),
    comes_to_nothing(
        name="uploads without an end, by one certificate",
        source=BY_CALLS,
        wants="fill a Verifier's disk, and keep other Provers from handing in transcripts",
        gains="the share of the quota that was kept beyond it, or of another Prover's uploads that failed",
        attack=uploads,
        note="A manifest comes first and is paid for by its certificate's quota; what does not verify is removed.",
    ),
)
