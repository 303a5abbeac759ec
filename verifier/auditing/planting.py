"""False segments that are planted to see whether auditors find them: a run of one's own, made false in one step.

One checksum of the step says something else than its operation gives. All digests are right, so only who executes the
step finds it. A transcript of a Prover's must not be used: which step is false would show beside the original.
"""

from __future__ import annotations

import dataclasses
import secrets
import shutil
from pathlib import Path

from weighbridge.attest.manifest import Predicate, SigningKey, sign_manifest
from weighbridge.core import digests
from weighbridge.core.bounded import DEFAULT_LIMITS, file_digest
from weighbridge.core.errors import UsageError
from weighbridge.transcript.files import read_manifest
from weighbridge.transcript.steps import StepRecord, pack_records, read_records
from weighbridge.transcript.writer import MANIFEST


def plant(run: Path, out: Path, step: int, key: SigningKey) -> None:
    """Writes a copy of a run that is false in one step.

    Args:
        run: Transcript of a run of one's own, which auditors have never seen.
        out: Where the copy goes; it must not exist.
        step: The step.
        key: Signs the copy; auditors must not know that it signs planted ones.

    Raises:
        UsageError: The step cannot be made false, or the copy cannot be made.
    """
    manifest = read_manifest(run, DEFAULT_LIMITS)
    if not 0 <= step < manifest.steps:
        raise UsageError(f"the run has {manifest.steps} steps; step {step} is not among them")
    try:
        shutil.copytree(run, out)
    except OSError as error:
        raise UsageError(f"cannot copy {run} to {out} ({error.strerror}); name a place that does not exist") from None
    head = bytes.fromhex(manifest.draft)
    for file in sorted((out / "steps").iterdir()):
        records = [_false(each) if each.step == step else each for each in read_records(file, DEFAULT_LIMITS)]
        file.write_bytes(pack_records(records))
        for each in records:
            head = digests.chain(head, each.digest())
    files = tuple(_measured(out, each) for each in manifest.files)
    said = {each.name: getattr(manifest, each.name) for each in dataclasses.fields(Predicate)}
    (out / MANIFEST).write_bytes(sign_manifest(Predicate(**said | {"files": files, "head": head.hex()}), key))


def _false(record: StepRecord) -> StepRecord:
    """Changes one of the step's checksums, of a result of more than one element: of one, it is the value itself."""
    sums = bytearray(record.checksums)
    places = [at for at in range(0, len(sums), 8) if any(sums[at + 4 : at + 8])]
    if not places:
        raise UsageError(f"step {record.step} has no result of several elements to make false; take another one")
    at = secrets.choice(places)
    sums[at : at + 4] = bytes(a ^ b for a, b in zip(sums[at : at + 4], _nonzero(), strict=True))
    return dataclasses.replace(record, checksums=bytes(sums))


def _nonzero() -> bytes:
    return (1 + secrets.randbelow((1 << 32) - 1)).to_bytes(4)


def _measured(out: Path, listed: tuple[str, int, str]) -> tuple[str, int, str]:
    if not (out / listed[0]).exists():  # a checkpoint that a minimal copy leaves out
        return listed
    size, digest = file_digest(out / listed[0])
    return listed[0], size, digest.hex()
