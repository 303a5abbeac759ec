"""Published figures from CSV: FLOPs of models and FLOP/s of chips in Epoch AI's columns, and what verification costs.

A newer download of Epoch's "notable AI models" or "machine learning hardware" can be given instead of the files that
come with the package: columns are found by name, others are ignored, and rows without a figure are left out. The files
that come with the package have the same columns, and in `Source` where each figure was read and when.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TypeVar

from analysis.domain import DetectionDomainError

MODEL_COLUMNS = ("Model", "Organization", "Publication date", "Training compute (FLOP)")
CHIP_COLUMNS = ("Hardware name", "Manufacturer", "Release date", "Tensor-FP16/BF16 performance (FLOP/s)")
MEMORY_COLUMN = "Memory (bytes)"  # of chips; need not be there
SOURCE_COLUMNS = ("Source", "Link", "Link to datasheet")  # the first that is there and filled in is the source
SYSTEM_COLUMNS = (
    "System", "Kind", "Published", "Subject", "Proved work (FLOP)", "How the work is counted", "Prover time (s)",
    "Verifier time (s)", "Evidence (bytes)", "Time over plain training", "Note", "Source", "Link", "Read",
)  # fmt: skip
KINDS = ("proof", "replay", "tolerance")

_LARGEST_FILE = 64 * 2**20


class CatalogError(DetectionDomainError):
    """A CSV file that is not what it should be; the message names the line or column."""


@dataclass(frozen=True)
class Model:
    """A model that was trained: name, who trained it, publication date as written, training FLOPs, source."""

    name: str
    organization: str
    published: str
    flops: float
    source: str


@dataclass(frozen=True)
class Chip:
    """A chip: name, manufacturer, release date as written, peak dense 16-bit FLOP/s, source, bytes of memory."""

    name: str
    manufacturer: str
    released: str
    flops_per_second: float
    source: str
    memory_bytes: float | None = None


@dataclass(frozen=True)
class System:
    """A published way to verify training, and what it was measured to cost.

    Attributes:
        name: What it is called.
        kind: `proof`: the evidence can be checked alone. `replay`: training is done again, bit for bit. `tolerance`:
            it is done again, within a distance.
        published: Date as written.
        subject: What was measured.
        flops: FLOPs of training that the times and sizes are for; None where that was not published.
        counted: How these FLOPs were counted.
        prover_seconds: Time to make the evidence for them.
        verifier_seconds: Time to check it.
        evidence_bytes: Its size.
        time_ratio: Time of training with it over time of training without.
        note: What a reader must know of the figures.
        source: Where they were published.
        link: The same as an address.
        read: Date on which they were read there.
    """

    name: str
    kind: str
    published: str
    subject: str
    flops: float | None
    counted: str
    prover_seconds: float | None
    verifier_seconds: float | None
    evidence_bytes: float | None
    time_ratio: float | None
    note: str
    source: str
    link: str
    read: str


def load_models(path: Path | None = None) -> tuple[Model, ...]:
    """Returns the models in a CSV file, those without training FLOPs left out.

    Args:
        path: A file with at least `MODEL_COLUMNS`; None for the one that comes with the package.

    Raises:
        CatalogError: The file cannot be read, lacks a column, or holds a figure that is no positive number.
    """
    found = []
    for row, place in _rows(path, "models.csv", MODEL_COLUMNS):
        name, maker, date, figure = (row[column] for column in MODEL_COLUMNS)
        if figure:
            found.append(Model(name, maker, date, _figure(figure, place), _source(row)))
    return tuple(found)


def load_chips(path: Path | None = None) -> tuple[Chip, ...]:
    """Returns the chips in a CSV file, those without 16-bit FLOP/s left out.

    Args:
        path: A file with at least `CHIP_COLUMNS`; None for the one that comes with the package.

    Raises:
        CatalogError: The file cannot be read, lacks a column, or holds a figure that is no positive number.
    """
    found = []
    for row, place in _rows(path, "chips.csv", CHIP_COLUMNS):
        name, maker, date, figure = (row[column] for column in CHIP_COLUMNS)
        if figure:
            memory = _if_given(row.get(MEMORY_COLUMN, ""), place)
            found.append(Chip(name, maker, date, _figure(figure, place), _source(row), memory))
    return tuple(found)


def load_systems(path: Path | None = None) -> tuple[System, ...]:
    """Returns the published ways to verify training that a CSV file lists.

    Args:
        path: A file with `SYSTEM_COLUMNS`; None for the one that comes with the package.

    Raises:
        CatalogError: The file cannot be read, lacks a column, names a kind that is not one of `KINDS`, holds a figure
            that is no positive number, or gives a figure without its source and date.
    """
    found = []
    for row, place in _rows(path, "verification.csv", SYSTEM_COLUMNS):
        texts = {column: row[column] for column in SYSTEM_COLUMNS}
        if texts["Kind"] not in KINDS:
            raise CatalogError(f"{place}: Kind is {texts['Kind']!r:.40}; it must be one of {', '.join(KINDS)}")
        for column in ("Source", "Link", "Read"):
            if not texts[column]:
                raise CatalogError(f"{place}: {column} is empty; say where and when the figures were read")
        figures = {
            column: _if_given(texts[column], place)
            for column in (
                "Proved work (FLOP)", "Prover time (s)", "Verifier time (s)", "Evidence (bytes)",
                "Time over plain training",
            )
        }  # fmt: skip
        found.append(
            System(
                name=texts["System"],
                kind=texts["Kind"],
                published=texts["Published"],
                subject=texts["Subject"],
                flops=figures["Proved work (FLOP)"],
                counted=texts["How the work is counted"],
                prover_seconds=figures["Prover time (s)"],
                verifier_seconds=figures["Verifier time (s)"],
                evidence_bytes=figures["Evidence (bytes)"],
                time_ratio=figures["Time over plain training"],
                note=texts["Note"],
                source=texts["Source"],
                link=texts["Link"],
                read=texts["Read"],
            )
        )
    return tuple(found)


Entry = TypeVar("Entry", Model, Chip)


def named(entries: Sequence[Entry], name: str) -> Entry:
    """Returns the entry of that name.

    Args:
        entries: What `load_models` or `load_chips` returned.
        name: The name, as written in the file.

    Raises:
        CatalogError: There is none, or there are several; the message names similar ones.
    """
    found = [entry for entry in entries if entry.name == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise CatalogError(f"the catalogue has {len(found)} entries named {name!r:.80}; give the figure instead")
    names = [entry.name for entry in entries]
    near = [each for each in names if name.lower() in each.lower()] or difflib.get_close_matches(name, names, n=3)
    near = near[:8] or names[:8]
    raise CatalogError(f"the catalogue has no {name!r:.80}; it has, for example, {', '.join(map(repr, near))}")


def _rows(path: Path | None, packaged: str, columns: tuple[str, ...]) -> Iterator[tuple[dict[str, str], str]]:
    """Yields each line by column, stripped, and what to call it in messages."""
    name = packaged if path is None else str(path)
    reader = csv.reader(io.StringIO(_text(path, packaged), newline=""), strict=True)
    try:
        header = next(reader, [])
        for column in columns:
            if header.count(column) != 1:
                raise CatalogError(f"{name}: needs one column {column!r}; it has {', '.join(header)!r:.200}")
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise CatalogError(f"{name}, line {reader.line_num}: {len(row)} fields instead of {len(header)}")
            cells = {column: cell.strip() for column, cell in zip(header, row, strict=True)}
            yield cells, f"{name}, line {reader.line_num}"
    except csv.Error as error:
        raise CatalogError(f"{name}, line {reader.line_num}: no CSV ({error})") from None


def _source(row: Mapping[str, str]) -> str:
    return next((row[column] for column in SOURCE_COLUMNS if row.get(column)), "")


def _text(path: Path | None, packaged: str) -> str:
    file = resources.files("analysis").joinpath("data", packaged) if path is None else path
    try:
        if path is not None and path.stat().st_size > _LARGEST_FILE:
            raise CatalogError(f"{path}: larger than {_LARGEST_FILE} bytes, so no catalogue of models or chips")
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CatalogError(f"{path}: not UTF-8; save the download as it came") from None
    except (OSError, ValueError) as error:
        if isinstance(error, CatalogError):
            raise
        raise CatalogError(f"{path}: cannot be read: {error}") from None


def _if_given(text: str, place: str) -> float | None:
    return _figure(text, place) if text else None


def _figure(text: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise CatalogError(f"{place}: {text!r:.40} is no positive number")
    return value
