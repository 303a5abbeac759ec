"""`weighbridge outcome ...`: agree on what may leave an inspection, and make the record that leaves."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from weighbridge.cli import _outcome, report
from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json, read_file, require_different, write_file, write_private
from weighbridge.core import secret_files
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from weighbridge.attest.manifest import SigningKey
    from weighbridge.attest.outcome_agreement import Agreement, Side
    from weighbridge.attest.outcome_terms import OutcomeTerms
    from weighbridge.attest.outcome_values import RecordStatus, SnapshotStatus

app = typer.Typer(
    help="Outcomes of inspections: agree on what may leave, and make the record that leaves.", no_args_is_help=True
)

_ENDS = ("withheld", "late", "aborted")
_SILENT = re.compile(r"([0-9a-fA-F]{34,66}):([0-9]{1,18})=(withheld|late|aborted)")

_Out = Annotated[Path, typer.Option("--out", help="The file to write.")]
_SideFile = Annotated[Path, typer.Argument(help="Your side, as `join` wrote it; it holds your secret.")]
_AgreementFile = Annotated[Path, typer.Option("--agreement", help="What both parties agreed on (`agree` writes it).")]
_ProverSecret = Annotated[Path, typer.Option("--prover-secret", help="The Prover's secret (`agree` writes it).")]
_VerifierSecret = Annotated[Path, typer.Option("--verifier-secret", help="The Verifier's.")]
_ReportFile = Annotated[Path, typer.Argument(help="Signed report (report.dsse), or its content (report.json).")]


@app.command()
def terms(file: Annotated[Path, typer.Argument(help="The terms in TOML.")], out: _Out, as_json: Json = False) -> None:
    """Make terms of what people wrote, for both parties to join; say what a record under them discloses at most."""
    from verifier.report.outcome_terms_file import load
    from weighbridge.attest.disclosure import bits, capacity

    require_different(file, out)
    made = load(file)
    write_file(out, made.to_cbor())
    most = capacity(made)
    if as_json:
        rows = {name: {"bits": each, "of": why} for name, (each, why) in most.items()}
        print_json({"digest": made.digest.hex(), "bits_at_most": bits(made), "fields": rows})
        return
    print(f"terms {made.digest.hex()}: compare this with the other party's")
    print(f"a record discloses at most {bits(made)} bits about secrets:")
    for name, (each, why) in most.items():
        print(f"  {name}: {each:.1f}, of {why}")


@app.command()
def join(
    side: Annotated[Path, typer.Argument(help="File for your side; must be new. It holds your secret.")],
    terms_file: Annotated[Path, typer.Option("--terms", help="The terms, as `terms` wrote them.")],
    role: Annotated[str, typer.Option("--role", help="prover or verifier.")],
    key: Annotated[Path, typer.Option("--key", help="Your private key, which the terms name.")],
    book: Annotated[Path, typer.Option("--book", help="Your book of what was disclosed; begun if there is none.")],
    out: _Out,
    inspection_bits: Annotated[
        int | None, typer.Option("--inspection-bits", help="Allow an inspection no more than so many bits.", min=0)
    ] = None,
    year_bits: Annotated[
        int | None, typer.Option("--year-bits", help="Allow 365 days no more than so many bits.", min=0)
    ] = None,
) -> None:
    """Take part in one start: charge it to your book, draw your secret, and write the commitment that you send."""
    from weighbridge.attest.disclosure import DisclosureBook
    from weighbridge.attest.outcome_agreement import ROLES, Side
    from weighbridge.attest.outcome_terms import TERMS_LIMIT, OutcomeTerms

    if role not in ROLES:
        raise UsageError(f"--role is {' or '.join(ROLES)}")
    require_different(side, terms_file, key, book, out)
    if os.path.lexists(side):
        raise UsageError(f"{side} is there already; a side takes part in one start, so choose another file")
    agreed = OutcomeTerms.from_cbor(read_file(terms_file, max_bytes=TERMS_LIMIT))
    _require_to_come(agreed)
    own = Side(agreed, role, _loaded(key))
    allowed = [agreed.inspection_bits if inspection_bits is None else inspection_bits]
    allowed.append(agreed.year_bits if year_bits is None else year_bits)
    for each in (side, out):
        if not each.parent.is_dir():  # said before the charge, which stands whatever comes after it
            raise UsageError(f"there is no directory {each.parent}; choose another place")
    keeper = DisclosureBook(book, inspection_bits=allowed[0], year_bits=allowed[1])
    try:
        left = keeper.charge(agreed, int(time.time() * 1000))
    except OSError as error:
        raise UsageError(f"cannot write the book {book} ({error.strerror}); choose another place") from None
    _keep(side, own)
    write_file(out, own.commit().to_cbor())
    print(f"start {agreed.attempt} of inspection {agreed.inspection} is charged; {left} bits are left of the year's")
    print(f"send {out} to the other party, and keep {side}")


@app.command("open")
def open_(
    side: _SideFile,
    commitment: Annotated[Path, typer.Argument(help="The other party's commitment.")],
    out: _Out,
) -> None:
    """Take the other party's commitment, and write the share that you send for it. The first commitment stands."""
    from weighbridge.attest.outcome_agreement import Committed

    require_different(side, commitment, out)
    own = _side(side)
    _require_to_come(own.terms)
    own.take(Committed.from_cbor(read_file(commitment)))
    _keep(side, own)
    write_file(out, own.open().to_cbor())
    print(f"send {out} to the other party")


@app.command()
def agree(
    side: _SideFile,
    share: Annotated[Path, typer.Argument(help="The other party's share.")],
    out: _Out,
    secret: Annotated[
        Path, typer.Option("--secret", help="File for your secret, for the machine that makes the record.")
    ],
) -> None:
    """Write what both parties agreed on, and your secret for the machine that makes the record."""
    from weighbridge.attest.outcome_agreement import Opened

    require_different(side, share, out, secret)
    own = _side(side)
    _require_to_come(own.terms)  # a share that came late may have waited for the draw, to be kept back if it is bad
    agreed = own.agree(Opened.from_cbor(read_file(share)))
    write_private(secret, own.secret)
    write_file(out, agreed.to_cbor())
    print(f"agreed on nonce {agreed.nonce.hex()}; both parties' {out} are equal")
    print(f"{secret} is for the machine that makes the record: who has both secrets can sign any record")


@app.command()
def key(
    agreement: _AgreementFile, prover_secret: _ProverSecret, verifier_secret: _VerifierSecret, as_json: Json = False
) -> None:
    """Print the public key that the record is going to be signed with: to be stated before any file is read."""
    signer = _signer(_agreement(agreement), prover_secret, verifier_secret).public.hex()
    print_json({"public_key": signer}) if as_json else print(signer)


@app.command()
def record(
    agreement: _AgreementFile,
    prover_secret: _ProverSecret,
    verifier_secret: _VerifierSecret,
    salt: Annotated[
        Path,
        typer.Option("--salt", help="File for the salt under which parts of the report can be opened; must be new."),
    ],
    out: _Out,
    file: Annotated[Path | None, typer.Argument(help="The report; none with --ended.")] = None,
    silent: Annotated[
        list[str] | None,
        typer.Option("--silent", help="UEID:INDEX=withheld, late or aborted: why a snapshot is unverified."),
    ] = None,
    ended: Annotated[
        str | None,
        typer.Option("--ended", help="It came to no end: withheld, late or aborted (not for a draw from groups)."),
    ] = None,
    due: Annotated[
        str | None, typer.Option("--due", help="With --ended: snapshots of each drawn chip, c after certain ones.")
    ] = None,
    chips: Annotated[
        int | None, typer.Option("--chips", help="With --ended: chips that the sample was drawn from (C).", min=1)
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the record of an inspection's outcome from its report: the only thing that has to leave.

    The machine that runs this sees the report and both secrets, and could sign another record than this one.
    """
    from verifier.report import outcome
    from weighbridge.attest.sealed_report import SALT_SIZE, SealedReport
    from weighbridge.attest.signed_outcome import sign

    if (file is None) == (ended is None):
        raise UsageError("give the report, or --ended with why there is none")
    require_different(agreement, prover_secret, verifier_secret, salt, out, *([] if file is None else [file]))
    agreed = _agreement(agreement)
    signer = _signer(agreed, prover_secret, verifier_secret)
    content: dict[str, Any] = {} if file is None else report.read(file)[0]
    if os.path.lexists(salt):
        raise UsageError(f"{salt} is there already; a salt serves one record, so choose another file")
    drawn_salt = secrets.token_bytes(SALT_SIZE)
    sealed = SealedReport(content, drawn_salt)
    bound = outcome.Bound(terms=agreed.terms, nonce=agreed.nonce, key=signer.public, sealed=sealed.commitment)
    if ended is not None:
        if ended not in _ENDS or due is None or chips is None:
            raise UsageError("--ended is withheld, late or aborted, and goes with --due and --chips")
        made = outcome.without_end(cast("RecordStatus", ended), bound, _outcome.drawn_chips(due), population=chips)
    else:
        unverified = dict(map(_unverified, silent or ()))
        with report.of_this_form():
            made = outcome.of_report(content, bound, unverified)
    data = sign(made, signer)
    write_private(salt, drawn_salt)
    write_file(out, data)
    if as_json:
        print_json({"bytes": len(data), "public_key": signer.public.hex(), "status": made.status})
        return
    print(f"{out} has {len(data)} bytes, whatever it says; `weighbridge report verify` shows what that is")
    print(f"it is signed with {signer.public.hex()}; the salt that opens parts of the report is in {salt}")


@app.command()
def reveal(
    file: _ReportFile,
    salt: Annotated[Path, typer.Option("--salt", help="The salt that the record was made with.")],
    out: _Out,
    part: Annotated[str | None, typer.Option("--part", help="Such as chips/0; without it, the names of all.")] = None,
) -> None:
    """Open a part of the report behind a record, for a reader who has the record."""
    from weighbridge.attest.sealed_report import SealedReport

    require_different(file, salt, out)
    sealed = SealedReport(report.read(file)[0], _private(salt))
    if part is None:
        raise UsageError(f"--part is one of {', '.join(sealed.names)}")
    write_file(out, sealed.open(part).to_cbor())
    print(f"{out} has {part}; it proves itself by the record alone")


@app.command()
def part(
    record_file: Annotated[Path, typer.Argument(metavar="RECORD", help="The signed record.")],
    part_file: Annotated[Path, typer.Argument(metavar="PART", help="An opened part of the report behind it.")],
) -> None:
    """Print an opened part, if it is one of the report that the record commits to."""
    from weighbridge.attest.outcome_record import RECORD_LIMIT
    from weighbridge.attest.sealed_report import PART_LIMIT, Part, verify_part
    from weighbridge.attest.signed_outcome import open_record

    opened = Part.from_cbor(read_file(part_file, max_bytes=PART_LIMIT + 1024))
    verify_part(open_record(read_file(record_file, max_bytes=RECORD_LIMIT)).sealed, opened)
    print(json.dumps(opened.value))  # in ASCII: it is the other party's text, which could steer a terminal


@app.command()
def audit(
    record_file: Annotated[Path, typer.Argument(metavar="RECORD", help="The signed record.")],
    agreement: _AgreementFile,
    prover_secret: _ProverSecret,
    verifier_secret: _VerifierSecret,
) -> None:
    """Check that a record has the one key and signature that it may have, so that none of its bits were chosen.

    A party with both secrets can sign records, so do this when the record is published or kept by a third party.
    """
    from weighbridge.attest import signed_outcome
    from weighbridge.attest.outcome_record import RECORD_LIMIT

    data = read_file(record_file, max_bytes=RECORD_LIMIT)
    signed_outcome.audit(data, _agreement(agreement), _private(prover_secret), _private(verifier_secret))
    print("key and signature follow from both parties' randomness; the key is worthless from now on")


def _require_to_come(terms: OutcomeTerms) -> None:
    """Checks that no party commits to a draw, opens its share or takes one once the beacon's value may be known.

    Raises:
        UsageError: The round is due by this machine's clock (`sealed.beacon`).
    """
    info = terms.beacon_info
    if info is not None and time.time() * 1000 >= info.time_ms(terms.round):
        raise UsageError(
            f"round {terms.round} of the beacon is out already, so a party may know whom the draw takes; agree on a "
            "later one",
            code="sealed.beacon",
        )


def _loaded(path: Path) -> SigningKey:
    from weighbridge.attest.manifest import load_or_create_key

    if not path.is_file():
        raise UsageError(f"there is no key {path}; `weighbridge rules key {path}` makes one, for the terms to name")
    return load_or_create_key(path)


def _side(path: Path) -> Side:
    from weighbridge.attest.outcome_agreement import Side

    return Side.from_cbor(_private(path))


def _agreement(path: Path) -> Agreement:
    from weighbridge.attest.outcome_agreement import AGREEMENT_LIMIT, Agreement

    return Agreement.from_cbor(read_file(path, max_bytes=AGREEMENT_LIMIT))


def _signer(agreed: Agreement, prover: Path, verifier: Path) -> SigningKey:
    return agreed.worker_key(_private(prover), _private(verifier))


def _private(path: Path) -> bytes:
    secret_files.require_private(path)
    return read_file(path)


def _keep(path: Path, side: Side) -> None:
    write_private(path, side.to_cbor())


def _unverified(text: str) -> tuple[tuple[str, int], SnapshotStatus]:
    match = _SILENT.fullmatch(text)
    if match is None:
        raise UsageError(f"--silent {text[:80]}: write UEID:INDEX=withheld, late or aborted")
    return (match[1].lower(), int(match[2])), cast("SnapshotStatus", match[3])
