"""`weighbridge site gather|order|assent|admit|session|key`: a whole inspection in a sealed worker, party by party."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from weighbridge.cli._exits import one_line, print_json
from weighbridge.cli._inputs import (
    Json,
    in_hex,
    list_beside,
    read_file,
    read_private,
    require_different,
    write_file,
    write_private,
)
from weighbridge.cli.site.images import require_vetted
from weighbridge.cli.site.machines import require_machine
from weighbridge.cli.site.parts import Making, divided, frame, require_authority, require_parts
from weighbridge.core.decisions import decide
from weighbridge.core.errors import UsageError, WeighbridgeError

if TYPE_CHECKING:
    from verifier.sealed.case import Case
    from weighbridge.attest.outcome_agreement import Agreement
    from weighbridge.attest.sealed_attestation import Attested
    from weighbridge.attest.sealed_order import Order
    from weighbridge.attest.worker_openings import Box

_POLL_SECONDS = 0.2
_CaseFile = Annotated[Path, typer.Option("--case", help="The Verifier's case (`weighbridge inspect case`).")]
_AgreementFile = Annotated[Path, typer.Option("--agreement", help="What both parties agreed on about the outcome.")]
_OrderFile = Annotated[Path, typer.Argument(help="The order of the session.")]
_Inputs = Annotated[Path, typer.Option("--inputs", help="The Prover's files, as `gather` made them.")]
_Root = Annotated[Path, typer.Option("--root", help="PEM file of the authority that vouches for launchers.")]
_Out = Annotated[Path, typer.Option("--out", help="The file to write.")]
_ImagePolicy = Annotated[
    Path | None, typer.Option("--image-policy", help="The policy of images that the terms name, if they do.")
]
_ImageProof = Annotated[
    Path | None, typer.Option("--image-proof", help="With --image-policy: the proof of the image (`site prove`).")
]
_Machines = Annotated[
    Path | None, typer.Option("--machines", help="The list of machines that the terms name, if they do.")
]
_PartsRoot = Annotated[
    Path | None, typer.Option("--root", help="PEM file of the authority for launchers, if the order has parts.")
]
_AttestationFile = Annotated[Path, typer.Option("--attestation", help="The worker's attestation.")]


def add(app: typer.Typer) -> None:
    """Adds the commands to a group."""
    for each in (case, gather, order, assent, admit, session, key):
        app.command()(each)


def case(file: Annotated[Path, typer.Argument(help="A Verifier's case.")], as_json: Json = False) -> None:
    """Show what a Verifier's case asks: read it before you sign an order that names it."""
    from verifier.sealed.shown import lines, shown

    said = shown(_case(_read_case(file)))
    if as_json:
        print_json(said)
        return
    for depth, text in lines(said):
        print("  " * depth + one_line(text))


def gather(
    out: Annotated[Path, typer.Argument(help="Directory to make; it holds secrets.")],
    case_file: _CaseFile,
    runs: Annotated[Path, typer.Option("--runs", help="Directory with your transcripts; all of them are given.")],
    chips: Annotated[
        list[str] | None, typer.Option("--chip", help="UEID=SOCKET of a chip, as it was started; repeatable.")
    ] = None,
) -> None:
    """As the Prover: gather what a session gets: openings of snapshots and tokens, from the chips, and transcripts."""
    from firmware_sim.opening import hidden, opened
    from prover.keeping.sealed_inputs import gather as gathered
    from verifier.model.hidden_tokens import places
    from verifier.stages.read_logs import snapshots_in

    there = {ueid: Path(path) for ueid, path in map(_named, chips or ())}
    openings, missing = {}, []
    tokens: dict[tuple[bytes, int], bytes] = {}
    for log in _case(_read_case(case_file)).logs:
        ueid = log.chip.ueid
        if ueid in there and (hiding := places(log)):
            tokens |= {(ueid, index): data for index, data in hidden(there[ueid], hiding).items()}
        for each in snapshots_in(log):
            if ueid in there:
                openings[ueid, each.index] = opened(there[ueid], each.index)
            else:
                missing.append(f"{ueid.hex()}:{each.index}")
    runs_given = gathered(out, runs, openings, tokens)
    print(f"{out} has {len(openings)} openings and {len(runs_given)} transcripts; keep it secret")
    if missing:
        print(
            f"no chip with the UEID is there for {', '.join(missing)}: these count as withheld, unless the chip opens "
            "them to the worker itself (`site session --chip`)"
        )


def order(
    out: _Out,
    agreement: _AgreementFile,
    case_file: _CaseFile,
    inputs: _Inputs,
    prover_key: Annotated[Path, typer.Option("--key", help="Your key of sealed jobs; made if missing.")],
    report_key: Annotated[
        Path, typer.Option("--report-key", help="Your key that the full report is encrypted to; made if missing.")
    ],
    measurement: Annotated[str, typer.Option("--measurement", help="Of the image, in hex (`site image` prints it).")],
    image_policy: _ImagePolicy = None,
    image_proof: _ImageProof = None,
    parts: Annotated[
        int, typer.Option("--parts", help="Have other workers make replays, in so many parts; needs --root.", min=0)
    ] = 0,
    root: _PartsRoot = None,
) -> None:
    """As the Prover: commit to your files, and write the order that both parties sign. The list goes beside it."""
    from prover.keeping.sealed_inputs import listed
    from verifier.sealed.case import check_agreed
    from weighbridge.attest.sealed_channel import ProverKey
    from weighbridge.attest.sealed_list import commitment
    from weighbridge.attest.sealed_order import Order
    from weighbridge.attest.sealed_outcome import AggregatorKey
    from weighbridge.attest.sealed_session import session_of

    require_different(out, agreement, case_file, prover_key, report_key)
    agreed, encoded = _agreement(agreement), _read_case(case_file)
    check_agreed(_case(encoded), agreed)
    image = in_hex(measurement, "--measurement")
    require_vetted(image_policy, image_proof, image, agreed.terms.images)
    files = listed(inputs)
    made = Order(
        verifier_nonce=agreed.verifier_opened.share, prover_nonce=agreed.prover_opened.share,
        commitment=commitment(files.to_cbor()), prover=ProverKey.load(prover_key).public,
        aggregator=AggregatorKey.load(report_key).public, measurement=image,
        session=session_of(agreed, encoded, divided(parts, root)),
    )  # fmt: skip
    write_private(list_beside(out), files.to_cbor())
    write_file(out, made.to_cbor())
    print(f"order {made.digest.hex()} commits to {len(files.files)} files; keep {list_beside(out)} secret")


def assent(
    file: _OrderFile,
    agreement: _AgreementFile,
    case_file: _CaseFile,
    measurement: Annotated[str, typer.Option("--measurement", help="Of the image that you agree to, in hex.")],
    signing_key: Annotated[Path, typer.Option("--key", help="Your private key, which the terms name.")],
    out: _Out,
    image_policy: _ImagePolicy = None,
    image_proof: _ImageProof = None,
    root: _PartsRoot = None,
) -> None:
    """As either party: check that an order is of your agreement, case and image, and sign it."""
    from verifier.sealed.case import check_agreed
    from weighbridge.attest.manifest import load_or_create_key
    from weighbridge.attest.sealed_session import assent as signed

    require_different(file, agreement, case_file, signing_key, out)
    agreed, found, encoded = _agreement(agreement), _order(file), _read_case(case_file)
    check_agreed(_case(encoded), agreed)
    _require_ordered(found, agreed, encoded)
    require_authority(found, root)
    if found.measurement != in_hex(measurement, "--measurement"):
        raise UsageError("the order names another image; do not sign it")
    require_vetted(image_policy, image_proof, found.measurement, agreed.terms.images)
    if (found.verifier_nonce, found.prover_nonce) != (agreed.verifier_opened.share, agreed.prover_opened.share):
        raise UsageError("the nonces of the order are not the shares of the agreement; do not sign it")
    if not signing_key.is_file():
        raise UsageError(f"there is no key {signing_key}; name the one that the terms name")
    own = load_or_create_key(signing_key)
    if own.public not in (agreed.terms.prover, agreed.terms.verifier):
        raise UsageError("the terms name neither party by this key; name the right key file")
    _once(
        signing_key, ".signed", agreed.nonce, found.digest,  # beside the key, of which there is one: files are copied
        "another order of this agreement was signed already, and a party could choose between two outcomes",
    )  # fmt: skip
    write_file(out, signed(found, own))
    print(f"signed order {found.digest.hex()}")


def admit(
    file: _OrderFile,
    agreement: _AgreementFile,
    case_file: _CaseFile,
    attestation: _AttestationFile,
    root: _Root,
    secret: Annotated[Path, typer.Option("--secret", help="Your secret (`outcome agree` wrote it).")],
    out: _Out,
    machines: _Machines = None,
) -> None:
    """As the Verifier: check the worker's attestation, and encrypt your secret to this worker."""
    require_different(file, agreement, case_file, attestation, root, secret, out)
    found, agreed, encoded = _order(file), _agreement(agreement), _read_case(case_file)
    _require_ordered(found, agreed, encoded)
    require_authority(found, root)
    attested = _attested(read_file(attestation), found, root)
    require_machine(agreed, _case(encoded).beacon, machines, attested)
    write_file(out, _given(secret, read_private(secret), found, attested))
    print(f"worker {attested.worker.hex()} is start {attested.index} of launcher {attested.launcher.hex()}")
    _print_lacking(attested)


def key(
    file: _OrderFile,
    attestation: _AttestationFile,
    root: _Root,
    statement: Annotated[Path, typer.Option("--statement", help="What the worker stated (`session` writes it).")],
) -> None:
    """As either party: print the key that the outcome is going to be signed with, if this worker stated it."""
    from weighbridge.attest.sealed_session import stated_key

    found = _order(file)
    attested = _attested(read_file(attestation), found, root)
    print(stated_key(read_file(statement), found, attested.signer).hex())


def session(
    file: _OrderFile,
    agreement: _AgreementFile,
    case_file: _CaseFile,
    inputs: _Inputs,
    prover_key: Annotated[Path, typer.Option("--key", help="Your key of sealed jobs.")],
    report_key: Annotated[Path, typer.Option("--report-key", help="Your key that the full report is encrypted to.")],
    secret: Annotated[Path, typer.Option("--secret", help="Your secret (`outcome agree` wrote it).")],
    prover_assent: Annotated[Path, typer.Option("--prover-assent", help="Your signature over the order.")],
    verifier_assent: Annotated[Path, typer.Option("--verifier-assent", help="The Verifier's.")],
    root: _Root,
    worker: Annotated[
        str, typer.Option("--worker", help="The site's command that runs the worker (`weighbridge site worker ...`).")
    ],
    out: Annotated[Path, typer.Option("--out", help="Directory to make for what comes of it.")],
    chips: Annotated[
        list[str] | None,
        typer.Option("--chip", help="UEID=HOST:PORT of a chip that opens to this worker itself; repeatable."),
    ] = None,
    credentials: Annotated[
        Path | None, typer.Option("--credentials", help="With --chip: directory of the Prover's certificate.")
    ] = None,
    machines: _Machines = None,
    parts: Annotated[
        list[str] | None,
        typer.Option("--part", help="A site's command that runs a part, of OUT/part-1.order and so on; repeatable."),
    ] = None,
) -> None:
    """As the Prover: have the site run the session, and give its worker your files.

    Writes the attestation into --out and waits for verifier.box there (`site admit`), then writes the worker's
    statement of its key, the outcome when it leaves, and the full report for yourself.
    """
    from weighbridge.attest import worker_openings
    from weighbridge.attest.sealed_channel import ProverKey
    from weighbridge.attest.sealed_list import SealedList
    from weighbridge.attest.sealed_outcome import AggregatorKey
    from weighbridge.attest.sealed_session import Preface, stated_key

    found, files = _order(file), SealedList.from_cbor(read_private(list_beside(file)))
    agreed, encoded, kept = _agreement(agreement), _read_case(case_file), read_private(secret)
    assents = read_file(prover_assent), read_file(verifier_assent)  # all before the start, which cannot be repeated
    _require_ordered(found, agreed, encoded)
    require_authority(found, root)
    require_parts(found, parts or ())
    if chips and credentials is None:
        raise UsageError("a chip is asked with a Prover's certificate; name its directory with --credentials")
    there = dict(map(_named, chips or ()))
    try:
        out.mkdir(mode=0o700)
    except OSError as error:
        raise UsageError(f"cannot make {out} ({error.strerror}); name a new directory") from None
    own, reader = ProverKey.load(prover_key), AggregatorKey.load(report_key)
    with (
        subprocess.Popen(shlex.split(worker), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running,
        contextlib.ExitStack() as ending,
    ):
        sink, source = cast("BinaryIO", running.stdin), cast("BinaryIO", running.stdout)
        statement = _kept(out / "attestation", source)
        attested = _attested(statement, found, root)
        require_machine(agreed, _case(encoded).beacon, machines, attested)
        boxes = _boxes(_case(encoded), there, credentials, (found.to_cbor(), statement))
        _print_lacking(attested)
        making = Making(parts or (), (found, attested.worker), encoded, root, out)
        ending.callback(making.stop)
        making.start(own, files, inputs)
        print(f"the worker is attested; waiting for {out / 'verifier.box'}", flush=True)
        verifier_box = _awaited(out / "verifier.box", running)
        preface = Preface(
            agreement=agreed.to_cbor(), case=encoded, prover_assent=assents[0], verifier_assent=assents[1],
            prover_box=_given(secret, kept, found, attested), verifier_box=verifier_box,
        )  # fmt: skip
        with contextlib.suppress(BrokenPipeError):  # why it does not listen, the site says
            preface.send(sink)
            stated_key(_kept(out / "statement", source), found, attested.signer)
            worker_openings.send(sink, boxes)
            making.send(sink)
            own.send(sink, found.terms(attested.worker), files, inputs)
            sink.close()
        _kept(out / "outcome.bin", source)
        sealed = frame(source)
    write_private(out / "report.json", reader.open(sealed, found, attested.signer))
    print(f"look at {out / 'outcome.bin'}, which is all that leaves; {out / 'report.json'} is yours")


def _require_ordered(found: Order, agreed: Agreement, case: bytes) -> None:
    """Checks that an order is of an agreement and a case.

    Raises:
        UsageError: It is of others.
    """
    from weighbridge.attest.sealed_session import session_of

    parts = None if found.session is None else found.session.parts
    if found.session != session_of(agreed, case, parts):
        raise UsageError("the order is of another agreement or another case; do not sign it, nor run it")


def _given(secret: Path, content: bytes, found: Order, attested: Attested) -> bytes:
    """Encrypts a party's secret to a worker: to one of one order, and to no other later.

    Raises:
        UsageError: It was given to another one.
    """
    from weighbridge.attest.sealed_session import seal_secret

    _once(
        secret, ".given", b"secret", found.digest + attested.worker,
        "this secret was given to another worker already, and a party could choose between two outcomes",
    )  # fmt: skip
    return seal_secret(content, found, attested.worker)


def _once(beside: Path, suffix: str, subject: bytes, what: bytes, why: str) -> None:
    """Remembers beside a file what was done, before it is done; a second time it has to be the same.

    Raises:
        UsageError: It is not.
    """
    place = Path(os.path.realpath(beside))
    book = place.with_name(place.name + suffix)
    if not decide(book, subject, what):
        raise UsageError(f"{why} ({book} says so); agree on another start")


def _boxes(of: Case, there: dict[bytes, str], credentials: Path | None, evidence: tuple[bytes, bytes]) -> list[Box]:
    """Asks chips for what opens their snapshots and tokens to the worker; what one refuses is said, and withheld."""
    from prover.keeping.chip_openings import asked
    from verifier.model.hidden_tokens import places
    from verifier.stages.read_logs import snapshots_in
    from weighbridge.attest.identity import Credentials

    found: list[Box] = []
    for log in of.logs:
        if credentials is not None and (address := there.get(log.chip.ueid)):
            wanted = {"snapshots": [each.index for each in snapshots_in(log)], "tokens": places(log)}
            try:
                found += asked(address, Credentials.load(credentials), log.chip.ueid, evidence, **wanted)
            except WeighbridgeError as error:
                print(one_line(f"chip {log.chip.ueid.hex()} opens nothing, which counts as withheld: {error}"))
    return found


def _named(text: str) -> tuple[bytes, str]:
    ueid, separator, where = text.partition("=")
    if not separator or not where:
        raise UsageError(f"--chip {text[:80]}: write UEID=SOCKET, and for a session UEID=HOST:PORT")
    return in_hex(ueid, "--chip"), where


def _kept(path: Path, source: BinaryIO) -> bytes:
    data = frame(source)
    path.write_bytes(data)
    return data


def _awaited(path: Path, running: subprocess.Popen[bytes]) -> bytes:
    from weighbridge.attest.sealed_session import BOX_SIZE

    while not path.is_file() or path.stat().st_size < BOX_SIZE:  # it may be copied there, piece by piece
        if running.poll() is not None:
            raise UsageError("the worker ended before the Verifier's secret came; agree on another start")
        time.sleep(_POLL_SECONDS)
    return read_file(path)


def _attested(data: bytes, found: Order, root: Path) -> Attested:
    from weighbridge.attest.certificates import load_certificate
    from weighbridge.attest.sealed_attestation import LauncherVerifier

    return LauncherVerifier(load_certificate(read_file(root))).verify(data, found)


def _print_lacking(attested: Attested) -> None:
    """Says what a worker does without because its kernel has none; what is required, no worker does without."""
    from weighbridge.core.secret_memory import NAME

    if NAME not in attested.isolation:
        print(f"the worker's kernel has no {NAME} (memfd_secret), so its keys lie in ordinary memory")


def _order(path: Path) -> Order:
    from weighbridge.attest.sealed_order import Order

    found = Order.from_cbor(read_file(path))
    if found.session is None:
        raise UsageError(f"{path} orders the replay of one transcript, and no session")
    return found


def _agreement(path: Path) -> Agreement:
    from weighbridge.attest.outcome_agreement import AGREEMENT_LIMIT, Agreement

    return Agreement.from_cbor(read_file(path, max_bytes=AGREEMENT_LIMIT))


def _read_case(path: Path) -> bytes:
    from weighbridge.attest.sealed_session import CASE_LIMIT

    return read_file(path, max_bytes=CASE_LIMIT)


def _case(encoded: bytes) -> Case:
    from verifier.sealed.case import Case

    return Case.from_cbor(encoded)
