"""`weighbridge site ...`: the machine that runs sealed workers, at a Prover's or on neutral ground."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from weighbridge.cli._inputs import gib, read_file
from weighbridge.cli.site import images as site_images
from weighbridge.cli.site import machines, referee, session
from weighbridge.core.errors import UsageError

app = typer.Typer(help="Sealed workers: replays that show nothing but their outcome.", no_args_is_help=True)

site_images.add(app)
machines.add(app)
session.add(app)
referee.add(app)


@app.command()
def identity(
    manufacturer: Annotated[Path, typer.Argument(help="Directory of the authority that vouches for the machine.")],
    ueid: Annotated[str, typer.Option("--ueid", help="The machine's identifier, 17 to 33 bytes in hex.")],
    out: Annotated[Path, typer.Option("--out", help="Directory for the launcher's key and certificate; must be new.")],
) -> None:
    """Make the identity of a machine's launcher, which vouches for sealed workers."""
    from weighbridge.attest.identity import CertificateAuthority
    from weighbridge.attest.sealed_attestation import Launcher

    if (out / "launcher-key.pem").exists():
        raise UsageError(f"{out} holds an identity already; choose another directory")
    try:
        named = bytes.fromhex(ueid)
    except ValueError:
        raise UsageError("a UEID is given in hex") from None
    Launcher.issue(CertificateAuthority.load(manufacturer), named).save(out)
    print(f"made {out / 'launcher.der'}; keep launcher-key.pem beside it secret, above all from the Prover")


@app.command()
def image(
    out: Annotated[Path, typer.Argument(help="Directory for the image; must be new.")],
) -> None:
    """Make the image of a sealed worker, and print its measurement: a digest of all files that the worker will have."""
    from weighbridge.execution.sealed.building import build

    made = build(out)
    print(f"{made.measurement.hex()}  {len(made.files)} files, {made.size / 1e6:.0f} MB")


@app.command()
def worker(
    order: Annotated[Path, typer.Option("--order", help="The job's order, which both parties agreed to.")],
    identity: Annotated[Path, typer.Option("--identity", help="Directory of the launcher's identity.")],
    image: Annotated[Path, typer.Option("--image", help="Directory of the image.")],
    log: Annotated[Path, typer.Option("--log", help="The log of starts, which this appends to.")],
    memory: Annotated[float, typer.Option("--memory", help="GiB that the replay may use.", min=0.1)] = 4.0,
    inputs: Annotated[float, typer.Option("--inputs", help="GiB that the job's files may have.", min=0.001)] = 4.0,
    seconds: Annotated[int, typer.Option("--seconds", help="Time for all of it.", min=1)] = 3600,
    policy: Annotated[
        Path | None, typer.Option("--image-policy", help="Start only images that this policy permits.")
    ] = None,
    proof: Annotated[
        Path | None, typer.Option("--image-proof", help="With --image-policy: the proof of this image (`site prove`).")
    ] = None,
) -> None:
    """Run one sealed job.

    Takes the Prover's stream on standard input. Writes the worker's attestation to standard output, before it reads,
    and the encrypted outcome after it; each comes after its length in four bytes.
    """
    from weighbridge.attest.sealed_attestation import Launcher
    from weighbridge.attest.sealed_order import Order
    from weighbridge.execution.sealed import launcher
    from weighbridge.execution.worker_process import Limits

    if sys.platform != "linux":
        raise UsageError("sealed workers are Linux's: no other system confines them")
    site = launcher.Site(
        launcher=Launcher.load(identity),
        image=image,
        log=log,
        limits=Limits(memory=gib(memory, "--memory"), seconds=seconds),
        inputs=gib(inputs, "--inputs"),
    )
    ordered = Order.from_cbor(read_file(order))
    site_images.require_vetted(policy, proof, ordered.measurement)
    with os.fdopen(os.dup(1), "wb") as sink:
        launcher.run(site, ordered, 0, sink)
