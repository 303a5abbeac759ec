"""CSV files of models and chips: the packaged ones, newer ones, and ones that are not what they should be."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.catalog import (
    CHIP_COLUMNS,
    MODEL_COLUMNS,
    SYSTEM_COLUMNS,
    CatalogError,
    load_chips,
    load_models,
    load_systems,
    named,
)
from analysis.paper import CHIP_FLOPS_PER_DAY, MODELS

CELL = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n\x00"), max_size=20).map(str.strip)


def test_packaged_models_agree_with_the_paper_and_name_their_sources() -> None:
    models = {model.name: model for model in load_models()}
    for each in MODELS:
        assert models[each.name].flops == each.flops
    assert all(model.source for model in models.values())
    chips = load_chips()
    assert all(chip.source for chip in chips)
    assert any(chip.flops_per_second * 86400 == CHIP_FLOPS_PER_DAY for chip in chips)


@settings(deadline=None)
@given(rows=st.lists(st.tuples(CELL, CELL, CELL, st.floats(1e-300, 1e300), CELL), max_size=5), extra=st.booleans())
def test_what_is_written_is_read(
    rows: list[tuple[str, str, str, float, str]], extra: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Round trip: load(write(rows)) == rows, whatever other columns there are, in any order."""
    path = tmp_path_factory.mktemp("catalog") / "models.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*reversed(MODEL_COLUMNS), "Source", *(["Notes"] if extra else [])])
        for name, maker, date, figure, source in rows:
            writer.writerow([repr(figure), date, maker, name, source, *(["a, b"] if extra else [])])
    found = [(m.name, m.organization, m.published, m.flops, m.source) for m in load_models(path)]
    assert found == rows


def test_rows_without_a_figure_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "chips.csv"
    path.write_text(",".join(CHIP_COLUMNS) + ",Link to datasheet\nA,B,2024-01-01,,x\nC,D,2025-01-01,1e15,y\n\n")
    (chip,) = load_chips(path)
    assert (chip.name, chip.flops_per_second, chip.source) == ("C", 1e15, "y")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "Hardware name"),
        (b"Model,Organization\nx,y\n", "Hardware name"),
        (",".join([*CHIP_COLUMNS, CHIP_COLUMNS[0]]).encode(), "one column"),
        ((",".join(CHIP_COLUMNS) + "\na,b,c\n").encode(), "line 2: 3 fields"),
        ((",".join(CHIP_COLUMNS) + "\na,b,c,fast\n").encode(), "'fast' is no positive number"),
        ((",".join(CHIP_COLUMNS) + "\na,b,c,nan\n").encode(), "no positive number"),
        ((",".join(CHIP_COLUMNS) + "\na,b,c,-1\n").encode(), "no positive number"),
        ((",".join(CHIP_COLUMNS) + '\n"a').encode(), "no CSV"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_what_is_no_catalogue(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "chips.csv"
    path.write_bytes(content)
    with pytest.raises(CatalogError, match=says):
        load_chips(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="cannot be read"):
        load_models(tmp_path / "none.csv")


@settings(deadline=None)
@given(content=st.binary(max_size=300), with_header=st.booleans())
def test_hostile_bytes_raise_only_catalogue_errors(
    content: bytes, with_header: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("catalog") / "models.csv"
    path.write_bytes((",".join(MODEL_COLUMNS).encode() + b"\n" if with_header else b"") + content)
    try:
        models = load_models(path)
    except CatalogError:
        return
    assert all(model.flops > 0 for model in models)


def test_every_packaged_figure_is_dated_and_has_a_source() -> None:
    for model in load_models():
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", model.published), model
        product = re.match(r"6 x ([\d.e]+) .*? x ([\d.e]+) ", model.source)
        if product:
            assert model.flops == pytest.approx(6 * float(product[1]) * float(product[2]), rel=0.005), model
    for chip in load_chips():
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", chip.released), chip
        assert 1e14 <= chip.flops_per_second < 1e16, chip
        assert chip.memory_bytes is None or 1e10 <= chip.memory_bytes < 1e12, chip
    assert len({model.name for model in load_models()}) == len(load_models())


def test_packaged_systems_count_their_work() -> None:
    systems = {system.name: system for system in load_systems()}
    assert {"Kaizen", "zkDL", "Garg et al."} <= {name for name, each in systems.items() if each.kind == "proof"}
    assert systems["zkDL"].flops == 6 * 1e7 * 64
    assert systems["Garg et al."].flops == pytest.approx(4 * 1024 * 262_144, rel=0.01)
    # Convolutions of VGG-11 on 32x32 images: output pixels x kernel x channels in and out.
    layers = [(32, 3, 64), (16, 64, 128), (8, 128, 256), (8, 256, 256), (4, 256, 512), (4, 512, 512)]
    layers += [(2, 512, 512)] * 2
    multiplied = sum(side * side * 9 * before * after for side, before, after in layers)
    assert multiplied == pytest.approx(1.528e8, rel=0.001)
    assert systems["Kaizen"].flops == pytest.approx(3 * 2 * multiplied * 16, rel=0.005)
    for system in systems.values():
        assert re.fullmatch(r"\d{4}-\d{2}", system.published)
        assert re.fullmatch(r"\d{4}-\d{2}(-\d{2})?", system.read)
        assert system.link.startswith("https://")
        assert (system.flops is None) == (system.counted == "")


def test_entries_by_name() -> None:
    assert named(load_models(), "GPT-3").flops == 3.14e23
    with pytest.raises(CatalogError, match="'NVIDIA H100 SXM5 80GB'"):
        named(load_chips(), "h100")
    with pytest.raises(CatalogError, match="for example"):
        named(load_models(), "\x00")
    with pytest.raises(CatalogError, match="2 entries"):
        named([*load_models(), *load_models()], "GPT-3")


SYSTEM = dict.fromkeys(SYSTEM_COLUMNS, "x") | {
    "Kind": "proof", "Proved work (FLOP)": "1e9", "Prover time (s)": "", "Verifier time (s)": "",
    "Evidence (bytes)": "", "Time over plain training": "",
}  # fmt: skip


def _systems(tmp_path: Path, row: dict[str, str]) -> Path:
    path = tmp_path / "systems.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, SYSTEM_COLUMNS)
        writer.writeheader()
        writer.writerow(row)
    return path


def test_a_system_is_read_as_written(tmp_path: Path) -> None:
    (system,) = load_systems(_systems(tmp_path, SYSTEM))
    assert (system.kind, system.flops, system.prover_seconds, system.source) == ("proof", 1e9, None, "x")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"Kind": "belief"}, "one of proof, replay, tolerance"),
        ({"Source": ""}, "Source is empty"),
        ({"Read": " "}, "Read is empty"),
        ({"Prover time (s)": "fast"}, "'fast' is no positive number"),
        ({"Evidence (bytes)": "-1"}, "no positive number"),
    ],
)
def test_systems_that_cannot_be_quoted(changed: dict[str, str], says: str, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=says):
        load_systems(_systems(tmp_path, SYSTEM | changed))


def test_downloads_as_they_come(tmp_path: Path) -> None:
    """Columns and quirks of Epoch AI's downloads of 2025 and 2026: texts of several lines, empty figures."""
    models, chips = tmp_path / "notable_ai_models.csv", tmp_path / "ml_hardware.csv"
    models.write_text(
        "Model,Organization,Publication date,Domain,Task,Parameters,Parameters notes,Training compute (FLOP),"
        "Training compute notes,Confidence,Link,Reference,Abstract,Base model,Open model weights?\n"
        'One,"Lab, Inc.",2026-04-24,Language,"Chat,Code",1600000000000.0,"1.6T total, 49B active",9.702e+24,'
        '6 * 49e9 * 33e12,Likely,https://example.org/one.pdf,One,"Two\nlines, ""quoted"".",,Yes\n'
        "Two,Lab,2026-04-23,Language,Chat,,,,,Unknown,https://example.org/two,Two,,,No\n",
        encoding="utf-8",
    )
    chips.write_text(
        "Hardware name,Manufacturer,Type,Notes,Release date,Release price (USD),Tensor-FP16/BF16 performance (FLOP/s),"
        "FP8 performance (FLOP/s),Memory (bytes),TDP (W),Link to datasheet\n"
        'A,NVIDIA,GPU,"Listed\nwithout sparsity.",2024-11-15,,2250000000000000.0,4.5e+15,180000000000.0,1000.0,'
        '"https://example.org/a\nhttps://example.org/b"\n'
        "B,AMD,GPU,,2023-12-06,,,,192000000000.0,750.0,https://example.org/c\n"
        "C,AWS,GPU,,2025-12-02,,671000000000000.0,2517000000000000.0,,700.0,https://example.org/d\n",
        encoding="utf-8-sig",
    )
    (model,) = load_models(models)
    assert (model.name, model.organization, model.flops) == ("One", "Lab, Inc.", 9.702e24)
    assert model.source == "https://example.org/one.pdf"
    first, second = load_chips(chips)
    assert (first.name, first.flops_per_second, first.memory_bytes) == ("A", 2.25e15, 1.8e11)
    assert (second.name, second.memory_bytes) == ("C", None)
