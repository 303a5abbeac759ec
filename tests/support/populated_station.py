"""A station with trainings that have ended, chips that never trained, and one that is dead."""

from __future__ import annotations

from collections.abc import Mapping

from support.station import Station


def populate(station: Station, jobs: Mapping[str, str], *idle: str, confidential: bool = False) -> None:
    """Trains on new chips and registers all with a Prover that serves the runs.

    Args:
        station: A new one.
        jobs: How each training behaves, by its chip's name (see `support.train_job`).
        *idle: Chips on which nothing runs. The last chip, `dead`, is killed.
        confidential: Whether all chips are in confidential boots.
    """
    for name in (*jobs, *idle, "dead"):
        station.chip(name, confidential=confidential)
    running = [station.train(mode, name) for name, mode in jobs.items()]
    if any([job.wait(timeout=300) for job in running]):
        raise RuntimeError("a training failed")
    prover = station.prover()
    for name in station.chips:
        station.register(name, prover)
    station.chips["dead"].kill()
