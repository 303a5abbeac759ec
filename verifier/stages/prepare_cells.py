"""Prepares cells, where the plan wants ranks of jobs to be replayed alone; see `verifier.contact.cell_material`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from verifier.checks import provenance
from verifier.contact.cell_material import Cells
from verifier.contact.clients import ProverClient
from verifier.model import fact_codec
from verifier.model.collected import Collected
from verifier.model.facts import Cell, Explanation, Shard, SnapshotFacts
from verifier.stages.setting import Setting
from weighbridge.attest.tokens import shown
from weighbridge.core.errors import WeighbridgeError


def run(setting: Setting, collected: Collected) -> None:
    """Fetches what the replay of each snapshot's rank alone takes, and checks chunks of it."""
    if setting.plan.sharded != "cells":
        return
    preparing = Cells(setting.plan.chunks, limits=setting.limits)
    for done, snapshot in enumerate(collected.snapshots):
        claim, facts, shard = snapshot.explanation, snapshot.transcript, snapshot.shard
        if not isinstance(claim, Explanation) or facts is None or shard is None:
            continue
        if isinstance(facts.opened, WeighbridgeError) or not 0 <= claim.step <= facts.opened.steps:
            continue
        if provenance.is_tail(snapshot) or provenance.lacks_ranks(snapshot):
            continue
        message = f"asking for the collectives of rank {shard.coordinate.rank} up to step {claim.step}"
        setting.progress("cells", done, len(collected.snapshots), message)
        if not shown(snapshot.verified.token)["safepoint"]:
            claim = replace(claim, op=claim.op + 1)  # the replay may have to go on to after the operation in progress
        # Chunks that are drawn anew would show a Prover which ones it need not fear; so they are drawn once.
        snapshot.cell = setting.units.once(
            "cell",
            f"{snapshot.chip.ueid.hex()}/{snapshot.index}",
            partial(_prepare, setting, collected, preparing, snapshot, shard, claim),
            to=fact_codec.cell_to,
            of=fact_codec.cell_of,
        )
        if isinstance(snapshot.cell, WeighbridgeError):
            collected.remember_silence(snapshot.chip.prover_address, snapshot.cell)


def _prepare(
    setting: Setting, collected: Collected, preparing: Cells, snapshot: SnapshotFacts, shard: Shard, claim: Explanation
) -> Cell | WeighbridgeError:
    address = snapshot.chip.prover_address
    if address in collected.silent:
        return collected.silent[address]
    return preparing.prepare(shard, claim, partial(ProverClient, address, setting.credentials))
