"""Checks evidence about a device elsewhere, without that device: by replaying a sample of its transcripts here.

What a replay shows is *verified*. What follows from the file alone is *consistent*. The rest is the signer's word:
which device it was, what it took, and what its kernels returned. A transcript does not show which device recorded it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from verifier.evidence import bundle
from verifier.evidence.bundle import EvidenceError
from weighbridge.cli.gpu_evidence.statement import MOST_PRODUCTS, STATEMENT, Recording, Statement, open_statement
from weighbridge.core.bounded import DEFAULT_LIMITS
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.replay import replay
from weighbridge.execution.worker_process import Limits
from weighbridge.transcript.files import read_manifest

if TYPE_CHECKING:
    from weighbridge.numerics.units.probing import Product, Rule

Outcome = Literal["verified", "consistent", "claimed", "failed"]
_MAX_STATEMENT = 32 << 20
_SHOWN = 3
"""Products that are named, of those that are counted."""
_LACKING = ("replay.calibration.unknown", "replay.rules.unknown", "replay.worker", "device.arithmetic")
"""Reasons why a replay here cannot be had, which speak against no party."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that the evidence says, and what came of checking it.

    Attributes:
        outcome: `verified` here; `consistent` within the file; only `claimed`; or `failed`.
        says: The claim in words, or what is wrong with it.
    """

    outcome: Outcome
    says: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What came of checking a file.

    Attributes:
        statement: What it says.
        signers: Raw public keys (32 bytes) that signed it.
        claims: What came of checking it.
    """

    statement: Statement
    signers: tuple[bytes, ...]
    claims: tuple[Claim, ...]


def verify(
    file: Path, directory: Path, *, sample: int, seed: int, limits: Limits,
    progress: Callable[[str, int, int], None],
) -> Verified:  # fmt: skip
    """Checks a file.

    Args:
        file: The evidence.
        directory: An empty directory for its parts.
        sample: How many recordings to replay; those are drawn here.
        seed: Of the draw.
        limits: Of each replay.
        progress: Told what is going on, and how much of how much of it is done.

    Raises:
        EvidenceError: It is no bundle, or not of the one form.
        DocumentError: The statement is malformed, or a signature does not verify.
        UsageError: The file cannot be read.
    """
    parts = bundle.read(file, directory)
    if STATEMENT not in parts or parts[STATEMENT].stat().st_size > _MAX_STATEMENT:
        raise EvidenceError(f"{file} is no evidence about a device: it has no {STATEMENT}; name the right file")
    statement, signers = open_statement(parts[STATEMENT].read_bytes())
    here = bundle.describe({name: path for name, path in parts.items() if name != STATEMENT})
    if here != dict(statement.parts):
        differ = sorted(name for name in {*here, *statement.parts} if here.get(name) != statement.parts.get(name))
        raise EvidenceError(f"{differ[0]} is not the part that was signed; get the file again", code="evidence.altered")
    claims = [*_consistent(statement, progress), *_of_trainings(statement, directory, limits, progress)]
    drawn = random.Random(seed).sample(range(len(statement.recordings)), min(sample, len(statement.recordings)))
    for number, recording in enumerate(statement.recordings):
        if number in drawn:
            claims.append(_replayed(directory, recording, limits, progress))
        else:
            claims.append(Claim("claimed", f"{_title(recording)}: the transcript was not drawn and not replayed"))
    return Verified(statement, signers, tuple(claims))


def _title(recording: Recording) -> str:
    return f"{recording.subject} recorded on {recording.place}"


def _replayed(
    directory: Path, recording: Recording, limits: Limits, progress: Callable[[str, int, int], None]
) -> Claim:
    """Replays one transcript in a confined process and compares what came out with what is claimed."""
    run, title = directory / recording.folder, _title(recording)
    try:
        manifest = read_manifest(run, DEFAULT_LIMITS)
        if (manifest.digest, manifest.steps) != (recording.transcript, recording.steps):
            return Claim("failed", f"{title}: the transcript in the file is another one than is claimed")
        found = replay(run, limits=limits, progress=lambda done, of: progress(f"replaying {title}", done, of))
    except WeighbridgeError as error:
        return Claim("claimed" if error.reason in _LACKING else "failed", f"{title}: {error.message}")
    if found.verdict == "inconclusive":
        return Claim("claimed", f"{title}: a replay here decides nothing (inconclusive)")
    wrong = [
        f"{name} {theirs:,} here, {ours:,} claimed"
        if isinstance(ours, int)
        else f"{name} {theirs} here, {ours} claimed"
        for name, theirs, ours in (
            ("the verdict is", found.verdict, "match"),
            ("the last state is", found.state, recording.state),
            ("roundings are", found.rounded, recording.rounded),
            ("entries of the log are", found.logged, recording.logged),
        )
        if theirs != ours
    ]
    if wrong:
        return Claim("failed", f"{title}: {'; '.join(wrong)}")
    return Claim(
        "verified",
        f"transcript {recording.transcript[:16]} in {recording.folder}: {recording.steps - 1} updates replay here bit "
        f"for bit; of {found.rounded:,} roundings {found.followed:,} differ here without the log. The signer says that "
        f"it is {recording.subject}, {recording.parameters:,} parameters, recorded on {recording.place}",
    )


def _consistent(statement: Statement, progress: Callable[[str, int, int], None]) -> Sequence[Claim]:
    """Checks what follows from the statement alone."""
    claims = []
    for each in statement.replays:
        recording = statement.recordings[each.recording]
        title = f"{_title(recording)}, replayed on {each.place}"
        if each.verdict != "match":
            claims.append(Claim("failed", f"{title}: {each.verdict} by the signer's own word; {each.says}"))
        elif each.state != recording.state:
            claims.append(Claim("failed", f"{title}: said to match, and to come to another state"))
        elif each.followed > recording.logged:
            claims.append(Claim("failed", f"{title}: more roundings follow the log than it has entries"))
        else:
            share = each.followed / recording.rounded if recording.rounded else 0.0
            says = f"{title}: match; {each.followed:,} of {recording.rounded:,} roundings differ ({share:.1e})"
            claims.append(Claim("claimed", says))
    return [*claims, *_units(statement, progress), *_errors(statement)]


def _units(statement: Statement, progress: Callable[[str, int, int], None]) -> list[Claim]:
    """Says which models of units return what the device is said to have returned."""
    from weighbridge.numerics.units import identification

    claims = []
    for place, said in statement.units.items():
        try:
            found = identification.identify(
                said["short"], said["long"], lambda done, of: progress("comparing with models of units", done, of)
            )
        except (WeighbridgeError, KeyError) as error:
            claims.append(Claim("failed", f"16-bit products on {place}: {error}"))
            continue
        ways = [f"{name} in {f'chains of {chain:,}' if chain else 'one chain'}" for name, chain in found.orders]
        if ways:
            says = f"are those of {' or '.join(ways)}, every bit of {identification.SIDE**2:,} results"
        elif found.units:
            says = f"are those of {' or '.join(found.units)} while K is short; no known order returns the long ones"
        else:
            says = "are those of no unit that is declared"
        claims.append(Claim("consistent" if found.units else "claimed", f"16-bit products on {place} {says}"))
        claims += _products(place, said, found.units, progress)
    return claims


def _products(
    place: str, said: Mapping[str, str], units: Sequence[str], progress: Callable[[str, int, int], None]
) -> list[Claim]:  # fmt: skip
    """Says which rule each of the trainings' own products has, and whether a draft could declare the unit.

    Args:
        place: Where they were multiplied.
        said: The results by product, among others.
        units: Units that return the products by which units are told apart.
        progress: Told how many products were looked at.
    """
    from weighbridge.numerics.conformance.bound_policy import TRUNCATING
    from weighbridge.numerics.units import probing

    names = [name for name in said if name not in ("short", "long")]
    if not names:
        return []
    candidates = [name for name in probing.truncating() if name in units] or list(units[:1]) or None
    rules = []
    for number, name in enumerate(names, 1):
        try:
            rules.append(probing.rule(probing.read(name), said[name], candidates))
        except WeighbridgeError as error:
            return [Claim("failed", f"products of the trainings on {place}: {error.message}")]
        progress("probing products", number, len(names))
    counts = Counter(" or ".join(map(str, each.ways)) for each in rules if each.ways)
    unfit = [each for each in rules if not each.ways]
    parts = [f"{count} are those of {ways}" for ways, count in counts.most_common()]
    if unfit:
        parts.append(f"{len(unfit)} are of no rule: {'; '.join(map(str, unfit[:_SHOWN]))}")
    says = f"of {len(names)} products of the trainings on {place}, each of its own size and layout, {'; '.join(parts)}"
    claims = [Claim("claimed" if unfit else "consistent", says)]
    for unit in candidates or ():
        if f"unit-{unit}" in TRUNCATING:
            claims.append(_declarable(place, unit, rules))
    return claims


def _of_trainings(
    statement: Statement, directory: Path, limits: Limits, progress: Callable[[str, int, int], None]
) -> list[Claim]:  # fmt: skip
    """Compares the products that were probed with those that the transcripts in the file have."""
    from weighbridge.execution.narrow_products import largest, listed

    found: set[Product] = set()
    for number, recording in enumerate(statement.recordings, 1):
        try:
            found.update(listed(directory / recording.folder, limits=limits))
        except WeighbridgeError as error:
            lacking = error.reason in _LACKING
            return [Claim("claimed" if lacking else "failed", f"products of {_title(recording)}: {error.message}")]
        progress("reading programs", number, len(statement.recordings))
    expected = [str(each) for each in largest(found, MOST_PRODUCTS)]
    claims = []
    for place, said in statement.units.items():
        probed = said.keys() - {"short", "long"}
        left_out = [each for each in expected if each not in probed]
        if wrong := [*left_out, *sorted(probed - set(expected))]:
            one = "is not among those that were probed" if left_out else "was probed, and is not among the transcripts'"
            claims.append(Claim("failed", f"products of the trainings on {place}: {wrong[0]} {one}"))
        elif expected:
            says = f"the {len(expected)} products that were probed on {place} are those that the transcripts have"
            claims.append(Claim("consistent", says + (", the largest" if len(expected) == MOST_PRODUCTS else "")))
    return claims


def _declarable(place: str, unit: str, rules: Sequence[Rule]) -> Claim:
    """Says whether a draft could declare the unit of a device, and with which orders."""
    from weighbridge.numerics.units import probing

    try:
        orders = probing.orders_of(rules, unit)
    except WeighbridgeError as error:
        return Claim("claimed", f"on {place}, {error.message}")
    shown = ", ".join(f"{signature} in chains of {chain:,}" for signature, chain in sorted(orders.items())[:_SHOWN])
    says = "all in one chain" if not orders else f"{len(orders)} signatures in other orders than one chain: {shown}"
    return Claim("consistent", f"on {place}, unit-{unit} could be declared for these products, {says}")


def _errors(statement: Statement) -> list[Claim]:
    """Compares errors with the factors of the committed table."""
    from weighbridge.numerics.conformance.bound_policy import calibrated

    policy, claims = calibrated(), []
    for place, operations in statement.errors.items():
        above = [name for name, each in operations.items() if each["ratio"] > policy.factor(name)]
        if above:
            says = f"errors on {place} are larger than the calibrated bound of {', '.join(above)}"
        else:
            says = f"errors of {len(operations)} operations on {place} lie within their calibrated bounds"
        claims.append(Claim("claimed", says))
    return claims
