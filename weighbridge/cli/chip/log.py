"""`weighbridge chip log ...`: read a chip's log, keep it as a directory, check it, prove entries of it offline."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli._exits import print_found
from weighbridge.cli._inputs import Json, read_file
from weighbridge.cli.chip import description
from weighbridge.core.errors import Finding, TokenError, UsageError, WeighbridgeError

if TYPE_CHECKING:
    from weighbridge.attest.tokens import Token

app = typer.Typer(help="A chip's log: read, export, check, prove, verify, compare.", no_args_is_help=True)

_Address = Annotated[str, typer.Argument(help="The chip's host:port.")]
_Ueid = Annotated[str, typer.Option("--ueid", help="Which chip, in hex, where a fleet answers.")]
_Credentials = Annotated[Path, typer.Option("--credentials", help="Credentials of a verifier or operator.")]
_Root = Annotated[Path, typer.Option("--manufacturer", help="The manufacturer's root certificate, as PEM.")]
_Log = Annotated[Path, typer.Argument(help="Directory of an exported log.")]
_Witnesses = Annotated[
    list[Path] | None,
    typer.Option("--witness-key", help="File with the key of a witness that must have cosigned; repeatable."),
]


@app.command()
def read(
    address: _Address, credentials: _Credentials, manufacturer: _Root, ueid: _Ueid = "", as_json: Json = False
) -> int:
    """Read and verify a chip's whole log against a fresh nonce: exit 0 if it verifies, 1 if not."""
    from weighbridge.attest.tokens import verify_log

    root, rows, findings = description.read_root(manufacturer), list[dict[str, Any]](), list[Finding]()
    try:
        _, _, entries = _fetch(address, credentials, root, description.ueid_of(ueid))
        for verified in verify_log(entries, root):
            rows.append(_row(verified.token))
    except TokenError as error:
        findings.append(error.finding(subject=address))
    return _answer(rows, findings, as_json=as_json)


@app.command()
def export(
    address: _Address,
    out: Annotated[Path, typer.Argument(help="New directory for the log.")],
    credentials: _Credentials,
    manufacturer: _Root,
    ueid: _Ueid = "",
) -> None:
    """Keep a chip's log as a directory of tiles (c2sp.org/tlog-tiles), which any web server can offer."""
    from weighbridge.attest import tiles

    note, head, entries = _fetch(address, credentials, description.read_root(manufacturer), description.ueid_of(ueid))
    tiles.write(out, entries, note, head)
    print(f"{len(entries)} entries in {out}")


@app.command()
def fsck(
    directory: Annotated[Path, typer.Argument(help="Directory of an exported log, or of a chip that does not run.")],
    manufacturer: Annotated[
        Path | None, typer.Option("--manufacturer", help="The manufacturer's root, as PEM; a chip's own has it.")
    ] = None,
    witness_key: _Witnesses = None,
    as_json: Json = False,
) -> int:
    """Check everything in a log and change nothing: exit 0 if it is whole, 1 if not."""
    from weighbridge.attest import chip_log

    said: dict[str, Any] = {"directory": str(directory)}
    if (directory / "idevid.der").exists():
        from firmware_sim import fsck

        found = fsck.check(directory)
        said |= {"kind": "chip", "entries": found.entries, "released": found.released, "torn_bytes": found.torn_bytes}
        findings = found.findings
    elif manufacturer is None:
        raise UsageError("an exported log is checked against its manufacturer's root; add --manufacturer")
    else:
        log = chip_log.read_directory(directory, description.read_root(manufacturer), _keys(witness_key))
        said |= {"kind": "tiles", "origin": log.checkpoint.origin, "entries": log.checkpoint.size}
        findings = log.findings
    lines = [f"{said['entries']} entries, {len(findings)} findings"]
    return print_found(said, lines, findings, as_json=as_json)


@app.command()
def prove(
    log: _Log,
    index: Annotated[int, typer.Argument(help="Index of the entry.")],
    manufacturer: _Root,
    out: Annotated[Path, typer.Option("--out", help="File for the proof (.tlog-proof); the entry goes beside it.")],
) -> None:
    """Write an offline proof that an entry is in the log, with the entry."""
    from weighbridge.attest import chip_log

    opened = chip_log.read_directory(log, description.read_root(manufacturer))
    if opened.findings:
        raise UsageError("the log is not whole; see `weighbridge chip log fsck`")
    proof, entry = chip_log.prove(opened, index).encode(), out.with_suffix(".token")
    for path, content in ((out, proof), (entry, opened.entries[index])):
        if path.exists():
            raise UsageError(f"{path} exists already; choose another file")
        path.write_bytes(content)
    print(f"{out} {entry}")


@app.command()
def verify(
    proof: Annotated[Path, typer.Argument(help="The proof.")],
    entry: Annotated[Path, typer.Argument(help="The entry that it is about.")],
    manufacturer: _Root,
    witness_key: _Witnesses = None,
    as_json: Json = False,
) -> int:
    """Verify offline that a chip signed an entry and put it into its log: exit 0 if so, 1 if not."""
    from weighbridge.attest import chip_log, tlog

    data, content = (read_file(path) for path in (proof, entry))
    root, keys = description.read_root(manufacturer), _keys(witness_key)
    try:
        verified, _ = chip_log.verify_entry(tlog.parse_proof(data), content, root, keys)
    except WeighbridgeError as error:
        return _answer([], [error.finding(subject=str(proof))], as_json=as_json)
    return _answer([_row(verified.token)], [], as_json=as_json)


@app.command()
def compare(
    log: _Log,
    checkpoint: Annotated[Path, typer.Argument(help="Another party's checkpoint of the same chip's log.")],
    manufacturer: _Root,
    as_json: Json = False,
) -> int:
    """Find out whether a chip showed two histories: exit 0 if the checkpoint is part of the log, 1 if not."""
    from weighbridge.attest import chip_log

    opened = chip_log.read_directory(log, description.read_root(manufacturer))
    other = read_file(checkpoint, "name the file with the other checkpoint")
    return _answer([], [*opened.findings, *chip_log.compare(opened, other)], as_json=as_json)


def _fetch(address: str, credentials: Path, root: Any, ueid: bytes) -> tuple[bytes, bytes, list[bytes]]:
    """Returns checkpoint, head and entries of a chip's log; the first two verify, over a fresh nonce.

    Raises:
        WeighbridgeError: The chip cannot be read, or head, checkpoint and entries do not belong together.
    """
    from verifier.contact.clients import ChipClient
    from weighbridge.attest import chip_log, tokens
    from weighbridge.attest.identity import Credentials
    from weighbridge.core import merkle

    nonce = secrets.token_bytes(32)
    with ChipClient(address, Credentials.load(credentials), ueid) as client:
        note, token = client.checkpoint(nonce)
        head = tokens.verify(token, root).token
        if head.kind != "head" or head.nonce != nonce:
            raise TokenError("the chip did not sign over the nonce that it was sent; its answer may be an old one")
        description.check_answered(head.ueid, ueid)
        checkpoint, _ = chip_log.open_checkpoint(note, head)
        entries = list(client.entries(checkpoint.size))
    if merkle.root([merkle.leaf_hash(entry) for entry in entries]) != checkpoint.root:
        raise TokenError("the entries are not the log that the chip signed; ask it again", code="chip.log.head")
    return note, token, entries


def _row(token: Token) -> dict[str, Any]:
    from weighbridge.attest.tokens import HiddenBody, event_name

    return {
        "index": token.index,
        "kind": token.kind,
        "boot": token.boot_count,
        "time_ms": token.time_ms,
        "name": "hidden" if isinstance(token.body, HiddenBody) else event_name(token) or "",
    }


def _answer(rows: list[dict[str, Any]], findings: list[Finding], *, as_json: bool) -> int:
    lines = ["  ".join(str(value) for value in row.values()) for row in rows]
    return print_found({"entries": rows}, lines, findings, as_json=as_json)


def _keys(paths: list[Path] | None) -> list[Any]:
    from weighbridge.attest.tlog import parse_key

    keys = []
    for path in paths or []:
        data = read_file(path, "name the file with a witness's key")
        keys.append(parse_key(data.decode(errors="replace").strip()))
    return keys
