"""Writes a revision from the newest one to today's tables: `python -m verifier.store.migrations "what changed"`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from alembic import command

from verifier.store import revision
from verifier.store.database import Database


def main() -> int:
    """Writes the file; returns the exit code."""
    if len(sys.argv) != 2:
        print('usage: python -m verifier.store.migrations "what changed"', file=sys.stderr)
        return 2
    number = f"{int(revision.newest()) + 1:04d}"
    with tempfile.TemporaryDirectory() as scratch:
        database = Database(Path(scratch) / "empty.db")
        with database.engine.begin() as connection:
            command.upgrade(revision.config(connection), "head")
        with database.engine.connect() as connection:
            command.revision(revision.config(connection), message=sys.argv[1], autogenerate=True, rev_id=number)
        database.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
