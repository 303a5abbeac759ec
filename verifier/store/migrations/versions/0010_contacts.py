"""When the witness first held entries of chips' logs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Makes the table; of contacts before, only the newest of each chip is known, which may be none of the first."""
    op.create_table(
        "contacts",
        sa.Column("ueid", sa.LargeBinary(), nullable=False),
        sa.Column("size", _INTEGER, autoincrement=False, nullable=False),
        sa.Column("time_s", _INTEGER, nullable=False),
        sa.Column("chip_ms", _INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["ueid"], ["chips.ueid"], name="fk_contacts_ueid_chips"),
        sa.PrimaryKeyConstraint("ueid", "size", name="pk_contacts"),
    )
