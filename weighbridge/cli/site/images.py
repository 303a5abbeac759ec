"""`weighbridge site compare|endorse|publish|prove|monitor|vet`: which images of sealed workers may run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli._exits import one_line, print_json
from weighbridge.cli._inputs import Json, in_hex, read_file, require_different, write_file
from weighbridge.core import secret_files
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from weighbridge.attest.image_policy import ImagePolicy, Vetted
    from weighbridge.attest.tlog import KeyType, NoteSigner
    from weighbridge.execution.sealed.image import Image, ImageFile

_SHOWN = 40
"""So many files that differ are printed, unless all are asked for."""
_Out = Annotated[Path, typer.Option("--out", help="The file to write.")]
_Log = Annotated[Path, typer.Argument(help="Directory of the log of images.")]
_Policy = Annotated[Path, typer.Option("--policy", help="What both parties agreed on about images, in TOML.")]
_Measurement = Annotated[str, typer.Option("--measurement", help="Of the image, in hex (`site image` prints it).")]


def add(app: typer.Typer) -> None:
    """Adds the commands to a group."""
    for each in (compare, endorse, publish, prove, monitor, vet):
        app.command()(each)


def compare(
    one: Annotated[Path, typer.Argument(help="Directory of an image, or its list (image.cbor).")],
    two: Annotated[Path, typer.Argument(help="The other's.")],
    every: Annotated[bool, typer.Option("--all", help="Print all files that differ, however many.")] = False,
    as_json: Json = False,
) -> None:
    """Name the files in which two images differ, as when two parties made them of the same releases.

    The exit code is 1 if they differ.
    """
    from weighbridge.execution.sealed import image as images

    first, second = _listed(one), _listed(two)
    found = images.differences(first, second)
    if as_json:
        rows = [{"name": each.name, "one": _digest(each.one), "two": _digest(each.two)} for each in found]
        measured = {"one": first.measurement.hex(), "two": second.measurement.hex()}
        print_json({"same": not found, "measurements": measured, "differ": rows})
    else:
        for each in found if every else found[:_SHOWN]:
            where = "both, with other content" if each.one and each.two else f"{one if each.one else two} only"
            print(one_line(f"{each.name}: in {where}"))
        if len(found) > _SHOWN and not every:
            print(f"and {len(found) - _SHOWN} more (--all prints them)")
        print(f"{len(found)} files differ" if found else f"both are {first.measurement.hex()}")
    if found:
        raise typer.Exit(1)


def endorse(
    image: Annotated[Path, typer.Argument(help="Directory of an image that you made yourself.")],
    key: Annotated[Path, typer.Option("--key", help="Your private key, which policies name (`rules key` makes one).")],
    out: _Out,
) -> None:
    """As an endorser: measure an image that you made, and sign what it is."""
    from importlib.metadata import version

    from weighbridge.attest.image_release import Release
    from weighbridge.attest.image_release import endorse as signed
    from weighbridge.attest.manifest import load_or_create_key
    from weighbridge.execution.sealed import image as images

    require_different(image, key, out)
    if not key.is_file():
        raise UsageError(f"there is no key {key}; make one by `weighbridge rules key {key}`")
    measured = images.measure(image / images.FILES)
    if measured != images.load(image):
        raise UsageError(f"{image} has other files than its list; make the image anew before you sign for it")
    release = Release(
        measurement=measured.measurement, version=version("weighbridge"),
        processor=read_file(image / images.FILES / images.PROCESSOR).decode("ascii", "replace"),
        files=len(measured.files), size=measured.size,
    )  # fmt: skip
    write_file(out, signed(release, load_or_create_key(key)).to_cbor())
    print(f"signed image {measured.measurement.hex()} of weighbridge {release.version} for {release.processor}")


def publish(
    log: _Log,
    endorsements: Annotated[list[Path], typer.Argument(help="Endorsements of one image.")],
    key: Annotated[Path, typer.Option("--key", help="The log's private key; made if missing.")],
    origin: Annotated[str, typer.Option("--origin", help="The log's name, such as images.example.org/log.")],
) -> None:
    """As the keeper of a log of images: enter an image with its endorsements. Print the log's key for policies."""
    from weighbridge.attest import image_log, tlog
    from weighbridge.attest.image_release import ENTRY_LIMIT, Endorsed, joined

    entry = joined(Endorsed.from_cbor(read_file(each, max_bytes=ENTRY_LIMIT)) for each in endorsements)
    signer = _signer(origin, tlog.LOG, key)
    found = image_log.append(log, signer, entry)
    print(
        f"entry {len(found.entries) - 1}: image {entry.release.measurement.hex()}, {len(entry.signatures)} signatures"
    )
    print(f'log = "{signer.key}"')


def prove(
    log: _Log,
    policy: _Policy,
    measurement: _Measurement,
    out: _Out,
) -> None:
    """Write the file that proves that an image is endorsed and in the log, for parties and sites."""
    from weighbridge.attest import image_log

    agreed = _policy(policy)
    proof = image_log.read(log, agreed.log).proof(in_hex(measurement, "--measurement"), agreed.keys)
    write_file(out, proof.encode())
    print(f"entry {proof.index} of {log}, with {len(proof.checkpoint.signatures) - 1} cosignatures")


def monitor(
    log: _Log,
    policy: _Policy,
    seen: Annotated[Path, typer.Option("--seen", help="What you saw of the log last; begun if missing.")],
    others: Annotated[
        list[Path] | None,
        typer.Option("--other", help="A checkpoint or a proof that another reader was given; repeatable."),
    ] = None,
    cosign: Annotated[Path | None, typer.Option("--cosign", help="Your key as a witness; made if missing.")] = None,
    name: Annotated[str, typer.Option("--name", help="With --cosign: your name as a witness.")] = "",
    as_json: Json = False,
) -> None:
    """Read a log of images whole, check that it only grew, and say what is new in it and who signed that."""
    from weighbridge.attest import image_log, tlog

    if (cosign is None) != (not name):
        raise UsageError("a witness has a key and a name; give both --cosign and --name")
    agreed = _policy(policy)
    signer = None if cosign is None else _signer(name, tlog.WITNESS, cosign)
    given = [_checkpoint_of(read_file(each)) for each in others or ()]
    found, before = image_log.watch(log, agreed.log, seen, given, witness=signer, time_s=int(time.time()))
    rows = [_row(index, found.entries[index], agreed) for index in range(before, len(found.entries))]
    if as_json:
        print_json({"size": len(found.entries), "seen_before": before, "new": rows})
        return
    print(f"the log has {len(found.entries)} entries, of which {before} were seen before")
    for row in rows:
        by = ", ".join(each[:16] for each in row["signers"]) or "none of the agreed keys"
        print(one_line(f"  {row['index']}: {row['measurement'][:16]} weighbridge {row['version']} signed by {by}"))
    if signer is not None:
        print(f'witnesses = ["{signer.key}"]')


def vet(
    proof: Annotated[Path, typer.Argument(help="The file of proof of an image (`site prove`).")],
    policy: _Policy,
    measurement: _Measurement,
    as_json: Json = False,
) -> None:
    """Check that an image is signed by enough of the agreed keys and stands in the agreed log."""
    found = _vetted(proof, _policy(policy), in_hex(measurement, "--measurement"))
    if as_json:
        print_json(
            {
                "measurement": measurement.lower(), "version": found.release.version, "index": found.index,
                "signers": [each.hex() for each in found.signers], "log_size": found.checkpoint.size,
            }
        )  # fmt: skip
        return
    print(f"image {measurement.lower()} of weighbridge {found.release.version} for {found.release.processor}")
    print(f"signed by {len(found.signers)} of the agreed keys, entry {found.index} of {found.checkpoint.size}")


def require_vetted(policy: Path | None, proof: Path | None, measurement: bytes, agreed: bytes | None = None) -> None:
    """Checks an image that is about to be used.

    Args:
        policy: File of the policy; None without one.
        proof: File of proof; None without one.
        measurement: Of the image.
        agreed: Digest of the policy in the terms, empty if they name none; None where no terms are known.

    Raises:
        UsageError: A file is lacking, or the policy is another than the terms name.
        SealedWorkerError: The policy does not permit the image.
    """
    if (policy is None) != (proof is None):
        raise UsageError("an image is checked by a policy and a proof; give both --image-policy and --image-proof")
    if policy is None or proof is None:
        if agreed:
            raise UsageError("the terms name a policy of images; give it with --image-policy, and --image-proof")
        return
    read = _policy(policy)
    if agreed is not None and read.digest != agreed:
        raise UsageError("the terms name another policy of images, or none; give the one that was agreed on")
    _vetted(proof, read, measurement)


def _vetted(proof: Path, policy: ImagePolicy, measurement: bytes) -> Vetted:
    from weighbridge.attest import tlog
    from weighbridge.attest.image_policy import vetted

    return vetted(read_file(proof, max_bytes=tlog.MAX_PROOF_BYTES), policy, measurement)


def _policy(path: Path) -> ImagePolicy:
    from weighbridge.attest.image_policy import POLICY_LIMIT, parse_policy

    return parse_policy(read_file(path, max_bytes=POLICY_LIMIT))


def _listed(path: Path) -> Image:
    from weighbridge.execution.sealed import image as images

    return images.load(path) if path.is_dir() else images.Image.from_cbor(read_file(path))


def _digest(file: ImageFile | None) -> str | None:
    return None if file is None else file.digest.hex()


def _row(index: int, entry: bytes, policy: ImagePolicy) -> dict[str, Any]:
    """What a monitor says of an entry, with the agreed keys that signed it."""
    from weighbridge.attest.image_release import Endorsed

    read = Endorsed.from_cbor(entry)
    signers = [each.hex() for each in read.signers() if each in policy.keys]
    release = read.release
    return {
        "index": index, "measurement": release.measurement.hex(), "version": release.version,
        "processor": release.processor, "files": release.files, "size": release.size, "signers": signers,
    }  # fmt: skip


def _checkpoint_of(data: bytes) -> bytes:
    """Returns the checkpoint in a file of proof, or the file itself if it is one."""
    from weighbridge.attest import tlog

    return tlog.parse_proof(data).checkpoint.encode() if data.startswith(b"c2sp.org/tlog-proof") else data


def _signer(name: str, kind: KeyType, path: Path) -> NoteSigner:
    from weighbridge.attest import tlog

    try:
        seed = secret_files.read_or_make(path, lambda: os.urandom(tlog.KEY_SIZE))
    except OSError as error:
        raise UsageError(f"cannot use {path} for a key ({error.strerror}); name another file") from None
    if len(seed) != tlog.KEY_SIZE:
        raise UsageError(f"{path} holds no key of a log or a witness; name the right file")
    return tlog.NoteSigner(name, kind, seed)
