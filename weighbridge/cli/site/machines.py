"""`weighbridge site machines|choose`: which of several machines runs a worker, and which others are examined."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json, read_file, require_different, write_file
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from verifier.model.site_machines import Choice, SiteMachines
    from weighbridge.attest.outcome_agreement import Agreement
    from weighbridge.attest.sealed_attestation import Attested

_TAMPERED_SHOWN = 5


def add(app: typer.Typer) -> None:
    """Adds the commands to a group."""
    for each in (machines, choose):
        app.command()(each)


def machines(
    certificates: Annotated[list[Path], typer.Argument(help="The launchers' certificates (launcher.der).")],
    root: Annotated[Path, typer.Option("--root", help="PEM file of the authority that vouches for launchers.")],
    out: Annotated[Path, typer.Option("--out", help="The file to write, for both parties' terms.")],
) -> None:
    """List the machines that can run a worker, for both parties' terms (`machines`, and `examined`)."""
    from verifier.model.site_machines import SiteMachines
    from weighbridge.attest.certificates import load_certificate
    from weighbridge.attest.sealed_attestation import launcher_of
    from weighbridge.core.digests import bytes_digest

    require_different(*certificates, root, out)
    authority = load_certificate(read_file(root))
    contents = [read_file(each) for each in certificates]
    made = SiteMachines.of([(launcher_of(each, authority), bytes_digest(each)) for each in contents])
    write_file(out, made.text)
    print(f"{len(made.certificates)} machines, {made.digest.hex()}: compare this with the other party's")


def choose(
    agreement: Annotated[Path, typer.Option("--agreement", help="What both parties agreed on about the outcome.")],
    case: Annotated[Path, typer.Option("--case", help="The Verifier's case; it has the beacon's value.")],
    listed: Annotated[Path, typer.Option("--machines", help="The list of machines that the terms name.")],
    as_json: Json = False,
) -> None:
    """Say which machine is drawn to run the worker and which are to be examined, and what tampering risks."""
    from verifier.sealed.case import Case
    from weighbridge.attest.outcome_agreement import AGREEMENT_LIMIT, Agreement
    from weighbridge.attest.sealed_session import CASE_LIMIT

    agreed = Agreement.from_cbor(read_file(agreement, max_bytes=AGREEMENT_LIMIT))
    beacon = Case.from_cbor(read_file(case, max_bytes=CASE_LIMIT)).beacon
    read, choice = _chosen(agreed, beacon, listed)
    number, examined = len(read.certificates), len(choice.examined)
    odds = [(tampered, read.odds(examined, tampered)) for tampered in range(1, min(number, _TAMPERED_SHOWN) + 1)]
    if as_json:
        print_json(
            {
                "used": choice.used.hex(), "examined": [each.hex() for each in choice.examined],
                "odds": [{"tampered": n, "used": float(o.used), "missed": float(o.missed)} for n, o in odds],
            }
        )  # fmt: skip
        return
    print(f"used: {choice.used.hex()}")
    for each in choice.examined:
        print(f"examined: {each.hex()}")
    for tampered, chances in odds:
        print(
            f"if {tampered} of {number} were tampered with before: one is used with {float(chances.used):.1%}, "
            f"and none is found by examining {examined} with {float(chances.missed):.1%}"
        )


def require_machine(agreed: Agreement, beacon: bytes, listed: Path | None, attested: Attested) -> None:
    """Checks that a worker runs on the machine that was drawn, if the terms name machines.

    Args:
        agreed: What both parties agreed on.
        beacon: The beacon's value, of the case.
        listed: File of the machines; None without one.
        attested: The worker.

    Raises:
        UsageError: There is no such file, or it is another than the terms name.
        SiteMachinesError: The worker runs on another machine (`sealed.machine`).
    """
    if listed is None and not agreed.terms.machines:
        return
    if listed is None:
        raise UsageError("the terms name machines of which one was drawn; give the list with --machines")
    read, choice = _chosen(agreed, beacon, listed)
    read.require(choice, attested.launcher, attested.certificate)


def _chosen(agreed: Agreement, beacon: bytes, listed: Path) -> tuple[SiteMachines, Choice]:
    from verifier.model.site_machines import LIMIT, parse
    from verifier.sealed.case import seed_of

    read = parse(read_file(listed, max_bytes=LIMIT))
    if read.digest != agreed.terms.machines:
        raise UsageError("the terms name other machines, or none; give the list that was agreed on")
    return read, read.choose(seed_of(agreed, beacon), agreed.terms.examined)
