"""`weighbridge audit order`, `accept` and `delivery`: order a training, and compare what was delivered with that."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weighbridge.cli._exits import Exit, counted, one_line, print_json
from weighbridge.cli._inputs import Json, Run, read_file, require_transcript, signing_key, write_file
from weighbridge.cli.dispute import key_in_hex
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from weighbridge.attest.training_order import SignedOrder

_Order = Annotated[Path, typer.Argument(help="File of the order.")]


def order(
    run: Annotated[Path, typer.Argument(help="Rehearsal: a recording of a few steps of what is ordered.")],
    steps: Annotated[int, typer.Option("--steps", min=1, help="Updates that are ordered.")],
    service: Annotated[str, typer.Option("--service", help="The service's public key, in hex.")],
    key: Annotated[Path, typer.Option("--key", help="Your private key (`weighbridge rules key FILE` makes one).")],
    out: Annotated[Path, typer.Option("--out", help="File of the order; it must not exist yet.")],
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="The seed; by default a random one.")] = None,
    seed_of_data: Annotated[
        bool, typer.Option("--seed-of-data", help="All seeds have to follow from the data.")
    ] = False,
    runs: Annotated[
        list[str] | None,
        typer.Option("--runs", metavar="TAPE=COUNT", help="A program has to run so often at least; repeat it."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="What you call it; by default the file's name.")] = None,
    as_json: Json = False,
) -> None:
    """Order a training: the programs, numbers, data and logs of a rehearsal, for as many steps as you want."""
    from verifier.auditing.delivery import ordered_like
    from weighbridge.attest.training_order import sign

    if seed is not None and seed_of_data:
        raise UsageError("a seed that follows from the data is none that you choose; give --seed or --seed-of-data")
    require_transcript(run)
    if out.exists():
        raise UsageError(f"{out} exists; give another file")
    own = signing_key(key)
    drawn = None if seed_of_data else secrets.randbelow(1 << 63) if seed is None else seed
    made = sign(
        ordered_like(
            run,
            name=name or out.name,
            client=own.public,
            service=key_in_hex(service),
            steps=steps,
            seed=drawn,
            runs=_counts(runs or []),
        ),
        own,
    )
    write_file(out, made.to_cbor())
    _tell(made, as_json)


def accept(
    file: _Order,
    key: Annotated[Path, typer.Option("--key", help="The service's private key.")],
    as_json: Json = False,
) -> None:
    """Accept an order (the service): sign it, in its file."""
    made = _read(file).accept(signing_key(key))
    write_file(file, made.to_cbor())
    _tell(made, as_json)


def delivery(file: _Order, run: Run, as_json: Json = False) -> Exit:
    """Compare a transcript with its order, executing nothing: exit 1 if it is not what was ordered."""
    from verifier.auditing.delivery import compare, delivered

    require_transcript(run)
    ordered, told = load(file).order, delivered(run)
    found = compare(ordered, told, run.name)
    if as_json:
        said = {"order": ordered.digest.hex(), "findings": [each.to_json() for each in found], "runs": told.counts}
        print_json(said)
    else:
        for tape, count in told.counts.items():
            print(one_line(f"program {tape[:16]} ran {counted(count, 'time')}"))
        for each in found:
            print(one_line(f"{each.severity} {each.id}: {each.message}"))
        if not found:
            print(
                one_line(f"{run} says that it is what was ordered, {ordered.steps} steps; an audit says if it is true")
            )
    return Exit.FINDINGS if found else Exit.NOTHING_FOUND


def _counts(runs: list[str]) -> dict[str, int]:
    found = {}
    for each in runs:
        tape, _, count = each.partition("=")
        if not tape or not count.isdecimal() or len(count) > 10 or tape in found:
            raise UsageError(f"--runs {each!r} is no TAPE=COUNT, or its program is named twice")
        found[tape] = int(count)
    return found


def load(file: Path) -> SignedOrder:
    """Returns an order that both parties signed.

    Raises:
        OrderError: It is none.
        UsageError: It cannot be read.
    """
    signed = _read(file)
    signed.require_accepted()
    return signed


def _read(file: Path) -> SignedOrder:
    from weighbridge.attest.training_order import ORDER_LIMIT, SignedOrder

    return SignedOrder.from_cbor(read_file(file, max_bytes=ORDER_LIMIT))


def _tell(signed: SignedOrder, as_json: bool) -> None:
    """Prints an order; who accepts it reads here what is ordered."""
    order = signed.order
    said = {
        "order": order.digest.hex(), "name": order.name, "client": order.client.hex(), "service": order.service.hex(),
        "accepted": bool(signed.accepted), "steps": order.steps, "seed": order.seed, "logs": order.logs,
        "passport": order.passport.hex(), "data": order.data.hex(), "records": order.records,
        "runs": {tape.hex(): count for tape, count in order.runs.items()},
    }  # fmt: skip
    if as_json:
        print_json(said)
        return
    for name, value in said.items():
        words = "follows from the data" if name == "seed" and value is None else value
        if name == "runs":
            words = (
                ", ".join(f"{tape.hex()[:16]} {n} times" for tape, n in order.runs.items()) or "as the service decides"
            )
        print(one_line(f"{name}: {words}"))
