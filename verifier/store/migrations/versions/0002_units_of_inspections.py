"""What inspections have done, unit by unit, and what they said."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Makes the tables; an inspection that was under way begins again."""
    op.create_table(
        "inspection_units",
        sa.Column("inspection", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("object", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["inspection"], ["inspections.id"], name="fk_inspection_units_inspection_inspections"),
        sa.PrimaryKeyConstraint("inspection", "kind", "key", name="pk_inspection_units"),
    )
    op.create_table(
        "inspection_progress",
        sa.Column("inspection", sa.String(), nullable=False),
        sa.Column("place", _INTEGER, nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("done", _INTEGER, nullable=False),
        sa.Column("total", _INTEGER, nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["inspection"], ["inspections.id"], name="fk_inspection_progress_inspection_inspections"
        ),
        sa.PrimaryKeyConstraint("inspection", "place", name="pk_inspection_progress"),
    )
    op.create_table(
        "inspection_attempts",
        sa.Column("inspection", sa.String(), nullable=False),
        sa.Column("attempts", _INTEGER, nullable=False),
        sa.Column("units", _INTEGER, nullable=False),
        sa.ForeignKeyConstraint(
            ["inspection"], ["inspections.id"], name="fk_inspection_attempts_inspection_inspections"
        ),
        sa.PrimaryKeyConstraint("inspection", name="pk_inspection_attempts"),
    )
