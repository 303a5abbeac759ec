"""Which images of sealed workers may run: those that k of n agreed keys signed, and that a public log has.

What parties hand each other is a file of proof (c2sp.org/tlog-proof): the entry of the log, and that it is there. The
*policy* is what they agree on before: the log's key, its witnesses, the endorsers' keys and how many of them it takes.

So an image that one party made for one victim has to be signed by k endorsers, and stand where all can read it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

from weighbridge.attest import tlog
from weighbridge.attest.image_release import MOST_KEYS, Endorsed, Release, unendorsed
from weighbridge.attest.sealed_order import SealedWorkerError
from weighbridge.core.digests import record_digest
from weighbridge.core.errors import FormatError, ProofError, UsageError

POLICY_LIMIT = 1 << 14
_KEY = 32
_FIELDS = ("log", "witnesses", "keys", "threshold")


@dataclass(frozen=True, slots=True)
class ImagePolicy:
    """What two parties agree on about images, before they agree on one.

    Attributes:
        log: Key of the log that an image has to be in; its name is the log's origin.
        witnesses: Keys that all have to have cosigned the log.
        keys: Keys of endorsers, ascending, each once.
        threshold: So many of them have to have signed.
    """

    log: tlog.NoteKey
    witnesses: tuple[tlog.NoteKey, ...]
    keys: tuple[bytes, ...]
    threshold: int

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            UsageError: A key is none or double, or more signatures are demanded than there are keys.
        """
        if self.log.type != tlog.LOG or any(each.type != tlog.WITNESS for each in self.witnesses):
            raise UsageError("a policy of images has the key of a log, and keys of witnesses")
        if len({each.public for each in (self.log, *self.witnesses)}) <= len(self.witnesses):
            raise UsageError("the log and the witnesses of a policy of images are different keys")
        if list(self.keys) != sorted(set(self.keys)) or any(len(each) != _KEY for each in self.keys):
            raise UsageError("the endorsers of a policy of images are different keys")
        if type(self.threshold) is not int or not 0 < self.threshold <= len(self.keys) <= MOST_KEYS:
            raise UsageError(f"a policy of images demands at least one signature, of at most {MOST_KEYS} keys")

    @property
    def digest(self) -> bytes:
        """What terms name a policy by (32 bytes)."""
        named = [str(self.log), [str(each) for each in self.witnesses], list(self.keys), self.threshold]
        return record_digest("image-policy/1", named)


def parse_policy(data: bytes) -> ImagePolicy:
    """Reads a policy that people wrote, in TOML.

    Args:
        data: It has `log` and `witnesses`, keys of notes; `keys`, public keys in hex; and `threshold`.

    Raises:
        UsageError: It is none; the message says what is wrong.
    """
    try:
        raw = tomllib.loads(data.decode()) if len(data) <= POLICY_LIMIT else {}
    except (ValueError, RecursionError):
        raw = {}
    match raw:
        case {"log": str(log), "keys": [*keys], "threshold": int(threshold), **rest} if rest.keys() <= {"witnesses"}:
            witnesses = rest.get("witnesses", [])
        case _:
            raise UsageError(f"a policy of images has {', '.join(_FIELDS)} in TOML, and nothing else")
    try:
        return ImagePolicy(
            tlog.parse_key(log), tuple(map(tlog.parse_key, witnesses)), tuple(sorted(map(bytes.fromhex, keys))),
            threshold,
        )  # fmt: skip
    except (FormatError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"a key in the policy of images is none: {error}") from None


@dataclass(frozen=True, slots=True)
class Vetted:
    """An image that a policy permits.

    Attributes:
        release: What it is.
        signers: Keys of the policy that signed, ascending.
        checkpoint: Of the log, with this image in it.
        index: Its place there.
    """

    release: Release
    signers: tuple[bytes, ...]
    checkpoint: tlog.Checkpoint
    index: int


def vetted(proof: bytes, policy: ImagePolicy, measurement: bytes | None = None) -> Vetted:
    """Checks that enough endorsers signed an image, and that it is in the log.

    Args:
        proof: The file of proof, with the log's entry as its extra data.
        policy: What was agreed on.
        measurement: Of the image that is to run; None for whichever the proof is of.

    Raises:
        SealedWorkerError: It is not signed by enough of the keys, or of another image (`sealed.image.endorsement`); it
            is not in the log, or a witness did not cosign (`sealed.image.unlogged`).
    """
    try:
        read = tlog.parse_proof(proof)
        entry = Endorsed.from_cbor(read.extra or b"")
    except FormatError as error:
        raise unendorsed(f"this is no proof of an image, with its entry ({error})") from error
    if measurement is not None and entry.release.measurement != measurement:
        raise unendorsed("the proof is of another image")
    signers = tuple(sorted(set(entry.signers()) & set(policy.keys)))
    if len(signers) < policy.threshold:
        raise unendorsed(f"{len(signers)} of the agreed keys signed it, and {policy.threshold} have to")
    try:
        checkpoint = tlog.verify_proof(read, read.extra or b"", policy.log, policy.witnesses)
    except (ProofError, FormatError) as error:
        raise _unlogged(f"it is not shown to be in the log that was agreed on ({error})") from error
    if checkpoint.origin != policy.log.name:
        raise _unlogged("the log has another name than its key")
    return Vetted(entry.release, signers, checkpoint, read.index)


def _unlogged(why: str) -> SealedWorkerError:
    return SealedWorkerError(f"{why}; run no such image", code="sealed.image.unlogged")
