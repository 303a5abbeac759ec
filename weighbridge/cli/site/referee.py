"""`weighbridge site referee`: the site starts the worker that judges a dispute, and carries what parties give it."""

from __future__ import annotations

import contextlib
import os
import shlex
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from weighbridge.cli._inputs import require_different, write_file
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from weighbridge.attest.sealed_dispute import Admission

_POLL_SECONDS = 0.2
_FRAME_LIMIT = 1 << 20


def add(app: typer.Typer) -> None:
    """Adds the command to a group."""
    app.command()(referee)


def referee(
    terms_file: Annotated[Path, typer.Option("--terms", help="The terms that both parties signed.")],
    seats: Annotated[list[Path], typer.Option("--seat", help="A party's seat; give both.")],
    worker: Annotated[
        str,
        typer.Option("--worker", help="The command that runs a worker (`weighbridge site worker ...`), no --order."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Directory to make for what comes of it.")],
) -> None:
    """As the site: have a sealed worker judge a dispute, and carry each party's files to it.

    Writes order, attestation and both seats into --out, takes challenger.lane and defender.lane from there (`dispute
    sealed send`) as they come, and writes the finished dispute when the ruling leaves. A party whose file is not there,
    or not whole, within the time of the terms forfeits.
    """
    from weighbridge.attest.sealed_dispute import PARTIES
    from weighbridge.attest.sealed_ruling import SealedDispute
    from weighbridge.cli.sealed_dispute import admission_of

    require_different(terms_file, *seats, out)
    admission = admission_of(terms_file, seats)
    try:
        out.mkdir(mode=0o755)
    except OSError as error:
        raise UsageError(f"cannot make {out} ({error.strerror}); name a new directory") from None
    order = out / "order.cbor"
    write_file(order, admission.order().to_cbor())
    for party, each in zip(PARTIES, (admission.challenger, admission.defender), strict=True):
        write_file(out / f"{party}.seat", each)  # a party that was sent another seat of the other one sends by these
    command = [*shlex.split(worker), "--order", str(order)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        sink, source = cast("BinaryIO", running.stdin), cast("BinaryIO", running.stdout)
        attestation = _frame(source)
        if attestation is None:
            raise UsageError("the site started no worker; what it said stands above")
        write_file(out / "attestation", attestation)
        print(f"the worker is attested; each party has its time from now on, for {out}/PARTY.lane", flush=True)
        ruling = _carried(admission, sink, source, out)
    if ruling is None:
        raise UsageError("the worker ended without a ruling; what the site said stands above")
    found = SealedDispute(admission=admission, attestation=attestation, ruling=ruling)
    write_file(out / "dispute", found.to_cbor())
    print(f"{out / 'dispute'} is for both parties: {len(ruling)} bytes left the worker")


def _carried(admission: Admission, sink: BinaryIO, source: BinaryIO, out: Path) -> bytes | None:
    """Carries what both parties give, as it comes, until the worker gives its ruling; returns that, if it does."""
    said: list[bytes | None] = []
    listener = threading.Thread(target=lambda: said.append(_frame(source)), daemon=True)
    listener.start()
    with contextlib.suppress(BrokenPipeError):  # a worker that ended says why itself
        admission.send(sink)
        with contextlib.ExitStack() as stack:
            lanes: dict[int, BinaryIO] = {}
            while listener.is_alive():
                carried = False
                for frame in _pieces(out, lanes, stack):
                    sink.write(frame)
                    carried = True
                sink.flush()
                if not carried:
                    time.sleep(_POLL_SECONDS)
    with contextlib.suppress(BrokenPipeError):
        sink.close()
    listener.join()
    return said[0] if said else None


def _pieces(out: Path, lanes: dict[int, BinaryIO], stack: contextlib.ExitStack) -> Iterator[bytes]:
    """Yields a frame of each party's file, if there is more of it: one after another, so that neither waits long."""
    from weighbridge.attest.sealed_dispute import LANE_PIECE, PARTIES, lane_frame

    for number, party in enumerate(PARTIES):
        if number not in lanes:
            with contextlib.suppress(OSError):
                descriptor = os.open(out / f"{party}.lane", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                lanes[number] = stack.enter_context(os.fdopen(descriptor, "rb"))
        if number in lanes and (piece := lanes[number].read(LANE_PIECE)):
            yield lane_frame(number, piece)


def _frame(source: BinaryIO) -> bytes | None:
    header = source.read(4)
    length = struct.unpack(">I", header)[0] if len(header) == 4 else 0
    data = source.read(length) if 0 < length <= _FRAME_LIMIT else b""
    return data if data and len(data) == length else None
