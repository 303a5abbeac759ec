"""`weighbridge audit ...`: several auditors replay a transcript's segments, and a referee compares what they found."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli import audit_orders
from weighbridge.cli._bars import steps_bar
from weighbridge.cli._exits import Exit, one_line, print_json
from weighbridge.cli._inputs import Json, read_file, signing_key
from weighbridge.cli.dispute import key_in_hex
from weighbridge.cli.replay import require_device
from weighbridge.core.errors import UsageError, WeighbridgeError

if TYPE_CHECKING:
    from verifier.auditing.case import Case
    from verifier.auditing.claims import Claim
    from verifier.auditing.delivery import Delivered
    from verifier.auditing.plan import Source
    from weighbridge.attest.beacon import FileBeacon
    from weighbridge.core.errors import Finding

app = typer.Typer(
    help="Trainings that are ordered, and audits by many: drawn segments, commitments, and a referee's verdict.",
    no_args_is_help=True,
)
app.command("order")(audit_orders.order)
app.command("accept")(audit_orders.accept)
app.command("delivery")(audit_orders.delivery)

_Case = Annotated[Path, typer.Argument(help="Directory of the audit.")]
_Runs = Annotated[list[Path], typer.Argument(help="Transcript directories.")]
_Key = Annotated[Path, typer.Option("--key", help="Your private key (`weighbridge rules key FILE` makes one).")]
_Beacon = Annotated[Path, typer.Option("--beacon", help="Directory with a beacon's `info` and `public/ROUND`.")]
_Device = Annotated[str, typer.Option("--device", help="Where to execute: cpu, cuda, cuda:1.")]
_Planted = Annotated[
    Path | None, typer.Option("--planted", help="What was planted; by default CASE.planted, beside the audit.")
]


@app.command()
def plan(
    runs: _Runs,
    auditor: Annotated[list[str], typer.Option("--auditor", help="An auditor, as NAME=PUBLIC_KEY in hex.")],
    beacon: _Beacon,
    key: _Key,
    out: Annotated[Path, typer.Option("--out", help="Directory of the audit; it must not exist yet.")],
    copies: Annotated[int, typer.Option("--copies", min=1, help="Auditors of each segment.")] = 2,
    segments: Annotated[int | None, typer.Option("--segments", min=1, help="Segments to draw; by default all.")] = None,
    referee: Annotated[int, typer.Option("--referee", min=0, help="Segments that the referee replays anyway.")] = 1,
    enrol: Annotated[int, typer.Option("--enrol", min=1, help="Seconds until the draw.")] = 3600,
    work: Annotated[int, typer.Option("--work", min=1, help="Seconds from the draw until all have opened.")] = 86400,
    planted: Annotated[
        list[str] | None, typer.Option("--planted", help="One of RUNS that you planted, as RUN=STEP.")
    ] = None,
    order: Annotated[
        list[str] | None, typer.Option("--order", help="The accepted order that one of RUNS is of, as RUN=FILE.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Plan an audit: transcripts, auditors, and the beacon's rounds that will decide."""
    from verifier.auditing.case import Case
    from verifier.auditing.plan import Plan, Planted
    from weighbridge.attest.beacon import FileBeacon, in_utc

    names = [each.partition("=") for each in auditor]
    sources = sorted((_source(run) for run in runs), key=lambda source: source.digest)  # no sign of what was planted
    false = {_source(Path(run)).digest: _number(step) for run, _, step in (p.rpartition("=") for p in planted or ())}
    if not false.keys() <= {source.digest for source in sources}:
        raise UsageError("what you planted must be among the transcripts of the audit; name it there too")
    ordered = [(Path(run), Path(file)) for run, _, file in (each.rpartition("=") for each in order or ())]
    orders = tuple((_source(run).digest, audit_orders.load(file).to_cbor().hex()) for run, file in ordered)
    hidden = Planted(salt=secrets.token_hex(32), steps=false)
    info = FileBeacon(beacon).info
    now = _now()
    first = info.round_after(now + enrol * 1000)
    case = Case.create(
        out,
        Plan(
            sources=tuple(sources),
            auditors=tuple((name, key_in_hex(public).hex()) for name, _, public in names),
            copies=copies,
            drawn=segments or sum(len(source.edges) - 1 for source in sources),
            referee=referee,
            beacon=info.chain.hex(),
            rounds=(first, first + 1, max(first + 2, info.round_after(now + (enrol + work) * 1000))),
            planted=hidden.commitment(),
            orders=orders,
        ),
        signing_key(key),
    )
    _keep(_beside(out), asdict(hidden))
    due = [in_utc(info.time_ms(number)) for number in case.plan.rounds]
    told = {"audit": case.digest.hex(), "rounds": list(case.plan.rounds), "due": due, "segments": case.plan.drawn}
    _tell(told, as_json)


@app.command()
def enrol(case: _Case, beacon: _Beacon, key: _Key, as_json: Json = False) -> None:
    """Enrol in an audit before its draw: your signature says that the plan was there first."""
    from verifier.auditing import parties

    found = _case(case)
    parties.enrol(found, signing_key(key), _open(beacon).info, _now())
    _tell({"audit": found.digest.hex()}, as_json)


@app.command()
def assigned(case: _Case, beacon: _Beacon, as_json: Json = False) -> None:
    """Show who replays which segments, once the draw is out."""
    from verifier.auditing.plan import assignment, value

    found = _case(case)
    drawn = assignment(found.plan, found.digest, value(_open(beacon), found.plan, found.plan.rounds[0]))
    rows: list[dict[str, Any]] = []
    for segment, who in drawn.items():
        source, begin, end = found.plan.segments[segment]
        rows.append(
            {
                "segment": segment, "transcript": source.digest, "name": source.name, "steps": [begin, end],
                "auditors": [found.plan.auditors[number][0] for number in who],
            }
        )  # fmt: skip
    if as_json:
        print_json({"segments": rows})
        return
    for row in rows:
        steps = ":".join(map(str, row["steps"]))
        print(one_line(f"{row['segment']}  steps {steps} of {row['name']}: {', '.join(row['auditors'])}"))


@app.command()
def run(
    case: _Case, runs: _Runs, beacon: _Beacon, key: _Key, device: _Device = "cpu", as_json: Json = False
) -> None:  # fmt: skip
    """Replay the segments that you were drawn for, and commit to what you found; say whether it is what was ordered."""
    from verifier.auditing import parties
    from verifier.auditing.claims import opened_to_json
    from verifier.auditing.delivery import compare

    require_device(device)
    found, places = _case(case), _places(runs)
    left: dict[str, str] = {}
    unordered: list[Finding] = []
    for digest, order in found.plan.ordered.items():
        if digest in places:
            differences = compare(order, _delivered(places, digest), digest)
            unordered += differences
            for each in () if as_json else differences:
                print(one_line(f"{each.severity} {each.id}: {each.message}"))

    def replay(segment: int, keyed: bytes) -> Claim | None:
        claim, why = _replayed(found, places, segment, keyed, device, as_json)
        if claim is None:
            left[str(segment)] = why
        if not as_json:
            print(one_line(f"segment {segment}: {why if claim is None else claim.verdict}"))
        return claim

    kept = _claims_file(key, found)
    made = parties.commit(
        found, signing_key(key), _open(beacon), replay, lambda opened: _keep(kept, opened_to_json(opened))
    )
    if as_json:
        said: dict[str, Any] = {"committed": {str(at): claim.verdict for at, (_, claim) in made.items()}, "left": left}
        if found.plan.orders:
            said["findings"] = [each.to_json() for each in unordered]
        print_json(said)


@app.command(name="close")
def close(case: _Case, beacon: _Beacon, key: _Key, as_json: Json = False) -> None:
    """Close the commitments (the coordinator): from now on auditors open, and no further commitment counts."""
    from verifier.auditing import parties

    found = _case(case)
    names = parties.close(found, signing_key(key), _open(beacon).info, _now())
    _tell({"audit": found.digest.hex(), "committed": names}, as_json)


@app.command(name="open")
def open_(case: _Case, beacon: _Beacon, key: _Key, as_json: Json = False) -> None:
    """Open your commitments, once they are closed and before the referee's share is out."""
    from verifier.auditing import parties
    from verifier.auditing.claims import opened_of

    found = _case(case)
    opened = opened_of(_json(_claims_file(key, found), "name the key that you replayed with"))
    parties.open_claims(found, signing_key(key), _open(beacon).info, _now(), opened)
    _tell({"audit": found.digest.hex(), "opened": len(opened)}, as_json)


@app.command()
def verdict(
    case: _Case, runs: _Runs, beacon: _Beacon, key: _Key, planted: _Planted = None, device: _Device = "cpu",
    as_json: Json = False,
) -> Exit:  # fmt: skip
    """Compare the claims (the referee): replay a random share, and all on which auditors differ."""
    from verifier.auditing.plan import Planted
    from verifier.auditing.verdict import judge

    require_device(device)
    found, signing, places = _case(case), signing_key(key), _places(runs)
    hidden = Planted.from_json(_json(planted or _beside(case), "ask the coordinator for it"))
    said = judge(
        found,
        _open(beacon),
        hidden,
        lambda segment, keyed: _replayed(found, places, segment, keyed, device, as_json)[0],
        lambda digest: _delivered(places, digest),
    )
    found.put("verdict", {name: value for name, value in said.items() if name != "plan"}, signing)
    return _print(said, signing.public, True, as_json)


@app.command()
def verify(case: _Case, beacon: _Beacon, as_json: Json = False) -> Exit:
    """Recompute a verdict from the statements; only the referee's replays are taken as it signed them."""
    from verifier.auditing.verdict import judge_again

    statement, agrees = judge_again(_case(case), _open(beacon))
    return _print(statement.predicate, statement.signer, agrees, as_json)


@app.command()
def plant(
    run: Annotated[Path, typer.Argument(help="Transcript of a run of your own that auditors have never seen.")],
    out: Annotated[Path, typer.Argument(help="Where the false copy goes; it must not exist yet.")],
    step: Annotated[int, typer.Option("--step", min=0, help="The step to make false.")],
    key: _Key,
) -> None:
    """Make a transcript that is false in one step, to see whether auditors find it."""
    from verifier.auditing import planting

    planting.plant(run, out, step, signing_key(key))
    print(f"{out} is false in step {step}; plan it with --planted {out}={step}")


def _source(run: Path) -> Source:
    """Returns a transcript as a plan names it; of what a Prover sent, only the signed manifest is read."""
    from verifier.auditing.plan import Source
    from weighbridge.core.bounded import DEFAULT_LIMITS
    from weighbridge.transcript.files import read_manifest

    manifest = read_manifest(run, DEFAULT_LIMITS)
    edges = sorted({0, *(c for c in manifest.checkpoints if c < manifest.steps), manifest.steps})
    text = read_file(run / "manifest.json")
    return Source(
        name=manifest.name, sha256=hashlib.sha256(text).hexdigest(), digest=manifest.digest, edges=tuple(edges)
    )


def _places(runs: list[Path]) -> dict[str, Path]:
    """Returns where each transcript lies, by its identifier."""
    return {_source(run).digest: run for run in runs}


def _delivered(places: dict[str, Path], digest: str) -> Delivered | None:
    """Returns what an ordered transcript says of itself, if it is here and can be read."""
    from verifier.auditing.delivery import delivered

    try:
        return delivered(places[digest]) if digest in places else None
    except WeighbridgeError:
        return None


def _replayed(
    case: Case, places: dict[str, Path], segment: int, key: bytes, device: str, quiet: bool
) -> tuple[Claim | None, str]:  # fmt: skip
    """Replays a segment in a confined worker; returns what is to be claimed, or why nothing is."""
    from verifier.auditing.claims import claim_of
    from weighbridge.execution.replay import replay

    source, begin, end = case.plan.segments[segment]
    if source.digest not in places:
        return None, f"{source.name} is not here"
    try:
        with steps_bar(f"segment {segment}", quiet=quiet) as advance:
            result = replay(
                places[source.digest], steps=(begin, end), device=device, progress=advance, work_key=key
            )  # fmt: skip
    except WeighbridgeError as error:
        return None, error.message
    claim = claim_of(result, begin, end)
    return claim, "" if claim is not None else "the replay did not get to the segment; get its checkpoint"


def _print(said: dict[str, Any], referee: bytes, agrees: bool, as_json: bool) -> Exit:
    """Prints a verdict; work is told as work."""
    code = Exit.FINDINGS if not agrees or said.get("findings") else Exit.NOTHING_FOUND
    if as_json:
        print_json({"referee": referee.hex(), "agrees": agrees, **said})
        return code
    if not agrees:
        print("the statements do not give this verdict; nothing in it counts")
        return code
    from verifier.auditing.telling import lines

    for line in lines(said):
        print(one_line(line))
    print(f"referee: {referee.hex()}")
    return code


def _case(path: Path) -> Case:
    from verifier.auditing.case import Case

    return Case(path)


def _open(beacon: Path) -> FileBeacon:
    from weighbridge.attest.beacon import FileBeacon

    return FileBeacon(beacon)


def _beside(case: Path) -> Path:
    return case.with_name(case.name + ".planted")


def _claims_file(key: Path, case: Case) -> Path:
    return key.with_name(f"{key.name}.{case.digest.hex()[:16]}.claims")


def _keep(path: Path, value: Any) -> None:
    """Writes a secret so that only its owner may read it."""
    try:
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}); make its directory writable") from None


def _number(text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"--planted takes RUN=STEP, and {text!r} is no step")
    return int(text)


def _json(path: Path, advice: str) -> Any:
    from weighbridge.core.bounded import decode_json

    return decode_json(read_file(path, advice))


def _now() -> int:
    return int(time.time() * 1000)


def _tell(said: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(said)
        return
    for name, each in said.items():
        print(one_line(f"{name}: {', '.join(str(one) for one in each) if isinstance(each, list) else each}"))
