"""A machine that is another, or has less, than a sealed worker needs starts none."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sealed_disputes import COURT
from support.sealed_orders import sealed_order

from weighbridge.attest.sealed_list import SealedFile, SealedList
from weighbridge.attest.sealed_order import SealedWorkerError
from weighbridge.execution.sealed import image as images
from weighbridge.execution.sealed import processors, requirements

_LISTS = [SealedList(bytes([party]) * 32, (SealedFile("claim", 1, bytes(32)),)) for party in (0, 1)]


@pytest.mark.finding("sealed.isolation")
def test_a_machine_that_swaps_runs_no_sealed_worker(tmp_path: Path) -> None:
    table = tmp_path / "swaps"
    table.write_text("Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")
    requirements.no_swap(table)
    table.write_text(table.read_text() + "/dev/zram0 partition 100 0 100\n")
    with pytest.raises(SealedWorkerError) as caught:
        requirements.no_swap(table)
    assert (caught.value.reason, "no-swap" in caught.value.message) == ("sealed.isolation", True)


@pytest.mark.parametrize("offered", [None, "memory", "inputs", "free"])
def test_a_machine_that_has_less_than_the_parties_agreed_on_starts_no_worker(tmp_path: Path, offered: str) -> None:
    """Else a run that both parties allowed would die for want of it, and its party forfeit."""
    order = COURT.admission(*(COURT.seat(party, files) for party, files in enumerate(_LISTS))).order()
    memory, inputs, table = COURT.terms.memory, 2 * COURT.terms.inputs, tmp_path / "meminfo"
    free = (2 * memory + inputs >> 10) - (offered == "free")
    table.write_text(f"MemTotal: 1 kB\nMemAvailable: {free} kB\n")
    there = memory - (offered == "memory"), inputs - (offered == "inputs")
    requirements.offered(sealed_order(), *there, tmp_path / "none")  # no dispute, nothing agreed
    if offered is None:
        requirements.offered(order, *there, table)
        return
    with pytest.raises(SealedWorkerError, match="agree on other terms"):
        requirements.offered(order, *there, table)


@pytest.mark.finding("sealed.image")
@pytest.mark.parametrize("kind", [b"x86-64-v9", b"\xff\xfe", b"", b"x" * 4096, None])
def test_loops_for_another_kind_of_processor_are_not_started(tmp_path: Path, kind: bytes | None) -> None:
    """They would stop at their first instruction that this processor lacks, or be compiled anew by each worker."""
    place = tmp_path / images.FILES / images.PROCESSOR
    place.parent.mkdir(parents=True)
    place.write_text(processors.kind_here())
    requirements.processor(tmp_path)
    place.unlink()
    if kind is not None:
        place.write_bytes(kind)
    with pytest.raises(SealedWorkerError) as caught:
        requirements.processor(tmp_path)
    assert caught.value.reason == "sealed.image"
