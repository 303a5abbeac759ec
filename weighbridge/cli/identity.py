"""`weighbridge identity ...`: certificate authorities, and the credentials that every process needs for mutual TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weighbridge.core.errors import UsageError

app = typer.Typer(help="Certificate authorities and role credentials.", no_args_is_help=True)


@app.command()
def create(
    directory: Annotated[Path, typer.Argument(help="Directory for certificate and key; must be new.")],
    name: Annotated[str, typer.Option("--name", help="Common name of the root certificate.")],
) -> None:
    """Create an authority: for role credentials, or as the root of a chip manufacturer."""
    from weighbridge.attest.identity import CertificateAuthority

    if (directory / "authority.pem").exists():
        raise UsageError(f"{directory} holds an authority already; choose another directory")
    CertificateAuthority.create(name).save(directory)
    print(f"created {directory / 'authority.pem'}; keep authority-key.pem beside it secret")


@app.command()
def issue(
    authority: Annotated[Path, typer.Argument(help="Directory of the authority.")],
    role: Annotated[str, typer.Option("--role", help="chip, prover, verifier or operator.")],
    name: Annotated[str, typer.Option("--name", help="Who plays the role: lower-case letters, digits, hyphens.")],
    out: Annotated[Path, typer.Option("--out", help="Directory for certificate and key; must be new.")],
    host: Annotated[list[str] | None, typer.Option("--host", help="Where it is reached; repeatable.")] = None,
    ueid: Annotated[
        list[str] | None, typer.Option("--ueid", help="Chip, in hex, that a chip's certificate speaks for; repeatable.")
    ] = None,
) -> None:
    """Issue the credentials of one process."""
    from weighbridge.attest.identity import CertificateAuthority

    if (out / "key.pem").exists():
        raise UsageError(f"{out} holds credentials already; choose another directory")
    issuer = CertificateAuthority.load(authority)
    try:
        ueids = [bytes.fromhex(each) for each in ueid or ()]
    except ValueError:
        raise UsageError("a UEID is given in hex, as `weighbridge chip provision` prints it") from None
    issued = issuer.issue_role(role, name, *([host] if host else []), ueids=ueids)
    issued.save(out)
    print(f"issued {role} {name} in {out}")
