"""What the commands of `weighbridge inspect` share: how they find their Verifier, and name an inspection."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weighbridge.cli.bench.layout import DEFAULT, Bench
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from weighbridge.cli.inspect.operator import Operator

Address = Annotated[
    str,
    typer.Option(
        "--verifier", envvar="WEIGHBRIDGE_VERIFIER", help="Verifier's host:port.",
        default_factory=str, show_default="that of the bench here",
    ),
]  # fmt: skip
Directory = Annotated[
    Path | None,
    typer.Option(
        "--credentials", envvar="WEIGHBRIDGE_CREDENTIALS", help="Directory of the operator's credentials.",
        default_factory=lambda: None, show_default="those of the bench here",
    ),
]  # fmt: skip
Inspection = Annotated[
    str,
    typer.Argument(
        help="Identifier of the inspection, or how it begins.", default_factory=str, show_default="the newest"
    ),
]


@contextmanager
def connected(verifier: str, credentials: Path | None) -> Iterator[Operator]:
    """Connects to a Verifier as its operator.

    Args:
        verifier: Its host:port; empty for that of the bench of this directory.
        credentials: Directory of the operator's credentials; None for those of the bench.

    Raises:
        UsageError: Something was not given, and there is no bench.
        IdentityError: The credentials are unreadable.
    """
    from weighbridge.cli.inspect.operator import connect

    address = verifier or bench_here("--verifier").address("verifier")
    with connect(address, credentials or bench_here("--credentials").credentials("operator")) as operator:
        yield operator


def bench_here(option: str) -> Bench:
    """Returns the bench of this directory, in place of an option that was not given.

    Raises:
        UsageError: There is none; the message names the option.
    """
    directory = Path(os.environ.get("WEIGHBRIDGE_BENCH") or DEFAULT)
    if not Bench.exists(directory):
        raise UsageError(f"give {option}, or start a bench here with `weighbridge up`")
    return Bench.opened(directory)
