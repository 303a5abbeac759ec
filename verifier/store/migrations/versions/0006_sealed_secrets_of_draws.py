"""Secrets of draws that are not opened yet are sealed."""

from __future__ import annotations

from typing import Any

import cbor2
import sqlalchemy as sa
import zstandard
from alembic import context, op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_UNITS = sa.table(
    "inspection_units",
    sa.column("inspection", sa.String()),
    sa.column("kind", sa.String()),
    sa.column("key", sa.String()),
    sa.column("value", sa.LargeBinary()),
    sa.column("object", sa.LargeBinary()),
)


def upgrade() -> None:
    """Seals them with what `verifier.store.revision.upgrade` hands over; opened ones are in the Verifier's log."""
    connection, handed = op.get_bind(), context.config.attributes
    draws = sa.select(_UNITS).where(_UNITS.c.kind == "draw")
    rows = {(row.inspection, row.key): row for row in connection.execute(draws)}
    for (inspection, key), row in rows.items():
        attempt = key.removeprefix("commitment-")
        ended = any((inspection, f"{end}-{attempt}") in rows for end in ("opening", "abandoned"))
        if attempt == key or ended:
            continue
        data = handed["kept"](bytes(row.object)) if row.object else row.value
        made: dict[str, Any] = cbor2.loads(zstandard.ZstdDecompressor().decompress(data))
        if "sealed" in made:
            continue
        made["sealed"] = handed["seal"](made.pop("secret"))
        value = zstandard.ZstdCompressor().compress(cbor2.dumps(made, canonical=True))
        where = (_UNITS.c.inspection == inspection, _UNITS.c.kind == "draw", _UNITS.c.key == key)
        connection.execute(sa.update(_UNITS).where(*where).values(value=value, object=b""))
