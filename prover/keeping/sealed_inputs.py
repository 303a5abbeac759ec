"""What a Prover gives a sealed inspection: openings of its chips' snapshots and tokens, transcripts, and a salt.

It lies in a directory as the worker takes it (`docs/formats/sealed-inputs.md`). Everything in it is secret; the worker
gets it encrypted, and the Verifier none of it.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from prover.keeping.archive import DEPTH, manifests
from weighbridge.attest.sealed_list import SealedList, list_files
from weighbridge.attest.sealed_report import SALT_SIZE
from weighbridge.attest.worker_openings import pack
from weighbridge.core import secret_files
from weighbridge.core.digests import Leaf, bytes_digest
from weighbridge.core.errors import UsageError

Openings = Mapping[tuple[bytes, int], tuple[bytes, list[Leaf], list[Leaf]]]
"""By the chip's UEID and the place in its log: salt, leaves, and leaves of the weights region."""


HiddenFields = Mapping[tuple[bytes, int], bytes]
"""By the chip's UEID and the place in its log: what opens the token's hidden fields."""


def gather(out: Path, runs: Path, openings: Openings, hidden: HiddenFields | None = None) -> list[str]:
    """Makes the directory.

    Args:
        out: Where to; nothing may be there yet. Files of transcripts are linked where the file system permits.
        runs: Directory with transcripts, of the ranks of jobs too, as `prover.keeping.archive.Archive` finds them; all
            whole ones are given.
        openings: Of the drawn chips' snapshots.
        hidden: What opens the tokens of their confidential boots.

    Returns:
        The identifiers of the transcripts.

    Raises:
        UsageError: Something is there, or a file cannot be read or written.
    """
    try:
        out.mkdir(mode=0o700)
        secret_files.write(out / "salt", secrets.token_bytes(SALT_SIZE))
        for (ueid, index), (salt, leaves, weights) in openings.items():
            place = out / "openings" / ueid.hex() / f"{index}.cbor"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(pack(salt, leaves, weights))
        for (ueid, index), opening in (hidden or {}).items():
            place = out / "tokens" / ueid.hex() / f"{index}.cbor"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(opening)
        found = {bytes_digest(path.read_bytes()).hex(): path.parent for path in manifests(runs, DEPTH)}
        for identifier, run in found.items():
            shutil.copytree(run, out / "transcripts" / identifier, copy_function=_linked)
    except FileExistsError:
        raise UsageError(f"something is at {out} already; name another directory") from None
    except OSError as error:
        raise UsageError(f"cannot gather {error.filename} ({error.strerror}); name other directories") from None
    return sorted(found)


def listed(directory: Path) -> SealedList:
    """Lists a directory that `gather` made, for the commitment to it.

    Raises:
        UsageError: A file cannot be read.
    """
    return list_files(directory, [str(each.relative_to(directory)) for each in directory.rglob("*") if each.is_file()])


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
