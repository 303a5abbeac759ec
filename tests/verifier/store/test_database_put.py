"""Rows are put into tables whether or not they are there, with one statement and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from verifier.store import database
from verifier.store.database import Database


class Tables(DeclarativeBase):
    pass


class Word(Tables):
    __tablename__ = "words"
    text: Mapped[str] = mapped_column(primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)
    meaning: Mapped[str]


class Seen(Tables):
    __tablename__ = "seen"
    text: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture(params=["one statement", "any database"])
def opened(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    if request.param == "any database":
        monkeypatch.setattr(database, "_INSERTS", {})
    found = Database(tmp_path / "words.sqlite")
    Tables.metadata.create_all(found.engine)
    yield found
    found.close()


def test_what_is_put_is_there_once_and_as_it_was_put_last(opened: Database) -> None:
    old, new = ({"text": "chip", "place": 1, "meaning": meaning} for meaning in ("wood", "accelerator"))
    other = {"text": "chip", "place": 2, "meaning": "potato"}
    for rows in ((old,), (), (new, other), (other,)):
        with opened.session.begin() as session:
            database.put(session, Word, *rows)
            for _ in range(2):
                database.put(session, Seen, {"text": "chip"})
    with opened.session() as session:
        words = session.execute(select(Word.text, Word.place, Word.meaning).order_by(Word.place)).all()
        assert [tuple(row) for row in words] == [("chip", 1, "accelerator"), ("chip", 2, "potato")]
        assert list(session.scalars(select(Seen.text))) == ["chip"]


def put_and_fail(opened: Database) -> None:
    with opened.session.begin() as session:
        database.put(session, Seen, {"text": "chip"})
        raise RuntimeError


def test_a_transaction_that_fails_puts_nothing(opened: Database) -> None:
    with pytest.raises(RuntimeError):
        put_and_fail(opened)
    with opened.session() as session:
        assert session.scalars(select(Seen.text)).all() == []
