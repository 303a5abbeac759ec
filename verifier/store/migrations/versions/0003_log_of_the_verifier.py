"""The Verifier's own log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes its table."""
    op.create_table(
        "verifier_log",
        sa.Column(
            "place",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("checkpoint", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("place", name="pk_verifier_log"),
    )
