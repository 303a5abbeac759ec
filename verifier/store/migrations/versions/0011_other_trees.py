"""What Provers signed about other trees of a step than the first: proof that they equivocated."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Makes the table; of trees before, only the first one of each log was kept."""
    op.create_table(
        "supplement_trees",
        sa.Column("draft", sa.LargeBinary(), nullable=False),
        sa.Column("signer", sa.LargeBinary(), nullable=False),
        sa.Column("step", _INTEGER, autoincrement=False, nullable=False),
        sa.Column("rounding", sa.LargeBinary(), nullable=False),
        sa.Column("tree", sa.LargeBinary(), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("draft", "signer", "step", "rounding", "tree", name="pk_supplement_trees"),
    )
