"""An inspection of chips drawn at random from a registry, in this process."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from verifier.inspection import Inspection
from verifier.model.facts import Plan
from verifier.model.reference_values import FirmwarePolicy
from verifier.model.seeded_draw import draw
from verifier.registry import Registry
from verifier.store.cache import Cache
from weighbridge.attest.identity import CertificateAuthority, Credentials


def inspect_drawn(
    registry: Registry, samples: int, *, cache: Path, image: Path, verifier: Credentials,
    manufacturer: CertificateAuthority,
) -> dict[str, Any]:  # fmt: skip
    """Draws chips, inspects them and returns the report.

    Args:
        registry: With the chips.
        samples: How many to draw.
        cache: Directory of fetched transcripts; made if missing.
        image: The firmware that chips may run.
        verifier: Whoever inspects.
        manufacturer: Of the chips.
    """
    seed = secrets.token_bytes(32)
    plan = Plan(
        samples=samples, seed=seed, flops_threshold=2.0, chip_flops_per_day=1.0, period_days=2.0,
        snapshot_rate_per_day=1.0,
    )  # fmt: skip
    drawn = draw([chip.ueid for chip in registry.chips()], samples, seed)
    registry.start_inspection("drawn", seed=seed, plan=plan.to_json(), chips=drawn)
    return Inspection(
        identifier="drawn",
        plan=plan,
        registry=registry,
        cache=Cache(cache),
        credentials=verifier,
        manufacturer=manufacturer.certificate,
        firmware=FirmwarePolicy.of([image], manufacturer.certificate),
        progress=lambda *_: None,
    ).run()
