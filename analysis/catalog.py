"""Published figures of models (training FLOPs) and chips (FLOP/s), from CSV in the columns of Epoch AI's downloads.

A newer download of Epoch's "notable AI models" or "machine learning hardware" can be given instead of the files that
come with the package: columns are found by name, others are ignored, and rows without a figure are left out. The files
that come with the package have the same columns, and in `Source` where each figure was read and when.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from analysis.domain import DetectionDomainError

MODEL_COLUMNS = ("Model", "Organization", "Publication date", "Training compute (FLOP)")
CHIP_COLUMNS = ("Hardware name", "Manufacturer", "Release date", "Tensor-FP16/BF16 performance (FLOP/s)")
SOURCE_COLUMNS = ("Source", "Link", "Link to datasheet")  # the first that is there and filled in is the source

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
    """A chip: name, manufacturer, release date as written, peak dense 16-bit FLOP/s, source."""

    name: str
    manufacturer: str
    released: str
    flops_per_second: float
    source: str


def load_models(path: Path | None = None) -> tuple[Model, ...]:
    """Returns the models in a CSV file, those without training FLOPs left out.

    Args:
        path: A file with at least `MODEL_COLUMNS`; None for the one that comes with the package.

    Raises:
        CatalogError: The file cannot be read, lacks a column, or holds a figure that is no positive number.
    """
    return tuple(Model(*row) for row in _rows(path, "models.csv", MODEL_COLUMNS))


def load_chips(path: Path | None = None) -> tuple[Chip, ...]:
    """Returns the chips in a CSV file, those without 16-bit FLOP/s left out.

    Args:
        path: A file with at least `CHIP_COLUMNS`; None for the one that comes with the package.

    Raises:
        CatalogError: The file cannot be read, lacks a column, or holds a figure that is no positive number.
    """
    return tuple(Chip(*row) for row in _rows(path, "chips.csv", CHIP_COLUMNS))


def _rows(path: Path | None, packaged: str, columns: tuple[str, ...]) -> Iterator[tuple[str, str, str, float, str]]:
    name = packaged if path is None else str(path)
    reader = csv.reader(io.StringIO(_text(path, packaged), newline=""), strict=True)
    try:
        header = next(reader, [])
        for column in columns:
            if header.count(column) != 1:
                raise CatalogError(f"{name}: needs one column {column!r}; it has {', '.join(header)!r:.200}")
        places = [header.index(column) for column in columns]
        sources = [header.index(column) for column in SOURCE_COLUMNS if column in header]
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise CatalogError(f"{name}, line {reader.line_num}: {len(row)} fields instead of {len(header)}")
            title, maker, date, figure = (row[place].strip() for place in places)
            if figure:
                source = next((row[place] for place in sources if row[place]), "")
                yield title, maker, date, _figure(figure, f"{name}, line {reader.line_num}"), source
    except csv.Error as error:
        raise CatalogError(f"{name}, line {reader.line_num}: no CSV ({error})") from None


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


def _figure(text: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise CatalogError(f"{place}: {text!r:.40} is no positive number")
    return value
