"""`weighbridge registry log ...`: the registry's log for those who do not trust it: copy, check, prove, verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weighbridge.cli._exits import Exit, findings_line, print_json
from weighbridge.cli._inputs import Json, read_file
from weighbridge.cli.registry.inputs import Db, Key, Vkey, note_key, open_registry, write_new

app = typer.Typer(help="The registry's log: checkpoint, export, check, prove, verify.", no_args_is_help=True)

_Proof = Annotated[Path, typer.Argument(help="The proof; the entry lies beside it.")]


@app.command()
def checkpoint(db: Db, key: Key = None) -> None:
    """Print the signed checkpoint of the log. Keep it: `fsck --since` tells later whether the log was rewritten."""
    print(open_registry(db, key, signing=True).checkpoint().decode(), end="")


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(help="New directory for the log.")], db: Db, key: Key = None
) -> None:
    """Write the log as a directory of tiles (c2sp.org/tlog-tiles), which any web server can offer."""
    from verifier.registry import published

    print(f"{published.write(open_registry(db, key, signing=True), directory)} entries in {directory}")


@app.command()
def fsck(
    directory: Annotated[Path, typer.Argument(help="Directory of an exported log.")],
    key: Vkey,
    since: Annotated[Path | None, typer.Option("--since", help="A checkpoint of an earlier time.")] = None,
    as_json: Json = False,
) -> int:
    """Check a copy of the log, every signature in it, and what follows for chips: exit 0 if it is whole, 1 if not."""
    from verifier.registry import published
    from verifier.registry.reconstruction import replay_log

    vkey = note_key(key)
    copy = published.read(directory, vkey)
    findings = list(copy.findings)
    replayed = replay_log(copy.entries)
    if copy.authentic:  # what another party put into the copy is not the registry's doing
        if since is not None:
            findings += published.continues(copy, read_file(since), vkey)
        findings += replayed.findings
    states: dict[str, int] = {}
    contradictions = 0
    for _, custody, wrong in replayed.chips():
        states[custody.state] = states.get(custody.state, 0) + 1
        contradictions += len(wrong)
    said: dict[str, Any] = {
        "origin": copy.checkpoint.origin,
        "entries": len(copy.entries),
        "chips": sum(states.values()),
        "states": states,
        "contradictions": contradictions,
    }
    if as_json:
        print_json({**said, "findings": [finding.to_json() for finding in findings]})
    else:
        print(f"{said['entries']} entries, {said['chips']} chips, {contradictions} contradictions")
        for finding in findings:
            print(findings_line(finding))
        print(f"{len(findings)} findings")
    return Exit.FINDINGS if findings else Exit.NOTHING_FOUND


@app.command()
def prove(
    index: Annotated[int, typer.Argument(help="Index of the entry, which `registry show` lists.", min=0)],
    db: Db,
    out: Annotated[Path, typer.Option("--out", help="New file for the proof (.tlog-proof); the entry goes beside it.")],
    key: Key = None,
) -> None:
    """Write an offline proof that an entry is in the log, with the entry."""
    from verifier.registry import published

    registry = open_registry(db, key, signing=True)
    proof = published.prove(registry, index).encode()
    (entry,) = registry.log.entries(index, index + 1)
    write_new(out.with_suffix(".entry"), entry)
    write_new(out, proof)
    print(f"{out} {out.with_suffix('.entry')}")


@app.command()
def verify(proof: _Proof, key: Vkey, as_json: Json = False) -> None:
    """Verify such a proof with nothing but the registry's public key; exit 1 if it does not hold."""
    from verifier.registry import published
    from verifier.registry.entries import decode
    from verifier.registry.listings import rfc3339
    from weighbridge.attest.custody_statements import Signed

    entry = read_file(proof.with_suffix(".entry"))
    found = published.check_proof(read_file(proof), entry, note_key(key))
    at_s, content = decode(entry)
    said: dict[str, Any] = {"origin": found.origin, "size": found.size, "received": rfc3339(at_s)}
    if isinstance(content, Signed):
        statement = content.statement
        said |= {"event": statement.kind, "by": statement.by, "to": statement.to, "chips": len(statement.chips)}
    if as_json:
        print_json(said)
    else:
        print("  ".join(f"{name}: {value}" for name, value in said.items() if value != ""))
