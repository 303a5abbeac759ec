"""`weighbridge referee ...`: rule in the disputes of others, as a service."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from weighbridge.cli._exits import one_line, print_json
from weighbridge.cli._inputs import Json
from weighbridge.cli.dispute import key_in_hex
from weighbridge.cli.replay import require_device
from weighbridge.cli.serve import until_stopped
from weighbridge.core import secret_files
from weighbridge.core.errors import UsageError
from weighbridge.rpc import serving

app = typer.Typer(help="A referee of disputes, as a service.", no_args_is_help=True)

_Docket = Annotated[Path, typer.Option("--docket", help="Directory with all disputes; made if missing.")]
_Key = Annotated[Path, typer.Option("--key", help="Key that signs rulings, made if missing.")]
_Party = Annotated[
    list[str] | None,
    typer.Option("--party", help="ORGANISATION=KEY: a party's public key in hex; repeatable, also for one name."),
]
_Db = Annotated[
    str | None, typer.Option("--registry", help="A Verifier's database: its parties with an Ed25519 key, too.")
]


@app.command()
def serve(
    docket: _Docket,
    key: _Key,
    credentials: Annotated[Path, typer.Option(help="Directory of the role certificate: of the role referee.")],
    party: _Party = None,
    registry: _Db = None,
    clock: Annotated[float, typer.Option(help="Seconds that each party has for all its messages.", min=0.1)] = 3600.0,
    open_disputes: Annotated[int, typer.Option(help="Disputes that an organisation may have open.", min=1)] = 4,
    lost_disputes: Annotated[int, typer.Option(help="Lost disputes after which a key opens no more.", min=1)] = 8,
    message_mib: Annotated[int, typer.Option(help="MiB that a message may have.", min=1, max=1024)] = 256,
    request_memory: Annotated[int, typer.Option(help="MiB of requests in memory; each caller a quarter.")] = 1024,
    device: Annotated[str, typer.Option("--device", help="Where to execute: cpu, cuda, cuda:1.")] = "cpu",
    address: Annotated[str, typer.Option(help="host:port to listen at; port 0 picks a free one.")] = "127.0.0.1:0",
    address_file: Annotated[Path | None, typer.Option(help="Write the address here once the service answers.")] = None,
    as_json: Json = False,
) -> None:
    """Run a referee: it passes messages on, keeps each party's clock, executes the disputed operation, and rules."""
    from functools import partial

    from weighbridge.attest.identity import Credentials
    from weighbridge.attest.manifest import load_or_create_key
    from weighbridge.execution.dispute import asking, service
    from weighbridge.execution.dispute import docket as dockets
    from weighbridge.rpc.guards import CallLimits

    logging.basicConfig(level=logging.WARNING)
    secret_files.keep_to_owner()
    require_device(device)
    parties, stop = _parties(party or [], registry), serving.AskedToStop()
    limits = dockets.DocketLimits(clock=clock, open=open_disputes, lost=lost_disputes, size=message_mib << 20)
    held = dockets.Docket(
        docket, load_or_create_key(key), parties, limits=limits, judge=partial(asking.judge, device=device)
    )
    calls = CallLimits(rate_per_s=50.0, burst=400.0, streams=4, calls=8, memory=request_memory << 20)
    running = service.serve(held, Credentials.load(credentials), address, limits=calls)
    until_stopped("Referee", running, stop, address_file, as_json)


@app.command()
def charges(docket: _Docket, key: _Key, party: _Party = None, registry: _Db = None, as_json: Json = False) -> None:
    """List what the losers of all ruled disputes owe: seconds of the referee and bytes."""
    from weighbridge.attest.manifest import load_or_create_key
    from weighbridge.execution.dispute.docket import Docket

    if not (docket.is_dir() and key.exists()):
        raise UsageError("there is no such docket or key; name those of `weighbridge referee serve`")
    found = Docket(docket, load_or_create_key(key), _parties(party or [], registry)).charges()
    rows = [
        {
            "dispute": e.dispute,
            "key": e.key.hex(),
            "organisation": e.organisation,
            "seconds": e.seconds,
            "bytes": e.bytes,
        }
        for e in found
    ]
    if as_json:
        print_json({"charges": rows})
    for row in [] if as_json else rows:
        print(
            one_line(
                f"{row['organisation'] or row['key']}: {row['seconds']:.3f} s, {row['bytes']} bytes ({row['dispute']})"
            )
        )


def _parties(named: list[str], registry: str | None) -> dict[bytes, str]:
    """Returns the organisation of each key."""
    found = {} if registry is None else _registered(registry)
    for each in named:
        name, _, text = each.partition("=")
        raw = key_in_hex(text)
        if not name or found.setdefault(raw, name) != name:
            raise UsageError(f"--party {each[:80]} names no organisation, or a key of another one")
    if not found:
        raise UsageError("a referee needs parties; add --party or --registry")
    return found


def _registered(db: str) -> dict[bytes, str]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from weighbridge.attest.custody_statements import decode_key
    from weighbridge.cli.registry.inputs import open_registry

    found = {}
    for each in open_registry(db).statements.parties():
        key = decode_key(each.key)
        if each.roles and isinstance(key, Ed25519PublicKey):
            found[key.public_bytes_raw()] = each.name
    return found
