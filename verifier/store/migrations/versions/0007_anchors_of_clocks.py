"""Heads of chips by which their clocks are compared with the Verifier's."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Makes the table; time from before it is not anchored."""
    op.create_table(
        "anchors",
        sa.Column("ueid", sa.LargeBinary(), nullable=False),
        sa.Column("boot_count", _INTEGER, nullable=False),
        sa.Column("place", _INTEGER, nullable=False),
        sa.Column("token", sa.LargeBinary(), nullable=False),
        sa.Column("asked_ms", _INTEGER, nullable=False),
        sa.Column("read_ms", _INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["ueid"], ["chips.ueid"], name="fk_anchors_ueid_chips"),
        sa.PrimaryKeyConstraint("ueid", "boot_count", "place", name="pk_anchors"),
    )
