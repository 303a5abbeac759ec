"""The population of a draw, its strata, and how many chips are drawn from each.

A *stratum* is the chips with the same owner, site or chip type, or with the same of several of these. How many are
drawn of each is `analysis`'s to say: as many as its share of the chips (`proportional`), or as many as make the worst
spread of a violation most likely to be seen (`optimal`), where chip types differ in speed.

Population and heads are kept as lines of text, so that a reader can sort and hash them with any tool
(docs/formats/draw.md). A million chips take some hundred megabytes here: identities in one list, descriptions shared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from analysis.domain import DetectionDomainError
from analysis.stratified_sampling import best_samples, whole_samples
from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import FormatError, UsageError

Attribute = Literal["owner", "site", "type"]
ATTRIBUTES: tuple[Attribute, ...] = ("owner", "site", "type")
"""What chips can be divided by, in the order of the columns."""

Allocation = Literal["proportional", "optimal"]
Key = tuple[str, ...]
"""Names a stratum: its value of each attribute that divides the population."""

MAX_CHIPS = 20_000_000
MAX_TEXT = 200
_POPULATION = "weighbridge-population/1"
_HEADS = "weighbridge-heads/1"
_UEID = re.compile(r"(?:[0-9a-f]{2}){17,33}")
_SIZE = re.compile(r"0|[1-9][0-9]{0,15}")
_ROOT = re.compile(r"[0-9a-f]{64}")


class DrawFormatError(FormatError):
    """A record of a draw, or a part of it, is malformed."""

    code = "draw.malformed"


@dataclass(frozen=True)
class Population:
    """The chips that a draw is made from.

    Attributes:
        ueids: In ascending order, each once.
        places: Owner, site and chip type of each.
    """

    ueids: Sequence[bytes]
    places: Sequence[tuple[str, str, str]]

    @classmethod
    def of(cls, chips: Iterable[tuple[bytes, str, str, str]]) -> Population:
        """Makes a population of (UEID, owner, site, chip type) in any order.

        Raises:
            UsageError: A chip occurs twice, or a text cannot be in it.
        """
        shared: dict[tuple[str, str, str], tuple[str, str, str]] = {}
        rows = [(_checked(chip[0]), shared.setdefault(chip[1:], chip[1:])) for chip in chips]
        rows.sort(key=lambda row: row[0])
        for place in shared:
            if any(len(text) > MAX_TEXT or not text.isprintable() for text in place):
                raise UsageError(f"owner, site and type are at most {MAX_TEXT} printable characters; correct {place}")
        population = cls([ueid for ueid, _ in rows], [place for _, place in rows])
        if any(a == b for a, b in zip(population.ueids, population.ueids[1:], strict=False)):
            raise UsageError("a chip occurs twice in the population; register each chip once")
        return population

    def __len__(self) -> int:
        return len(self.ueids)

    @cached_property
    def text(self) -> bytes:
        """The lines: a first one that names the format; for each chip UEID in hex, owner, site, type, between tabs."""
        tails = {place: "\t".join(("", *place)) + "\n" for place in set(self.places)}
        lines = (ueid.hex() + tails[place] for ueid, place in zip(self.ueids, self.places, strict=True))
        return (f"{_POPULATION}\n" + "".join(lines)).encode()

    @property
    def digest(self) -> bytes:
        """BLAKE3 of the lines, 32 bytes."""
        return bytes_digest(self.text)

    def strata(self, by: Sequence[Attribute]) -> dict[Key, list[bytes]]:
        """Returns the chips of each stratum, strata and chips in ascending order.

        Args:
            by: Attributes in the order of `ATTRIBUTES`; if there are none, all chips are one stratum.

        Raises:
            UsageError: An attribute is unknown, doubled or out of order.
        """
        columns = [ATTRIBUTES.index(each) for each in check_attributes(by)]
        keys: dict[tuple[str, str, str], Key] = {}
        found: dict[Key, list[bytes]] = {} if columns else {(): []}
        for ueid, place in zip(self.ueids, self.places, strict=True):
            key = keys.get(place)
            if key is None:
                key = keys[place] = tuple(place[column] for column in columns)
                found.setdefault(key, [])
            found[key].append(ueid)
        return dict(sorted(found.items()))


def _checked(ueid: bytes) -> bytes:
    if not 17 <= len(ueid) <= 33:
        raise UsageError(f"a UEID has 17 to 33 bytes, not {len(ueid)}; pass the chip's own")
    return ueid


def check_attributes(by: Sequence[str]) -> tuple[Attribute, ...]:
    """Returns attributes that divide a population.

    Raises:
        UsageError: An attribute is unknown, doubled or out of order.
    """
    known = tuple(each for each in ATTRIBUTES if each in by)
    if known != tuple(by):
        raise UsageError(
            f"strata are by {', '.join(ATTRIBUTES)}, in this order and each once, not by {list(by)!r:.100}"
        )
    return known


def parse_population(data: bytes) -> Population:
    """Reads a population; inverse of `text` for all bytes that are accepted.

    Raises:
        DrawFormatError: It is none, or chips are doubled or out of order.
    """
    ueids: list[bytes] = []
    places: list[tuple[str, str, str]] = []
    shared: dict[str, tuple[str, str, str]] = {}
    for number, line in _lines(data, _POPULATION):
        name, _, rest = line.partition("\t")
        place = shared.get(rest)
        if place is None:
            parts = rest.split("\t")
            if len(parts) != 3 or any(len(part) > MAX_TEXT or not part.isprintable() for part in parts):
                raise DrawFormatError(
                    f"Line {number} of the population is not UEID, owner, site and type between tabs."
                )
            place = shared[rest] = (parts[0], parts[1], parts[2])
        ueids.append(_ueid(name, number, ueids[-1] if ueids else b""))
        places.append(place)
    return Population(ueids, places)


Heads = Mapping[bytes, tuple[int, bytes]]
"""What was witnessed of each chip's log at the cut-off: entries and root (32 bytes), by UEID."""


def encode_heads(heads: Heads) -> bytes:
    """Returns heads as lines: one that names the format, then UEID in hex, size and root in hex, between tabs."""
    lines = (f"{ueid.hex()}\t{size}\t{root.hex()}\n" for ueid, (size, root) in sorted(heads.items()))
    return (f"{_HEADS}\n" + "".join(lines)).encode()


def parse_heads(data: bytes) -> dict[bytes, tuple[int, bytes]]:
    """Reads heads; inverse of `encode_heads` for all bytes that are accepted.

    Raises:
        DrawFormatError: They are none, or chips are doubled or out of order.
    """
    heads: dict[bytes, tuple[int, bytes]] = {}
    last = b""
    for number, line in _lines(data, _HEADS):
        parts = line.split("\t")
        if len(parts) != 3 or not _SIZE.fullmatch(parts[1]) or not _ROOT.fullmatch(parts[2]):
            raise DrawFormatError(f"Line {number} of the heads is not UEID, size and root between tabs.")
        last = _ueid(parts[0], number, last)
        heads[last] = (int(parts[1]), bytes.fromhex(parts[2]))
    return heads


def _lines(data: bytes, first: str) -> Iterable[tuple[int, str]]:
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError:
        raise DrawFormatError("The lines are not UTF-8; fetch them again.") from None
    if lines[0] != first or lines.pop() or len(lines) - 1 > MAX_CHIPS:
        raise DrawFormatError(f"The first line must be {first}, and the last one must end in a newline.")
    return enumerate(lines[1:], 2)


def _ueid(text: str, number: int, last: bytes) -> bytes:
    if not _UEID.fullmatch(text):
        raise DrawFormatError(f"Line {number} does not begin with a UEID of 17 to 33 bytes in lower-case hexadecimal.")
    ueid = bytes.fromhex(text)
    if ueid <= last:
        raise DrawFormatError(f"Line {number} is out of order: UEIDs must ascend, each once.")
    return ueid


def allocate(
    sizes: Sequence[int],
    samples: int,
    how: Allocation,
    *,
    speeds: Sequence[float],
    flops_threshold: float,
    period_days: float,
    snapshot_rate_per_day: float,
) -> list[int]:
    """Returns how many chips to draw of each stratum, `samples` together.

    Args:
        sizes: Chips in each stratum, at least one each.
        samples: Chips to draw in all, at least 1 and at most all.
        how: `proportional` to the sizes, or `optimal` against the worst spread of a run of H FLOPs in one period.
        speeds: FLOPs that one chip of each stratum can do per day (a_i); `optimal` needs them and what follows.
        flops_threshold: H.
        period_days: T_m; the run is taken to be as long.
        snapshot_rate_per_day: f.

    Raises:
        UsageError: There are fewer chips, or no allocation is optimal because the run does not fit.
    """
    chips = np.array(sizes, dtype=np.float64)
    total = int(chips.sum())
    if not 1 <= samples <= total:
        raise UsageError(f"cannot sample {samples} of {total} registered chips; register more or ask for fewer")
    if how == "proportional":
        wanted = samples * chips / total
    else:
        try:
            wanted = np.asarray(
                best_samples(
                    budget=samples,
                    sample_cost=np.ones_like(chips),
                    flops_threshold=flops_threshold,
                    chip_flops_per_day=np.array(speeds, dtype=np.float64),
                    chips=chips,
                    run_days=period_days,
                    shown=-np.expm1(-snapshot_rate_per_day * period_days),
                )
            )
        except DetectionDomainError as error:
            raise UsageError(f"no allocation of samples is optimal: {error}") from None
    found = np.asarray(whole_samples(samples=wanted, chips=chips))
    # An optimal allocation can ask for more than a stratum has; what is left goes where most chips are left.
    while (left := samples - int(found.sum())) > 0:
        place = int(np.argmax(chips - found))
        found[place] += min(left, chips[place] - found[place])
    return [int(count) for count in found]
