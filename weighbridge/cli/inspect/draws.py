"""`weighbridge inspect verify-draw|draw|beacon`: draws of chips, for those who do not trust their Verifier."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli._exits import Exit, findings_line, print_json
from weighbridge.cli._inputs import Json, read_file
from weighbridge.cli.inspect.connection import Address, Directory, Inspection, connected
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from verifier.draw.record import DrawRecord
    from weighbridge.attest.tlog import NoteKey


def add(app: typer.Typer) -> None:
    """Adds the commands to `weighbridge inspect`."""
    app.command("verify-draw")(verify_draw)
    app.command("draw")(draw)
    app.command("beacon")(beacon)


def verify_draw(
    record: Annotated[Path, typer.Argument(help="draw.json, or the directory that it is in.")],
    log_key: Annotated[str | None, typer.Option("--log-key", help="Key of the Verifier's log, as you know it.")] = None,
    witness: Annotated[
        list[str] | None, typer.Option("--witness", help="Key that must have cosigned in time; repeatable.")
    ] = None,
    registry_root: Annotated[
        str | None, typer.Option("--registry-root", help="Root of the registry's log, 64 hexadecimal digits.")
    ] = None,
    registry: Annotated[
        Path | None,
        typer.Option("--registry", help="The registry's log, as `weighbridge registry log export` writes it."),
    ] = None,
    beacon_chain: Annotated[
        str | None, typer.Option("--beacon", help="Chain hash of the beacon, 64 hexadecimal digits.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", help="The Verifier's whole log; by default `log` beside the record.")
    ] = None,
    cosigned: Annotated[
        list[Path] | None,
        typer.Option("--cosigned", help="Checkpoint of a chip's log that this Verifier cosigned; repeatable."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Recompute a draw from its record: exit 0 if it was made as it must be, 1 if something is wrong with it."""
    from verifier.draw.recomputation import Trusted, verify_draw
    from verifier.draw.record import LOG, read_log, read_record

    shown = read_record(record)
    beside = (record if record.is_dir() else record.parent) / LOG
    where = log or (beside if beside.is_dir() else None)
    trusted = Trusted(
        now_ms=int(time.time() * 1000),
        log=None if log_key is None else _key(log_key),
        witnesses=[_key(each) for each in witness or []],
        registry=_digest(registry_root, "--registry-root"),
        beacon=_digest(beacon_chain, "--beacon"),
        whole_log=None if where is None else read_log(where),
        registry_log=None if registry is None else read_log(registry)[1],
        cosigned=[read_file(path) for path in cosigned or []],
    )
    findings = verify_draw(shown, trusted)
    wrong = any(finding.severity != "info" for finding in findings)
    assumed = _assumed(shown, trusted)
    if as_json:
        print_json(
            {"draw": _summary(shown), "findings": [finding.to_json() for finding in findings], "assumed": assumed}
        )
    else:
        for name, value in _summary(shown).items():
            print(f"{name}: {', '.join(value) if isinstance(value, list) else value}")
        for sentence in assumed:
            print(f"assumed: {sentence}")
        for finding in findings:
            print(findings_line(finding))
        print("something is wrong with this draw" if wrong else "the draw is what its record says")
    return Exit.FINDINGS if wrong else Exit.NOTHING_FOUND


def _summary(record: DrawRecord) -> dict[str, Any]:
    commitment, opened = record.committed(), record.opened()
    return {
        "inspection": commitment.inspection,
        "chips": commitment.chips,
        "strata": len(commitment.strata),
        "samples": sum(each.samples for each in commitment.strata),
        "drawn": len(record.drawn),
        "certain": len(record.certain),
        "beacon": record.beacon.chain.hex(),
        "scheme": record.beacon.scheme,
        "round": commitment.round,
        "registry_root": commitment.registry.hex(),
        "log_key": str(record.log),
        "witnesses": [str(key) for key in record.witnesses],
        "state": "committed" if opened is None else type(opened).__name__.lower(),
    }


def _assumed(record: DrawRecord, trusted: Any) -> list[str]:
    """Returns what the outcome rests on that was not checked here."""
    out = []
    if trusted.log is None:
        out.append("the key of the Verifier's log is the one in the record; give --log-key")
    if not trusted.witnesses:
        out.append("the times in the log are right: only the record's own witnesses cosigned them; give --witness")
    if trusted.whole_log is None:
        out.append("the Verifier's log holds no other closing or opening, and no unopened commitment; give --log")
    if trusted.registry_log is None:
        out.append("the population is the registry's: it was not worked out from the registry's log; give --registry")
    if trusted.registry is None:
        out.append("the registry's log is the published one; give --registry-root")
    if record.beacon.local:
        out.append("the beacon's operator kept its values secret until their time")
    elif record.beacon.verifiable:
        out.append("fewer members of the beacon's network than its threshold shared their keys before the value's time")
    else:
        out.append("the network signed the beacon's value: its BLS signature was not verified; ask a drand node")
    return out


def draw(
    inspection: Inspection,
    out: Annotated[Path, typer.Option("--out", help="Directory for draw.json and what belongs to it.")],
    verifier: Address,
    credentials: Directory,
) -> None:
    """Fetch the record of an inspection's draw, with the Verifier's whole log."""
    from verifier.draw.record import RECORD, write_files

    with connected(verifier, credentials) as operator:
        files = operator.draw(operator.whole(inspection))
    write_files(out, files)
    print(out / RECORD)


def beacon(
    key: Annotated[Path, typer.Option("--key", help="The beacon's key file; made if there is none.")],
    out: Annotated[Path, typer.Option("--out", help="Directory for `info` and `public/<round>`.")],
    number: Annotated[
        int | None,
        typer.Option("--round", min=1, help="Which round; waits for its time. By default each, until interrupted."),
    ] = None,
    period: Annotated[int, typer.Option("--period", min=1, help="Seconds between rounds of a new beacon.")] = 1,
) -> None:
    """Run a beacon of your own: publish the value of a round, in drand's form, once its time has come."""
    from weighbridge.attest.beacon import LocalBeacon

    source = LocalBeacon.load(key, period_s=period)
    first = max(1, source.info.round_after(int(time.time() * 1000)) - 1)
    for each in itertools.count(first) if number is None else [number]:
        while source.value(each) is None:
            time.sleep(min(1.0, max(0.01, source.info.time_ms(each) / 1000 - time.time())))
        source.publish(out, each)
        if number is not None:
            print(out / "public" / str(each))


def _key(text: str) -> NoteKey:
    from weighbridge.attest import tlog

    try:
        path = Path(text)
        return tlog.parse_key(path.read_text(encoding="ascii").strip() if path.is_file() else text)
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"cannot read a key from {text!r:.200}; name a file or give the key itself") from None
    except tlog.NoteError as error:
        raise UsageError(error.message) from None


def _digest(text: str | None, option: str) -> bytes | None:
    if text is None:
        return None
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != 32:
        raise UsageError(f"{option} takes 64 hexadecimal digits, not {text!r:.80}")
    return value
