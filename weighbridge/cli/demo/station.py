"""A whole inspection station on the loopback: chips, Prover and Verifier, each a process with a key of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from weighbridge.cli.bench.commands import register
from weighbridge.cli.bench.layout import Bench, Settings
from weighbridge.cli.bench.processes import running
from weighbridge.cli.inspect.operator import Operator, connect


@dataclass(frozen=True, slots=True)
class RunningChip:
    """A chip that serves.

    Attributes:
        name: Its name in the demo.
        ueid: Its identity.
        socket: Where a training process on it finds it.
    """

    name: str
    ueid: bytes
    socket: Path


@dataclass(frozen=True, slots=True)
class Station:
    """Everything that runs.

    Attributes:
        chips: In the order of their names as given; all are registered.
        operator: A connection to the Verifier.
        bench: What lies where.
        stop_verifier: Ends the Verifier's service, and with it `operator`; chips and Prover go on.
    """

    chips: Sequence[RunningChip]
    operator: Operator
    bench: Bench
    stop_verifier: Callable[[], None]


@contextmanager
def station(
    directory: Path,
    *,
    runs: Path,
    chips: Sequence[str],
    rate_per_day: float,
    clock_speed: float,
    confidential: bool = False,
) -> Iterator[Station]:
    """Sets up a station in a new directory and runs it until the end of the block.

    Args:
        directory: For keys, logs and databases; must not exist.
        runs: Directory whose transcripts the Prover serves.
        chips: Names of the chips.
        rate_per_day: Snapshots per chip and day, on the chips' clock.
        clock_speed: How many times faster than the wall clock the chips' clock runs.
        confidential: Whether the chips boot confidentially.

    Raises:
        ProcessError: A process did not come up.
    """
    settings = Settings(tuple(chips), rate_per_day, clock_speed, forced=True, confidential=confidential)
    bench = Bench(directory, settings, runs=runs)
    bench.make()
    with ExitStack() as stack, ExitStack() as verifier:
        for service in bench.services():
            (verifier if service.name == "verifier" else stack).enter_context(running(service))
        register(bench, owner="demo", sites=True)
        operator = verifier.enter_context(connect(bench.address("verifier"), bench.credentials("operator")))
        known = [RunningChip(name, bench.ueid(name), bench.socket(name)) for name in chips]
        yield Station(known, operator, bench, verifier.close)
