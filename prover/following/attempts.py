"""A followed program that is run again after a crash: each attempt has a transcript and names the one it goes on from.

A program that starts again restores what it had saved itself, and nothing else: its loop variables, running sums and
gradients begin anew. So the steps after that are not those of the first attempt, and are not written into its
transcript. What the program reads is recognised by its digests as the state before a step of an earlier attempt, which
step 0 then declares as the run's parent. For that every attempt keeps, beside its transcript, which state the program
asked for, as it does to save it.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prover.capture.sources import UndeclaredInputWarning
from prover.capture.storages import HostCopy
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.bounded import DEFAULT_LIMITS, decode_cbor, read_file
from weighbridge.core.digests import cbor
from weighbridge.core.durable import sync
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.transcript.parentage import Parent, trivial
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.recovery import recover
from weighbridge.transcript.returned_state import Held
from weighbridge.transcript.writer import DRAFT, MANIFEST

_KEPT = 256
"""States of one attempt whose tables are kept, the latest ones."""


@dataclass(slots=True)
class Attempts:
    """The attempts at one run.

    Attributes:
        path: Where the transcript of this one goes.
        earlier: Transcripts of those before it, latest first.
    """

    path: Path
    earlier: list[Transcript] = field(default_factory=list)

    @classmethod
    def at(cls, path: Path, key: SigningKey | None) -> Attempts:
        """Finds the attempts, and closes the one that a crash cut off.

        The first has the path that the user gave, the next ones that with `-2`, `-3` and so on.

        Args:
            path: Where the first one's transcript is, or is going to be.
            key: Signs what is closed; by default a key for it only.

        Raises:
            UsageError: The last attempt came to its end.
        """
        found: list[Transcript] = []
        number, place = 1, path
        while (place / DRAFT).exists():
            if not (place / MANIFEST).exists():
                recover(place, key=key or SigningKey.generate())
            found.append(Transcript.open(place))
            number += 1
            place = path.with_name(f"{path.name}-{number}")
        if found and found[-1].manifest.complete:
            raise UsageError(
                f"the transcript in {found[-1].path} is complete: there is nothing to resume; choose another directory "
                "for a new run"
            )
        return cls(place, found[::-1])

    def keep(self, step: int, held: Held) -> None:
        """Keeps what all state held before a step, so that a later attempt recognises it."""
        folder = _folder(self.path)
        folder.mkdir(parents=True, exist_ok=True)
        table = [step, {name: list(entry) for name, entry in held.storages.items()}, dict(held.rng)]
        place = folder / f"{step:08d}.cbor"
        temporary = place.with_suffix(".tmp")
        temporary.write_bytes(cbor(table))
        sync(temporary)
        temporary.replace(place)
        for old in sorted(folder.glob("*.cbor"))[:-_KEPT]:
            old.unlink()

    def parent(self, entered: Mapping[str, HostCopy]) -> Parent | None:
        """Returns the state that a program which starts again has read, or None if it has read none.

        Warns if only some of what it began with is such a state, because that is no parent then.

        Args:
            entered: What entered the initialisation from outside, by name.
        """
        wanted = {copy.digest() for copy in entered.values() if not trivial(copy.content)}
        if not wanted or not self.earlier:
            return None
        best, most = None, 0
        for transcript in self.earlier:
            for step, held in _tables(transcript):
                there = wanted & set(held.storages.values())
                if len(there) > most:
                    best, most = Parent(transcript=transcript.digest, step=step, state=held.digest()), len(there)
                if most == len(wanted):
                    return best
        warnings.warn(
            f"{len(wanted) - most} of {len(wanted)} tensors that the program begins with are no state of a whole step "
            f"of {self.earlier[0].path}, so the transcript names no parent. A crash between the saving and the end "
            "of a step takes that step away: go on from the checkpoint before it. Weights from elsewhere (a pretrained "
            "model) are best read only if there is no checkpoint",
            UndeclaredInputWarning,
            stacklevel=2,
        )
        return None

    def end(self) -> None:
        """To be called when the program came to its end: no later attempt needs the tables."""
        for root in (self.path, *(each.path for each in self.earlier)):
            shutil.rmtree(_folder(root), ignore_errors=True)


def _folder(path: Path) -> Path:
    return path.with_name(path.name + ".resume")


def _tables(transcript: Transcript) -> Iterable[tuple[int, Held]]:
    """Yields what was kept of an attempt, the latest first, as far as its records say the same."""
    folder = _folder(transcript.path)
    for place in sorted(folder.glob("*.cbor"), reverse=True) if folder.is_dir() else ():
        try:
            step, storages, rng = decode_cbor(read_file(place, max_bytes=DEFAULT_LIMITS.manifest))
            held = Held({name: (size, digest) for name, (size, digest) in storages.items()}, rng)
        except (WeighbridgeError, ValueError, TypeError, AttributeError):
            continue  # a loss of power may have torn it
        if 1 <= step <= transcript.steps and transcript.step(step - 1).state == held.digest():
            yield step, held
