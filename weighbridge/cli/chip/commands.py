"""`weighbridge chip ...`: sign firmware, make a simulated chip, run it, ask who it is, read its log."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from weighbridge.cli._examples import text
from weighbridge.cli._exits import Exit, print_found, print_json
from weighbridge.cli._inputs import Json, read_file
from weighbridge.cli.chip import description, log
from weighbridge.core.errors import Finding, TokenError, UsageError

app = typer.Typer(help="Simulated chips: sign firmware, provision, boot, show, read the log.", no_args_is_help=True)
app.add_typer(log.app, name="log")

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
_Ueid = Annotated[str, typer.Option("--ueid", help="Which chip, in hex, where a fleet answers.")]


@app.command()
def image(
    manufacturer: Annotated[Path, typer.Argument(help="Directory of the manufacturer's authority.")],
    out: Annotated[Path, typer.Option("--out", help="File for the signed image; must be new.")],
    payload: Annotated[
        Path | None, typer.Option("--payload", help="The firmware; the built-in one by default.")
    ] = None,
    version: Annotated[str | None, typer.Option("--version", help="Version for people.")] = None,
    svn: Annotated[int | None, typer.Option("--svn", help="Security version number; chips never go back.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Hardware model that it is for.")] = None,
    as_json: Json = False,
) -> None:
    """Sign a firmware image as its manufacturer would. Prints its measurement, by which Verifiers know it."""
    from dataclasses import replace

    from firmware_sim.device import DEFAULT_MODEL, builtin_image
    from weighbridge.attest.firmware_image import FirmwareSigner

    if out.exists():
        raise UsageError(f"{out} exists already; choose another file")
    made = builtin_image(model or DEFAULT_MODEL)
    if payload is not None:
        made = replace(made, payload=read_file(payload, "name the firmware"))
    made = replace(made, version=version or made.version, svn=made.svn if svn is None else svn)
    out.write_bytes(FirmwareSigner.of(manufacturer).sign(made))
    said = {"version": made.version, "svn": made.svn, "model": made.hwmodel, "measurement": made.measurement.hex()}
    if as_json:
        print_json(said)
    else:
        print(said["measurement"])


@app.command()
def provision(
    directory: Annotated[Path, typer.Argument(help="Directory of the new chip.")],
    manufacturer: Annotated[Path, typer.Option("--manufacturer", help="Directory of the manufacturer's authority.")],
    firmware: Annotated[
        Path | None, typer.Option("--image", help="Signed firmware image; the built-in firmware by default.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Hardware model.")] = None,
    as_json: Json = False,
) -> None:
    """Make a chip as its manufacturer would: a secret, an identity, fuses, firmware. Prints the identity."""
    from firmware_sim.boot import accept
    from firmware_sim.device import DEFAULT_MODEL, builtin_image, provision
    from firmware_sim.fuses import Fuses
    from weighbridge.attest.firmware_image import FirmwareSigner
    from weighbridge.attest.identity import CertificateAuthority

    authority, model = CertificateAuthority.load(manufacturer), model or DEFAULT_MODEL
    if firmware is None:
        data = FirmwareSigner.of(manufacturer).sign(builtin_image(model))
    else:
        data = read_file(firmware, "name a firmware image")
        accept(data, Fuses(root=authority.certificate), model)
    ueid = provision(directory, authority, model=model, image=data)
    if as_json:
        print_json({"ueid": ueid.hex(), "directory": str(directory)})
    else:
        print(ueid.hex())


@app.command(context_settings=_PASS_ON, add_help_option=False)
def boot(context: typer.Context, as_json: Json = False) -> int:
    """Start a chip and run it in the foreground until SIGTERM or SIGINT."""
    from firmware_sim import chip
    from firmware_sim.firmware import Firmware

    def ready(firmware: Firmware, address: str) -> None:
        device = firmware.device
        said = {
            "ueid": device.ueid.hex(),
            "address": address,
            "mode": device.tcb.mode,
            "version": device.tcb.version,
            "svn": device.tcb.svn,
            "measurement": device.tcb.measurement.hex(),
        }
        if as_json:
            print_json(said)
        else:
            print(f"chip {said['ueid']} serves at {address}: {said['mode']} boot of version {said['version']}")
        sys.stdout.flush()

    chip.until_stopped(_with_examples(chip.parser(), "chip boot").parse_args(context.args), ready)
    return Exit.NOTHING_FOUND


@app.command(context_settings=_PASS_ON, add_help_option=False)
def fleet(context: typer.Context, as_json: Json = False) -> int:
    """Serve thousands of chips in the foreground on one address, until SIGTERM or SIGINT."""
    from firmware_sim import fleet
    from firmware_sim.fleet import Fleet

    def ready(chips: Fleet, address: str) -> None:
        if as_json:
            print_json({"address": address, "ueids": [ueid.hex() for ueid in chips.ueids]})
        else:
            print(f"{len(chips.ueids)} chips serve at {address}")
        sys.stdout.flush()

    fleet.until_stopped(_with_examples(fleet.parser(), "chip fleet").parse_args(context.args), ready)
    return Exit.NOTHING_FOUND


def _with_examples(parser: argparse.ArgumentParser, command: str) -> argparse.ArgumentParser:
    parser.epilog, parser.formatter_class = text(command), argparse.RawDescriptionHelpFormatter
    return parser


app.command("run", hidden=True, context_settings=_PASS_ON, add_help_option=False)(boot)


@app.command()
def show(
    target: Annotated[str, typer.Argument(help="Directory of a chip, or host:port of one that runs.")],
    credentials: Annotated[
        Path | None, typer.Option("--credentials", help="Credentials of a verifier or operator.")
    ] = None,
    manufacturer: Annotated[
        Path | None, typer.Option("--manufacturer", help="The manufacturer's root, as PEM.")
    ] = None,
    ueid: _Ueid = "",
    as_json: Json = False,
) -> int:
    """Say which chip it is, what it runs, and how long its log is: exit 1 if it would not start or cannot prove it."""
    from weighbridge.attest.identity import Credentials

    said: dict[str, Any] = {}
    findings: list[Finding] = []
    if Path(target).is_dir():
        said, findings = description.of_directory(Path(target))
    elif credentials is None or manufacturer is None:
        raise UsageError(f"{target} is no directory of a chip; for a running chip add --credentials and --manufacturer")
    else:
        try:
            root = description.read_root(manufacturer)
            said = description.of_service(target, Credentials.load(credentials), root, description.ueid_of(ueid))
        except TokenError as error:
            findings.append(error.finding(subject=target))
    return print_found({"chip": said or None}, description.lines(said) if said else (), findings, as_json=as_json)


@app.command()
def unlock(directory: Annotated[Path, typer.Argument(help="Directory of the chip.")]) -> None:
    """Blow a chip's debug fuse, for good: it then starts any firmware, and all that it signs says so."""
    from firmware_sim.device import unlock

    unlock(directory)
    print(f"{directory} starts any firmware from its next boot on")
