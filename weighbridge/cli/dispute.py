"""`weighbridge dispute ...`: two parties disagree about a step; a referee executes one operation and rules."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli import dispute_memory, sealed_dispute
from weighbridge.cli._exits import Exit, counted, one_line, print_json
from weighbridge.cli._inputs import Json, Run, read_file, require_transcript, signing_key, write_file
from weighbridge.cli.replay import require_device
from weighbridge.core.errors import UsageError, WeighbridgeError

if TYPE_CHECKING:
    from weighbridge.execution.dispute.client import RefereeClient
    from weighbridge.execution.dispute.game import Dispute
    from weighbridge.execution.dispute.messages import Challenge, Course, Message, Ruling

app = typer.Typer(help="Disputes about a step: the first operation that differs is judged.", no_args_is_help=True)

app.add_typer(sealed_dispute.app, name="sealed")
app.command(name="memory")(dispute_memory.memory)

_MAX_FILE = 4 << 30
_DUE = {
    "course": "the digests of all states",
    "range": "the range in which they differ",
    "challenge": "the challenge",
    "answer": "the answer",
    "parts": "the parts of the result that differs",
    "opening": "the opening of what differs",
    "doubt": "a node that differs, or its consent",
    "layer": "the layers below that node",
}
_File = Annotated[Path, typer.Argument(help="File of the dispute.")]
_Key = Annotated[Path, typer.Option("--key", help="Your private key (`weighbridge rules key FILE` makes one).")]
_Referee = Annotated[
    str | None, typer.Option("--referee", envvar="WEIGHBRIDGE_REFEREE", help="The referee's host:port.")
]
_Credentials = Annotated[
    Path | None,
    typer.Option("--credentials", envvar="WEIGHBRIDGE_CREDENTIALS", help="With a referee: directory of your own."),
]
_Case = Annotated[str, typer.Argument(help="File of the dispute; with a referee, the dispute's name.")]
_Supplements = Annotated[
    list[Path] | None,
    typer.Option("--supplement", help="Show a supplement of the step that the other party signed, with its tree."),
]
_Device = Annotated[str, typer.Option("--device", help="Where to execute: cpu, cuda, cuda:1.")]


@app.command(name="open")
def open_(
    run: Run,
    key: _Key,
    step: Annotated[
        int | None, typer.Option("--step", help="The step; with --own it may be left to the dispute to find.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File of the dispute; it must not exist yet.")] = None,
    own: Annotated[bool, typer.Option("--own", help="RUN is your own training, not the one that you dispute.")] = False,
    defender: Annotated[
        str | None, typer.Option("--defender", help="With a referee: the defender's public key, in hex.")
    ] = None,
    referee: _Referee = None,
    credentials: _Credentials = None,
    supplement: _Supplements = None,
    device: _Device = "cpu",
    as_json: Json = False,
) -> None:
    """Open a dispute: execute the step and sign the hash of every leaf, up to where it differs from its record.

    Without a step, sign the digests of all states of your own training; the defender's answer names the step.
    """
    from weighbridge.execution.dispute import asking, moves, ranges
    from weighbridge.execution.dispute.confidential import require_open
    from weighbridge.execution.dispute.messages import START, signed

    if step is None and not own:
        raise UsageError("a record that you dispute is of one step; give --step, or --own for your own training")
    if (out is None) == (referee is None):
        raise UsageError("a dispute is a file or a referee's; give either --out or --referee")
    if out is not None and out.exists():
        raise UsageError(f"{out} exists; give another file")
    answering = None if referee is None else key_in_hex(defender or "")
    signing = signing_key(key)
    require_transcript(run)
    require_device(device)
    said: dict[str, Any] = {}
    content: Course | Challenge
    if step is None:
        course = asking.course(run)
        content = ranges.spoken(course)
        said["steps"] = len(asking.split(course.states))
        told = f"the states after {said['steps']} steps"
    else:
        mine = asking.trace(run, step, device=device)
        if own:
            moves.require_own(mine)
        content = moves.challenge(mine, step, own=own, supplements=statements(supplement))
        said |= {"leaves": len(mine.leaves), "parted": mine.parted}
        told = f"{counted(len(mine.leaves), 'leaf', 'leaves')} of step {step}; " + (
            mine.parted or "the step came out as recorded"
        )
    require_open(content.terms)
    message = signed(START, content, signing)
    said["bytes"] = len(message.data)
    if out is not None:
        write_file(out, message.data)
    elif answering is not None:
        with connected(referee, credentials) as service:
            said["dispute"], said["merged"] = service.open(message, answering, signing)
    if as_json:
        print_json(said)
        return
    print(one_line(told))
    if "dispute" in said:
        print(("joined dispute " if said["merged"] else "dispute ") + said["dispute"])


@app.command()
def answer(
    case: _Case,
    run: Run,
    key: _Key,
    referee: _Referee = None,
    credentials: _Credentials = None,
    supplement: _Supplements = None,
    decline: Annotated[
        bool, typer.Option("--decline", help="Answer with nothing, as your run is confidential: no party loses by it.")
    ] = False,
    root: Annotated[
        Path | None,
        typer.Option("--root", help="About a chip's memory: PEM file of the chips' root, under which one has to sign."),
    ] = None,
    device: _Device = "cpu",
    as_json: Json = False,
) -> None:
    """Add to a dispute what is due from you: states, leaf hashes, or the opening of the first leaf that differs."""
    from weighbridge.execution.dispute import asking, game, moves, ranges
    from weighbridge.execution.dispute.confidential import require_open
    from weighbridge.execution.dispute.messages import Challenge, Content, Parts, Shown, signed

    require_device(device)
    signing = signing_key(key)
    dispute = _followed(*_said(case, referee, credentials, signing.public))
    party, due = dispute.due()
    if due == "nothing":
        raise UsageError("nothing is due from either party; have the referee rule (`weighbridge dispute judge`)")
    if signing.public != dispute.parties[party]:
        raise UsageError(f"nothing is due from this key, but from the {game.NAMES[party]} ({_DUE[due]})")
    content: Content
    other = ""
    if dispute.memory is None and not decline:
        require_transcript(run)
    if decline:
        content = moves.declined(due)
    elif dispute.memory is not None:
        dispute_memory.require_signed(dispute.messages[0], root)
        content = dispute_memory.reply(dispute.memory, run)
    elif due in ("course", "range"):
        course = asking.course(run)
        require_open(course.terms)
        place = dispute.disputed_range
        content = ranges.spoken(course) if place is None else ranges.range_of(course, place)
        other = moves.other_tables(course.terms, dispute.messages) if due == "course" else ""
    else:
        assert dispute.step is not None
        mine: asking.Traced | None = None
        try:
            mine = asking.trace(run, dispute.step, place=dispute.leaf, part=dispute.part, device=device)
        except WeighbridgeError as error:
            if due != "answer" or error.reason != asking.NOT_DISPUTED:
                raise
        if mine is not None:
            require_open(mine.terms)
        other = "" if mine is None else moves.other_tables(mine.terms, dispute.messages)
        if mine is not None and due in ("answer", "challenge"):
            moves.require_own(mine)
        if due == "opening" and (mine is None or mine.opening is None):
            raise UsageError(
                f"the step ends before leaf {dispute.leaf} here; give the transcript that you claimed it of"
            )
        asked = next((each.content for each in dispute.messages if isinstance(each.content, Challenge)), None)
        if mine is not None and (due == "parts" or (due == "opening" and mine.parts and not dispute.narrowing_over)):
            content, due = Parts(leaf=mine.leaf, parts=mine.parts), "parts"
        elif due == "opening":
            content = Shown(opening=(mine and mine.opening) or b"")
        elif asked is not None:
            content = moves.answer(mine, asked, statements(supplement))
        else:
            assert mine is not None
            content = moves.challenge(mine, dispute.step, own=True, supplements=statements(supplement))
    if other:
        print(f"weighbridge: {one_line(other)}", file=sys.stderr)
    message = signed(dispute.head, content, signing)
    dispute.take(message)
    if referee is None:
        _append(Path(case), message)
    else:
        with connected(referee, credentials) as service:
            service.post(case, message.data)
    said = {"sent": due, "bytes": len(message.data), "step": dispute.step, "leaf": dispute.leaf, "other_tables": other}
    if as_json:
        print_json(said)
    elif dispute.memory is not None:
        print(one_line(dispute_memory.sent(dispute.memory, due, len(message.data))))
    else:
        print(_sent(dispute, due, len(message.data)))


def _sent(dispute: Dispute, due: str, size: int) -> str:
    """Says what was sent in a dispute about a step, and how that stands now."""
    if due in ("course", "range"):
        if dispute.apart:
            stands = (
                "there is no step to dispute, as the courses are equal, or they part in what a step begins with, or at "
                "a step that cannot be disputed; have the referee rule"
            )
        elif dispute.step is None:
            stands = f"the courses part in range {dispute.disputed_range}"
        else:
            stands = f"the courses part at step {dispute.step}"
        return f"{due}, {size} bytes; {stands}"
    if not dispute.common:
        stands = "; the records of the step differ, or there is none to answer with"
    elif dispute.equal:
        stands = "; both name the same leaves"
    else:
        stands = "" if dispute.leaf is None else f"; the first leaf that differs is {dispute.leaf}"
    return f"{due} of step {dispute.step}, {size} bytes{stands}"


@app.command()
def show(
    case: _Case,
    referee: _Referee = None,
    credentials: _Credentials = None,
    out: Annotated[Path | None, typer.Option("--out", help="With a referee: write the dispute as a file.")] = None,
    as_json: Json = False,
) -> int:
    """Show whose turn it is, or the ruling as the referee wrote it; `verify` checks it. Exit 1 if a claim is false."""
    from weighbridge.execution.dispute import game
    from weighbridge.execution.dispute.messages import Ruling, pack

    messages, parties = _said(case, referee, credentials, b"")
    if out is not None:
        write_file(out, pack(messages))
    last = messages[-1].content
    used = None
    if referee is not None:
        with connected(referee, credentials) as service:
            used = list(service.standing(case).used)
    named = dict(zip(game.NAMES, (each.hex() for each in parties), strict=True))
    if isinstance(last, Ruling):
        return _told(last, as_json, named | {"referee": messages[-1].key.hex(), "used": list(last.seconds)})
    party, due = _followed(messages, parties).due()
    whose = "referee" if due == "nothing" else game.NAMES[party]
    said = {"waits_for": whose, "due": due, "messages": len(messages), "used": used, **named}
    print_json(said) if as_json else print(
        f"{counted(len(messages), 'message')}; next is the {whose}" + f", {due}" * (whose != "referee")
    )
    return Exit.NOTHING_FOUND


@app.command()
def judge(file: _File, key: _Key, device: _Device = "cpu", as_json: Json = False) -> int:
    """Rule, as the referee: execute the disputed operation in a confined process and say of each claim what it is."""
    from functools import partial

    from weighbridge.execution.dispute import asking
    from weighbridge.execution.dispute.messages import Ruling
    from weighbridge.execution.dispute.refereeing import Referee

    require_device(device)
    messages = _messages(file)
    followed = _followed(messages, _parties(messages, b""))
    referee = Referee(followed.parties, signing_key(key), judge=partial(asking.judge, device=device))
    for message in messages:
        referee.post(message.data)
    if referee.ruling is None:
        party, due = followed.due()
        raise UsageError(f"the dispute waits for the {due} of party {party}; ask for it, or run it over the network")
    _append(file, referee.ruling)
    assert isinstance(referee.ruling.content, Ruling)
    return _told(referee.ruling.content, as_json, {})


@app.command()
def verify(
    file: _File,
    root: Annotated[
        Path | None,
        typer.Option("--root", help="PEM file of the launchers' authority (of a sealed dispute) or of the chips'."),
    ] = None,
    device: _Device = "cpu",
    as_json: Json = False,
) -> int:
    """Check a finished dispute offline: signatures, order, and each judgement once more; exit 1 if a claim is false.

    Of a sealed one no judgement can be repeated: it says what follows from the file, and what the worker alone
    supports.
    """
    from dataclasses import replace
    from functools import partial

    from weighbridge.attest.sealed_ruling import is_sealed
    from weighbridge.execution.dispute import asking, game, refereeing

    data = read_file(file, max_bytes=_MAX_FILE)
    if is_sealed(data):
        return sealed_dispute.verify_file(data, root, as_json=as_json)
    require_device(device)
    found = refereeing.verify(data, partial(asking.judge, device=device))
    names = dict(zip(game.NAMES, (key.hex() for key in found.parties), strict=True))
    said: dict[str, Any] = {"agrees": found.agrees, **names, "referee": found.referee.hex()}
    said |= dispute_memory.about(data, root)
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


def statements(files: list[Path] | None) -> list[bytes]:
    """Returns the signed statements of supplements, which are shown without their logs."""
    from weighbridge.transcript.supplements import read_statement

    try:
        return [read_statement(each)[2] for each in files or []]
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read ({error.strerror}); give the file of a supplement") from None


def _messages(file: Path) -> list[Message]:
    from weighbridge.execution.dispute.messages import unpack

    _require_ordinary(file)
    return list(unpack(read_file(file, max_bytes=_MAX_FILE)))


def _require_ordinary(file: Path) -> None:
    """Checks that a file is not that of a sealed dispute, which has no messages.

    Raises:
        UsageError: It is.
    """
    from weighbridge.attest.sealed_ruling import is_sealed

    with file.open("rb") if file.is_file() else open(os.devnull, "rb") as start:
        if is_sealed(start.read(1)):
            raise UsageError(f"{file} is a sealed dispute, which is over; `weighbridge dispute verify` reads it")


def _said(
    case: str, referee: str | None, credentials: Path | None, mine: bytes
) -> tuple[list[Message], tuple[bytes, bytes]]:
    """Returns a dispute's messages and parties, from its file or from the referee."""
    if referee is None:
        messages = _messages(Path(case))
        return messages, _parties(messages, mine)
    with connected(referee, credentials) as service:
        return service.messages(case), service.standing(case).parties


def _parties(messages: list[Message], mine: bytes) -> tuple[bytes, bytes]:
    """Returns the parties of a file; the party that answers is the defender, and `mine` until one did."""
    return messages[0].key, messages[1].key if len(messages) > 1 else mine


def _followed(messages: list[Message], parties: tuple[bytes, bytes]) -> Dispute:
    """Follows the parties' messages."""
    from weighbridge.execution.dispute.game import Dispute

    dispute = Dispute(parties)
    for message in messages:
        dispute.take(message)
    return dispute


def connected(referee: str | None, credentials: Path | None) -> RefereeClient:
    """Returns a client of a referee's service, to be entered."""
    from weighbridge.attest.identity import Credentials
    from weighbridge.execution.dispute.client import RefereeClient

    if referee is None or credentials is None:
        raise UsageError("a referee is called with --referee and --credentials")
    return RefereeClient(referee, Credentials.load(credentials))


def key_in_hex(text: str) -> bytes:
    """Returns a raw public key of 32 bytes.

    Raises:
        UsageError: The text is none.
    """
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 32:
        raise UsageError("a party's public key is 64 hexadecimal digits; `weighbridge rules key FILE` prints it")
    return found


def _append(file: Path, message: Message) -> None:
    with file.open("ab") as stream:
        stream.write(message.data)
        stream.flush()
        os.fsync(stream.fileno())
