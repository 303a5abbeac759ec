"""`weighbridge dispute ...`: two parties disagree about a step; a referee executes one operation and rules."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli._exits import Exit, one_line, print_json
from weighbridge.cli._inputs import Json, Run, read_file, write_file
from weighbridge.cli.replay import require_device
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from weighbridge.attest.manifest import SigningKey
    from weighbridge.execution.dispute.game import Dispute
    from weighbridge.execution.dispute.messages import Message, Ruling

app = typer.Typer(help="Disputes about a step: the first operation that differs is judged.", no_args_is_help=True)

_MAX_FILE = 4 << 30
_File = Annotated[Path, typer.Argument(help="File of the dispute.")]
_Key = Annotated[Path, typer.Option("--key", help="Your private key (`weighbridge rules key FILE` makes one).")]
_Device = Annotated[str, typer.Option("--device", help="Where to execute: cpu, cuda, cuda:1.")]


@app.command(name="open")
def open_(
    run: Run,
    step: Annotated[int, typer.Option("--step", help="The step.")],
    key: _Key,
    out: Annotated[Path, typer.Option("--out", help="File of the dispute; it must not exist yet.")],
    own: Annotated[bool, typer.Option("--own", help="RUN is your own training, not the one that you dispute.")] = False,
    device: _Device = "cpu",
    as_json: Json = False,
) -> None:
    """Open a dispute: execute the step and sign the hash of every leaf, up to where it differs from its record."""
    from weighbridge.execution.dispute import asking, game
    from weighbridge.execution.dispute.messages import START, signed

    if out.exists():
        raise UsageError(f"{out} exists; give another file")
    require_device(device)
    mine = asking.trace(run, step, device=device)
    message = signed(START, game.challenge(mine, step, own=own), _signing(key))
    write_file(out, message.data)
    said = {"leaves": len(mine.leaves), "parted": mine.parted, "bytes": len(message.data)}
    print_json(said) if as_json else print(
        one_line(f"{len(mine.leaves)} leaves of step {step}; " + (mine.parted or "the step came out as recorded"))
    )


@app.command()
def answer(file: _File, run: Run, key: _Key, device: _Device = "cpu", as_json: Json = False) -> None:
    """Add to a dispute what is due from you: your leaf hashes, or the opening of the first leaf that differs."""
    from weighbridge.execution.dispute import asking, game
    from weighbridge.execution.dispute.messages import Challenge, Shown, signed

    require_device(device)
    signing = _signing(key)
    messages = _messages(file)
    dispute = _followed(messages, signing.public)
    party, due = dispute.due()
    if due == "nothing" or signing.public != dispute.parties[party]:
        raise UsageError(f"nothing is due from this key: {due} of the {game.NAMES[party]} is")
    asked = messages[0].content
    assert isinstance(asked, Challenge)
    mine = asking.trace(run, asked.step, place=dispute.leaf, device=device)
    if due == "opening" and mine.opening is None:
        raise UsageError(f"the step ends before leaf {dispute.leaf} here; name the transcript that you claimed it of")
    content = game.answer(mine, asked) if due == "answer" else Shown(opening=mine.opening or b"")
    message = signed(dispute.head, content, signing)
    dispute.take(message)
    _append(file, message)
    said = {"sent": due, "bytes": len(message.data), "leaf": dispute.leaf}
    where = "" if dispute.leaf is None else f"; the first leaf that differs is {dispute.leaf}"
    print_json(said) if as_json else print(f"{due} of {len(message.data)} bytes{where}")


@app.command()
def judge(file: _File, key: _Key, device: _Device = "cpu", as_json: Json = False) -> int:
    """Rule, as the referee: execute the disputed operation in a confined process and say of each claim what it is."""
    from functools import partial

    from weighbridge.execution.dispute import asking
    from weighbridge.execution.dispute.game import Referee
    from weighbridge.execution.dispute.messages import Ruling

    require_device(device)
    messages = _messages(file)
    followed = _followed(messages, b"")
    referee = Referee(followed.parties, _signing(key), judge=partial(asking.judge, device=device))
    for message in messages:
        referee.post(message.data)
    if referee.ruling is None:
        party, due = followed.due()
        raise UsageError(f"the dispute waits for the {due} of party {party}; ask for it, or run it over the network")
    _append(file, referee.ruling)
    assert isinstance(referee.ruling.content, Ruling)
    return _told(referee.ruling.content, as_json, {})


@app.command()
def verify(file: _File, device: _Device = "cpu", as_json: Json = False) -> int:
    """Check a finished dispute offline: signatures, order, and each judgement once more; exit 1 if a claim is false."""
    from dataclasses import replace
    from functools import partial

    from weighbridge.execution.dispute import asking, game

    require_device(device)
    found = game.verify(read_file(file, max_bytes=_MAX_FILE), partial(asking.judge, device=device))
    names = dict(zip(game.NAMES, (key.hex() for key in found.parties), strict=True))
    said: dict[str, Any] = {"agrees": found.agrees, **names, "referee": found.referee.hex()}
    if found.again:  # the reasons that come out here, and not the referee's words
        claims: list[tuple[int, str, str, str]] = [(party, e.verdict, e.code, e.reason) for party, e in found.again]
        ruling = replace(found.ruling, claims=claims if found.agrees else found.ruling.claims)
    else:
        ruling = found.ruling
    code = _told(ruling, as_json, said)
    return code if found.agrees else Exit.FINDINGS


def _told(ruling: Ruling, as_json: bool, more: dict[str, Any]) -> int:
    from weighbridge.execution.dispute.game import NAMES

    claims = [
        {"party": NAMES[party], "verdict": verdict, "code": code, "reason": reason}
        for party, verdict, code, reason in ruling.claims
    ]
    if as_json:
        print_json({"leaf": ruling.leaf, "claims": claims, "sent": list(ruling.sent), **more})
    else:
        for name, value in more.items():
            print(one_line(f"{name}: {value}"))
        for claim in claims:
            print(one_line(f"claim of the {claim['party']}: {claim['verdict']} ({claim['code']}): {claim['reason']}"))
    return Exit.FINDINGS if any(c["verdict"] in ("false", "forfeit") for c in claims) else Exit.NOTHING_FOUND


def _signing(path: Path) -> SigningKey:
    from weighbridge.attest.manifest import load_or_create_key

    if not path.exists():
        raise UsageError(f"there is no key {path}; make it with `weighbridge rules key {path}`")
    return load_or_create_key(path)


def _messages(file: Path) -> list[Message]:
    from weighbridge.execution.dispute.messages import unpack

    return list(unpack(read_file(file, max_bytes=_MAX_FILE)))


def _followed(messages: list[Message], mine: bytes) -> Dispute:
    """Follows the parties' messages; the party that answers is the defender, and `mine` until one did."""
    from weighbridge.execution.dispute.game import Dispute

    dispute = Dispute((messages[0].key, messages[1].key if len(messages) > 1 else mine))
    for message in messages:
        dispute.take(message)
    return dispute


def _append(file: Path, message: Message) -> None:
    with file.open("ab") as stream:
        stream.write(message.data)
        stream.flush()
        os.fsync(stream.fileno())
