"""The draws of inspections, which are kept for what several monitoring periods are worth together."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes their table."""
    op.create_table(
        "draws",
        sa.Column("inspection", sa.String(), nullable=False),
        sa.Column("drawn_ms", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("aim", sa.String(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["inspection"], ["inspections.id"], name="fk_draws_inspection_inspections"),
        sa.PrimaryKeyConstraint("inspection", name="pk_draws"),
    )
