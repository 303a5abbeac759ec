"""`weighbridge chip ...`: make a simulated chip, run its firmware, read its log."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from weighbridge.cli._exits import Exit, findings_line, print_json
from weighbridge.errors import TokenError, UsageError

app = typer.Typer(help="Simulated chips: provision, run, read the log.", no_args_is_help=True)

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def provision(
    directory: Annotated[Path, typer.Argument(help="Directory of the new chip.")],
    manufacturer: Annotated[Path, typer.Option("--manufacturer", help="Directory of the manufacturer's authority.")],
) -> None:
    """Make a chip as its manufacturer would: a secret, an identity, a certificate. Prints the identity."""
    from firmware_sim.device import provision
    from weighbridge.identity import CertificateAuthority

    print(provision(directory, CertificateAuthority.load(manufacturer)).hex())


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def run(context: typer.Context) -> int:
    """Run a chip's firmware in the foreground, with the options of `python -m firmware_sim.chip`."""
    import subprocess
    import sys

    try:
        done = subprocess.run([sys.executable, "-m", "firmware_sim.chip", *context.args], check=False)
    except KeyboardInterrupt:
        return Exit.NOTHING_FOUND
    return done.returncode


@app.command()
def log(
    address: Annotated[str, typer.Argument(help="The chip's host:port.")],
    credentials: Annotated[Path, typer.Option("--credentials", help="Credentials of a verifier or operator.")],
    manufacturer: Annotated[Path, typer.Option("--manufacturer", help="The manufacturer's root certificate, as PEM.")],
    as_json: _Json = False,
) -> int:
    """Read and verify a chip's whole log against a fresh nonce: exit 0 if it verifies, 1 if not."""
    from weighbridge.identity import Credentials, load_certificate

    try:
        root = load_certificate(manufacturer.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {manufacturer}: {error.strerror}; give the manufacturer's root") from None
    rows: list[dict[str, Any]] = []
    findings = []
    try:
        rows.extend(_read(address, Credentials.load(credentials), root))
    except TokenError as error:
        findings.append(error.finding(subject=address))
    if as_json:
        print_json({"entries": rows, "findings": [finding.to_json() for finding in findings]})
    else:
        for row in rows:
            print("  ".join(str(value) for value in row.values()))
        for finding in findings:
            print(findings_line(finding))
    return Exit.FINDINGS if findings else Exit.NOTHING_FOUND


def _read(address: str, credentials: Any, root: Any) -> Iterator[dict[str, Any]]:
    """Yields one row for each verified entry.

    Raises:
        TokenError: The head or an entry does not verify, or head and entries do not belong together.
        WeighbridgeError: The chip cannot be read.
    """
    from verifier.clients import ChipClient
    from weighbridge.tokens import entry_digest, verify, verify_log

    nonce = secrets.token_bytes(32)
    with ChipClient(address, credentials) as client:
        head = verify(client.head(nonce), root).token
        if head.kind != "head" or head.nonce != nonce:
            raise TokenError("the chip did not sign over the nonce that it was sent; its answer may be an old one")
        entries = list(client.entries(int(head.body["size"])))
    for verified in verify_log(entries, root):
        token = verified.token
        text = token.body.get("name", "") if token.kind == "event" else ""
        yield {
            "index": token.index,
            "kind": token.kind,
            "boot": token.boot_count,
            "time_ms": token.time_ms,
            "name": text,
        }
    if not entries or entry_digest(entries[-1]) != head.body["last"]:
        raise TokenError("the entries are not the log that the chip signed; ask it again")
