"""`weighbridge inspect criteria`: secret criteria that choose segments to replay, and the hash that commits to them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json
from weighbridge.core.errors import UsageError


def add(app: typer.Typer) -> None:
    """Adds the command to a group."""
    app.command()(criteria)


def criteria(
    out: Annotated[Path, typer.Option("--out", help="New file for the criteria; keep it secret.")],
    step: Annotated[list[int] | None, typer.Option("--step", help="The segment with this step; repeatable.")] = None,
    every: Annotated[
        list[str] | None, typer.Option("--every", help="N:R, every Nth segment from the Rth on, counted from 0.")
    ] = None,
    tensor: Annotated[
        list[str] | None, typer.Option("--tensor", help="NAME:SHARE, where a tensor changed by so much of its norm.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write secret criteria for `weighbridge serve verifier --criteria`; prints their hash.

    Every plan carries the hash, and every report opens the criteria.
    """
    from verifier.model.segments import Criterion, Secret

    chosen = [Criterion("step", number) for number in step or ()]
    for pair in every or ():
        number, remainder = _pair(pair, "--every")
        if not (number.isdecimal() and remainder.isdecimal()):
            raise UsageError(f"--every takes two whole numbers, not {pair!r:.100}")
        chosen.append(Criterion("every", int(number[:20]), float(remainder[:20])))
    for pair in tensor or ():
        name, share = _pair(pair, "--tensor")
        chosen.append(Criterion("tensor", 0, _number(share, "--tensor"), name))
    if not chosen:
        raise UsageError("give at least one of --step, --every and --tensor")
    secret = Secret.of(chosen)
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UsageError(f"cannot write {out} ({error.strerror}); name a new file") from None
    with os.fdopen(descriptor, "w") as file:
        json.dump(secret.to_json(), file, indent=1)
    if as_json:
        print_json({"commitment": secret.commitment(), "file": str(out)})
    else:
        print(secret.commitment())


def _pair(text: str, option: str) -> tuple[str, str]:
    left, colon, right = text.rpartition(":")
    if not (left and colon and right):
        raise UsageError(f"{option} takes two parts with a colon between them, not {text!r:.100}")
    return left, right


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option} takes a number, not {text!r:.100}") from None
