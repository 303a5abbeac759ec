"""`weighbridge identity ...`: certificate authorities, and the credentials that every process needs for mutual TLS."""

from __future__ import annotations

import datetime
import secrets
from pathlib import Path
from typing import Annotated

import typer

from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json, read_file
from weighbridge.core.errors import UsageError

app = typer.Typer(help="Certificate authorities and role credentials.", no_args_is_help=True)

_Authority = Annotated[Path, typer.Argument(help="Directory of the authority.")]
_Days = Annotated[float, typer.Option("--days", help="How long a certificate is valid.", min=0.01, max=400)]
_Directories = Annotated[list[Path], typer.Argument(help="Directories of credentials.")]

_DAYS = 30.0


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
    authority: _Authority,
    role: Annotated[str, typer.Option("--role", help="chip, prover, verifier, operator or referee.")],
    name: Annotated[str, typer.Option("--name", help="Who plays the role: lower-case letters, digits, hyphens.")],
    out: Annotated[Path, typer.Option("--out", help="Directory for certificate and key; must be new.")],
    host: Annotated[list[str] | None, typer.Option("--host", help="Where it is reached; repeatable.")] = None,
    ueid: Annotated[
        list[str] | None, typer.Option("--ueid", help="Chip, in hex, that a chip's certificate speaks for; repeatable.")
    ] = None,
    days: _Days = _DAYS,
) -> None:
    """Issue the credentials of one process, with a new key."""
    from weighbridge.attest.role_authority import RoleAuthority

    if (out / "key.pem").exists():
        raise UsageError(f"{out} holds credentials already; choose another directory")
    try:
        ueids = [bytes.fromhex(each) for each in ueid or ()]
    except ValueError:
        raise UsageError("a UEID is given in hex, as `weighbridge chip provision` prints it") from None
    with RoleAuthority.opened(authority) as issuer:
        issuer.issue(role, name, host, ueids=ueids, lifetime=datetime.timedelta(days=days)).save(out)
    print(f"issued {role} {name} in {out}")


@app.command()
def renew(
    authority: _Authority,
    directories: Annotated[list[Path] | None, typer.Argument(help="Directories with a certificate.pem.")] = None,
    days: _Days = _DAYS,
) -> None:
    """Renew certificates before they expire, and the list of revoked certificates.

    Each certificate is for the same key as before, so DIRECTORIES need no key. Services take a new certificate.pem and
    revocations.pem without a restart.
    """
    from weighbridge.attest import role_certificate
    from weighbridge.attest.credential_files import REVOCATIONS, write_files
    from weighbridge.attest.role_authority import RoleAuthority

    with RoleAuthority.opened(authority) as issuer:
        issuer.sign_list()
        for directory in directories or []:
            renewed = issuer.renew(read_file(directory / "certificate.pem"), datetime.timedelta(days=days))
            write_files(directory, {"certificate.pem": renewed, REVOCATIONS: issuer.revocations})
            read = role_certificate.read(renewed)
            print(f"renewed {read.role} {read.name} in {directory} until {read.expires:%Y-%m-%d %H:%M} UTC")
    print(f"signed {authority / REVOCATIONS}; give it to every service with `weighbridge identity update`")


@app.command()
def revoke(
    authority: _Authority,
    role: Annotated[str | None, typer.Option("--role", help="chip, prover, verifier, operator or referee.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Who plays it: all certificates of that name.")] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="Instead: a certificate; all for its key are revoked.")
    ] = None,
) -> None:
    """Revoke certificates: of a role and name, or of one key."""
    from weighbridge.attest.role_authority import RoleAuthority

    with RoleAuthority.opened(authority) as issuer:
        if certificate is not None and role is None and name is None:
            revoked = issuer.revoke_key(read_file(certificate))
        elif certificate is None and role is not None and name is not None:
            revoked = issuer.revoke_name(role, name)
        else:
            raise UsageError("name whom to revoke by --role and --name, or by --certificate")
    for each in revoked:
        print(f"revoked {each.role} {each.name}, serial number {each.serial:x}")
    path = authority / "revocations.pem"
    print(f"{len(revoked)} more in {path}; give it to every service with `weighbridge identity update`")


@app.command()
def update(
    revocations: Annotated[Path, typer.Argument(help="The authority's newest revocations.pem.")],
    directories: _Directories,
) -> None:
    """Give services a list of revoked certificates: it counts from their next call on.

    A list that the authority did not sign, that has ended, or that is older than one before it is refused.
    """
    from weighbridge.rpc.own_credentials import put_list

    pem = read_file(revocations)
    for directory in directories:
        number = put_list(directory, pem)
        print(f"{directory} has list {number}")


@app.command()
def browser(
    directory: Annotated[Path, typer.Argument(help="Directory of the credentials.")],
    out: Annotated[Path, typer.Option("--out", help="File to write; must be new.")],
    as_json: Json = False,
) -> None:
    """Write credentials as a PKCS #12 file that browsers import, to sign in to the console.

    The password is made here and printed once. Delete the file after the import: it holds the private key.
    """
    from weighbridge.attest import browser_file

    password = secrets.token_urlsafe(15)
    try:
        browser_file.write(out, directory, password)
    except FileExistsError:
        raise UsageError(f"{out} exists; choose another file, or remove it") from None
    except OSError as error:
        raise UsageError(f"cannot write {out} ({error.strerror}); choose another place") from None
    if as_json:
        print_json({"file": str(out), "password": password})
    else:
        print(f"wrote {out}; its password is {password}")
