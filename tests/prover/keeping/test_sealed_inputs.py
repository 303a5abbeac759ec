"""What a Prover gathers for a sealed inspection: every transcript that its service would offer, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

from prover.keeping.archive import Archive
from prover.keeping.sealed_inputs import gather, listed

RUN = Path(__file__).parents[2] / "golden" / "digits"


def copied(target: Path, seed: bytes) -> None:
    """Another transcript: its manifest ends otherwise, which makes it no valid one, but another file."""
    shutil.copytree(RUN, target)
    with (target / "manifest.json").open("ab") as manifest:
        manifest.write(seed)


def test_the_ranks_of_a_job_are_gathered_like_other_transcripts(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    copied(runs / "alone", b"")
    for rank in range(2):
        copied(runs / "job" / f"rank-{rank:04d}", bytes([rank]))
    copied(runs / ".hidden", b"hidden")
    found = gather(tmp_path / "inputs", runs, {})
    assert len(found) == 3
    assert {path.name for path in (tmp_path / "inputs" / "transcripts").iterdir()} == set(found)
    names = {each.name for each in listed(tmp_path / "inputs").files}
    assert {f"transcripts/{identifier}/manifest.json" for identifier in found} < names


def test_what_is_gathered_is_what_a_prover_offers(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "runs" / "deep" / "er" / "digits")
    offered = [each.id for each in Archive(tmp_path / "runs").transcripts()]
    assert gather(tmp_path / "inputs", tmp_path / "runs", {}) == offered
    assert len(offered) == 1
