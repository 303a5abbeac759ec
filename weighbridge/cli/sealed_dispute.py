"""`weighbridge dispute sealed ...`: a dispute whose referee is a sealed worker, party by party."""

from __future__ import annotations

import os
import re
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weighbridge.cli._exits import Exit, counted, one_line, print_json
from weighbridge.cli._inputs import (
    Json,
    Run,
    gib,
    in_hex,
    list_beside,
    read_file,
    read_private,
    require_different,
    write_file,
    write_private,
)
from weighbridge.cli.replay import require_device
from weighbridge.core.decisions import decide
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from weighbridge.attest.manifest import SigningKey
    from weighbridge.attest.sealed_dispute import Admission, DisputeTerms

app = typer.Typer(
    help="Disputes of confidential runs: a sealed worker is the referee, and one ruling leaves.", no_args_is_help=True
)

_TermsFile = Annotated[Path, typer.Option("--terms", help="The terms, as `terms` wrote them.")]
_SubjectFile = Annotated[
    Path, typer.Option("--subject", help="What opens the disputed step; both parties' alone (`terms` writes it).")
]
_Seats = Annotated[list[Path], typer.Option("--seat", help="A party's seat; give both.")]
_SLOWER = 2
"""The worker may take so many times as long for a run as its party's machine did."""
_TRANSCRIPT = re.compile(r"([0-9a-f]{64}):([0-9a-f]{64})")
_Out = Annotated[Path, typer.Option("--out", help="The file to write.")]


@app.command()
def transcript(run: Run) -> None:
    """Print what names a transcript in terms: the digest of its manifest, and the key that signed it."""
    print(":".join(each.hex() for each in _named(str(run))))


@app.command()
def terms(
    step: Annotated[int, typer.Option("--step", help="The step that is disputed; the terms only commit to it.", min=0)],
    challenger: Annotated[str, typer.Option("--challenger", help="The challenger's public key, in hex.")],
    defender: Annotated[str, typer.Option("--defender", help="The defender's public key, in hex.")],
    defender_transcript: Annotated[
        str,
        typer.Option(
            "--defender-transcript", help="The transcript that the defender stands by: a copy, or as `transcript` says."
        ),
    ],
    measurement: Annotated[str, typer.Option("--measurement", help="Of the image, in hex (`site image` prints it).")],
    site: Annotated[str, typer.Option("--site", help="UEID of the launcher that is to start the worker, in hex.")],
    subject: Annotated[Path, typer.Option("--subject", help="File for what opens the step, for the parties alone.")],
    out: _Out,
    name: Annotated[str, typer.Option("--name", help="What the dispute is called in both parties' books.")],
    challenger_transcript: Annotated[
        str | None,
        typer.Option(
            "--challenger-transcript",
            help="Likewise the challenger's own training; without, it disputes the defender's by a copy.",
        ),
    ] = None,
    attempt: Annotated[int, typer.Option("--attempt", help="Starts of this dispute that came before.", min=0)] = 0,
    clock: Annotated[
        int, typer.Option("--clock", help="Seconds after the attestation that each party has for its files.", min=1)
    ] = 3600,
    run_seconds: Annotated[
        int, typer.Option("--run-seconds", help="Seconds that each party's run and claim may take the worker.", min=1)
    ] = 1500,
    run_memory: Annotated[
        float, typer.Option("--run-memory", help="GiB that the storages of each party's steps may have.", min=0.01)
    ] = 1.0,
    inputs: Annotated[float, typer.Option("--inputs", help="GiB that each party's files may have.", min=0.001)] = 1.0,
    leaves_after: Annotated[
        int, typer.Option("--leaves-after", help="Seconds after the attestation at which the ruling leaves.", min=2)
    ] = 7200,
    show_class: Annotated[
        bool, typer.Option("--show-class", help="Have the ruling name the class of the operation that was judged.")
    ] = False,
    dispute_bits: Annotated[int, typer.Option("--dispute-bits", help="Bits that this dispute may disclose.")] = 30,
    year_bits: Annotated[int, typer.Option("--year-bits", help="Bits that a year may disclose.")] = 1000,
) -> None:
    """Make terms for both parties to sign: who, which step and transcripts, where, within what, and what may leave."""
    from weighbridge.attest.sealed_dispute import DisputeTerms
    from weighbridge.attest.sealed_ruling import bits
    from weighbridge.attest.sealed_subject import Subject
    from weighbridge.cli.dispute import key_in_hex

    require_different(subject, out)
    theirs = _named(defender_transcript)
    mine = theirs if challenger_transcript is None else _named(challenger_transcript)
    opens = Subject(step=step, blind=secrets.token_bytes(32), challenger=mine[0], defender=theirs[0])
    made = DisputeTerms(
        dispute=name, attempt=attempt, challenger=key_in_hex(challenger), defender=key_in_hex(defender),
        challenger_signer=mine[1], defender_signer=theirs[1], subject=opens.commitment,
        measurement=in_hex(measurement, "--measurement"), site=in_hex(site, "--site"), clock_s=clock,
        inputs=gib(inputs, "--inputs"), memory=gib(run_memory, "--run-memory"), run_s=run_seconds,
        leaves_after_s=leaves_after, shows_class=show_class, dispute_bits=dispute_bits, year_bits=year_bits,
    )  # fmt: skip
    write_private(subject, opens.to_bytes())
    write_file(out, made.to_cbor())
    print(f"terms {made.digest.hex()}: compare this with the other party's")
    print(f"the ruling discloses at most {bits(made)} bits about secrets; send {subject} to the other party alone")


@app.command()
def show(terms_file: _TermsFile, as_json: Json = False) -> None:
    """Show terms: read them before you take a seat."""
    from weighbridge.attest.sealed_ruling import bits

    made = _terms(terms_file)
    said: dict[str, object] = {"digest": made.digest.hex(), "bits_at_most": bits(made)}
    for each in made.__slots__:
        value = getattr(made, each)
        said[each] = value.hex() if isinstance(value, bytes) else value
    if as_json:
        print_json(said)
    for key, value in [] if as_json else said.items():
        print(one_line(f"{key}: {value}"))


@app.command()
def gather(
    run: Run,
    terms_file: _TermsFile,
    subject: _SubjectFile,
    out: Annotated[Path, typer.Option("--out", help="Directory to make; it holds secrets.")],
    theirs: Annotated[
        bool, typer.Option("--theirs", help="As the challenger: RUN is a copy of the run that you dispute, not yours.")
    ] = False,
    supplement: Annotated[
        list[Path] | None,
        typer.Option("--supplement", help="Show a supplement of the step that the other party signed, with its tree."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="Where to execute: cpu, cuda, cuda:1.")] = "cpu",
) -> None:
    """Execute the step, and gather what the worker gets: your claim, the hash of every leaf, and your run.

    Refused is what the terms do not allow, as a party whose run exceeds them in the worker forfeits.
    """
    from weighbridge.attest.sealed_subject import Subject
    from weighbridge.cli.dispute import statements
    from weighbridge.execution import worker_process
    from weighbridge.execution.dispute import asking, moves, recorded, sealed_files

    opens, made = read_private(subject), _terms(terms_file)
    found = Subject.opened(opens, made)
    if found is None:
        raise UsageError(f"{subject} opens the subject of other terms; ask the other party for the right one")
    require_device(device)
    if _named(str(run))[0] not in ((found.defender,) if theirs else (found.challenger, found.defender)):
        raise UsageError(f"the terms are of other transcripts than {run}; with it you would forfeit")
    limits = worker_process.Limits(memory=made.memory, seconds=made.run_s)
    worker_process.prepare()
    began = time.monotonic()
    needed = recorded.recorded(run, found.step, limits=limits)
    mine = asking.trace(run, found.step, device=device, limits=limits)
    seconds = time.monotonic() - began
    if not theirs:
        moves.require_own(mine)
    if needed.needs > made.memory:
        raise UsageError(f"the run needs {needed.needs} bytes, and the terms allow {made.memory}; agree on more")
    if needed.shows > sealed_files.MAX_SHOWN:
        raise UsageError(
            f"an operation of the step has operands of {needed.shows} bytes, and a sealed referee takes "
            f"{sealed_files.MAX_SHOWN}; dispute it openly"
        )
    if _SLOWER * seconds > made.run_s:
        raise UsageError(
            f"the run takes {seconds:.0f} s here, and the terms allow {made.run_s} on a machine that may be slower; "
            "agree on more"
        )
    claim = moves.challenge(mine, found.step, own=not theirs, supplements=statements(supplement))
    sealed_files.gather(out, run, claim, opens)
    told = mine.parted or "the step came out as recorded"
    print(one_line(f"{counted(len(mine.leaves), 'leaf', 'leaves')} of step {found.step}; {told}"))
    print(f"{out} is what the worker gets; keep it secret")


@app.command()
def seat(
    inputs: Annotated[Path, typer.Argument(help="Your files, as `gather` made them.")],
    terms_file: _TermsFile,
    key: Annotated[Path, typer.Option("--key", help="Your private key, which the terms name.")],
    sealed_key: Annotated[Path, typer.Option("--sealed-key", help="Your key of sealed jobs; made if missing.")],
    book: Annotated[Path, typer.Option("--book", help="Your book of what was disclosed; begun if there is none.")],
    out: _Out,
    dispute_bits: Annotated[
        int | None, typer.Option("--dispute-bits", help="Allow a dispute no more than so many bits.", min=0)
    ] = None,
    year_bits: Annotated[
        int | None, typer.Option("--year-bits", help="Allow 365 days no more than so many bits.", min=0)
    ] = None,
) -> None:
    """Take your seat: charge your book, commit to your files, and sign. From here on, silence is forfeit."""
    from weighbridge.attest.disclosure import DisclosureBook
    from weighbridge.attest.sealed_channel import ProverKey
    from weighbridge.attest.sealed_dispute import PARTIES, Seat
    from weighbridge.attest.sealed_list import commitment
    from weighbridge.attest.sealed_ruling import start_of
    from weighbridge.execution.dispute.sealed_files import listed

    require_different(terms_file, key, sealed_key, book, out, list_beside(out))
    if os.path.lexists(out):
        raise UsageError(f"{out} is there already; a seat is of one start, so choose another file")
    made, signing = _terms(terms_file), _signing(key)
    if signing.public not in map(made.key_of, PARTIES):
        raise UsageError("the terms name neither party by this key; name the right key file")
    files = listed(inputs)
    if (size := sum(each.size for each in files.files)) > made.inputs:
        raise UsageError(f"your files have {size} bytes, and the terms allow {made.inputs}; agree on more")
    found = Seat.take(
        made, signing, nonce=secrets.token_bytes(32), key=ProverKey.load(sealed_key).public,
        commitment=commitment(files.to_cbor()),
    )  # fmt: skip
    beside = Path(os.path.realpath(key))
    if not decide(beside.with_name(beside.name + ".seated"), made.digest, found.commitment):
        raise UsageError("you took another seat under these terms, and could choose a ruling; agree on new terms")
    start = start_of(made)
    allowed = (start.most if dispute_bits is None else dispute_bits, start.year if year_bits is None else year_bits)
    keeper = DisclosureBook(book, inspection_bits=allowed[0], year_bits=allowed[1])
    try:
        left = keeper.charge_start(start, int(time.time() * 1000))
    except OSError as error:
        raise UsageError(f"cannot write the book {book} ({error.strerror}); choose another place") from None
    write_private(list_beside(out), files.to_cbor())
    write_file(out, found.to_cbor())
    print(f"seat of the {found.party}, for {len(files.files)} files; {left} bits are left of the year's")
    print(f"send {out} to the other party and to the site; keep {list_beside(out)} secret")


@app.command()
def send(
    inputs: Annotated[Path, typer.Argument(help="Your files, as `gather` made them.")],
    terms_file: _TermsFile,
    seats: _Seats,
    own: Annotated[Path, typer.Option("--own", help="Your seat, with its list beside it.")],
    sealed_key: Annotated[Path, typer.Option("--sealed-key", help="Your key of sealed jobs.")],
    attestation: Annotated[Path, typer.Option("--attestation", help="The worker's attestation, from the site.")],
    root: Annotated[Path, typer.Option("--root", help="PEM file of the authority that vouches for launchers.")],
    out: Annotated[Path, typer.Option("--out", help="File for the site: your files, encrypted to this worker.")],
) -> None:
    """Check the worker's attestation, and encrypt your files to this worker."""
    from weighbridge.attest.certificates import load_certificate
    from weighbridge.attest.sealed_channel import ProverKey
    from weighbridge.attest.sealed_dispute import Seat
    from weighbridge.attest.sealed_list import SealedList
    from weighbridge.attest.sealed_ruling import attested_at

    if not sealed_key.is_file():
        raise UsageError(f"there is no key {sealed_key}; name the one of your seat")
    admission = admission_of(terms_file, seats)
    made, order = _terms(terms_file), admission.order()
    mine, files = Seat.from_cbor(read_file(own), made), SealedList.from_cbor(read_private(list_beside(own)))
    if mine.to_cbor() not in (admission.challenger, admission.defender):
        raise UsageError(f"{own} is none of the two seats; name your own seat of this start")
    attested = attested_at(read_file(attestation), made, order, load_certificate(read_file(root)))
    worker = attested.worker
    channel = order.challenger_terms(worker) if mine.party == "challenger" else order.terms(worker)
    beside = Path(os.path.realpath(own))
    if not decide(beside.with_name(beside.name + ".given"), made.digest, order.digest + worker):
        raise UsageError("your files were given to another worker already; agree on another start")
    partial = out.with_name(out.name + ".partial")
    try:
        with partial.open("wb") as sink:
            ProverKey.load(sealed_key).send(sink, channel, files, inputs)
        partial.replace(out)
    except OSError as error:
        raise UsageError(f"cannot write {out} ({error.strerror}); choose another place") from None
    print(f"worker {worker.hex()} is start {attested.index} of launcher {attested.launcher.hex()}")
    print(f"give {out} to the site")


def verify_file(data: bytes, root: Path | None, *, as_json: bool) -> int:
    """Checks the file of a sealed dispute, prints what it says and who supports it, and returns the exit code.

    Args:
        data: The file.
        root: PEM file of the authority that vouches for launchers.
        as_json: Whether a program asks.

    Raises:
        UsageError: No authority is named.
        WeighbridgeError: The file is not what it says.
    """
    from dataclasses import asdict

    from weighbridge.attest import sealed_ruling
    from weighbridge.attest.certificates import load_certificate
    from weighbridge.attest.sealed_dispute import PARTIES

    if root is None:
        raise UsageError("this is a sealed dispute; name the authority of launchers (--root authority.pem)")
    found = sealed_ruling.SealedDispute.from_cbor(data)
    made, ruling, attested = found.verified(load_certificate(read_file(root)))
    rows = [asdict(each) for each in sealed_ruling.ledger(made)]
    claims = [
        {"party": party, "verdict": verdict}
        for party, verdict in zip(PARTIES, (ruling.challenger, ruling.defender), strict=True)
        if verdict != "none"
    ]
    code = Exit.FINDINGS if any(each["verdict"] in ("false", "forfeit") for each in claims) else Exit.NOTHING_FOUND
    said = {
        "sealed": True, "status": ruling.status, "claims": claims,
        "operation": ruling.operation, "challenger": made.challenger.hex(), "defender": made.defender.hex(),
        "dispute": made.dispute, "attempt": made.attempt, "order": ruling.order.hex(),
        "launcher": attested.launcher.hex(),
        "measurement": made.measurement.hex(), "start": attested.index, "follows": list(sealed_ruling.FOLLOWS),
        "only_the_sealed_worker_supports": list(sealed_ruling.ONLY_SEALED),
        "disclosed": {"bits_at_most": sealed_ruling.bits(made), "bytes": len(found.ruling), "ledger": rows},
    }  # fmt: skip
    if as_json:
        print_json(said)
        return code
    for name in ("dispute", "status", "challenger", "defender", "launcher", "measurement"):
        print(one_line(f"{name}: {said[name]}"))
    for each in claims:
        print(f"claim of the {each['party']}: {each['verdict']}")
    if ruling.operation != "none":
        print(f"class of the operation: {ruling.operation}")
    print(f"{len(found.ruling)} bytes left, with at most {sealed_ruling.bits(made)} bits about secrets")
    print("this follows:", *sealed_ruling.FOLLOWS, sep="\n  ")
    print("only the sealed worker supports:", *sealed_ruling.ONLY_SEALED, sep="\n  ")
    return code


def admission_of(terms_file: Path, seats: list[Path]) -> Admission:
    """Returns terms and both seats, whichever order they are named in.

    Raises:
        UsageError: They are not one of each party.
        SealedDisputeError: One is none, or not signed for these terms.
    """
    from weighbridge.attest.sealed_dispute import PARTIES, Admission, Seat

    made = _terms(terms_file)
    found = {Seat.from_cbor(data, made).party: data for data in map(read_file, seats)}
    if len(seats) != len(PARTIES) or set(found) != set(PARTIES):
        raise UsageError("a dispute has a seat of each party; give --seat twice")
    return Admission(terms=made.to_cbor(), challenger=found["challenger"], defender=found["defender"])


def _terms(path: Path) -> DisputeTerms:
    from weighbridge.attest.sealed_dispute import DisputeTerms

    return DisputeTerms.from_cbor(read_file(path))


def _named(transcript: str) -> tuple[bytes, bytes]:
    """Returns the digest of a transcript's manifest, and the key that signed it; from either, or from the directory."""
    from weighbridge.core.bounded import DEFAULT_LIMITS
    from weighbridge.transcript.files import read_manifest

    if said := _TRANSCRIPT.fullmatch(transcript):
        return bytes.fromhex(said[1]), bytes.fromhex(said[2])
    found = read_manifest(Path(transcript), DEFAULT_LIMITS)
    return bytes.fromhex(found.digest), found.public


def _signing(path: Path) -> SigningKey:
    from weighbridge.attest.manifest import load_or_create_key

    if not path.is_file():
        raise UsageError(f"there is no key {path}; make it with `weighbridge rules key {path}`, for the terms to name")
    return load_or_create_key(path)
