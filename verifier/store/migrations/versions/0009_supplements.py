"""Rounding logs that Provers were asked for, and what they signed about them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Makes the tables; no Prover was asked before."""
    op.create_table(
        "regenerations",
        sa.Column("inspection", sa.String(), nullable=False),
        sa.Column("prover", sa.String(), nullable=False),
        sa.Column("transcript", sa.String(), nullable=False),
        sa.Column("begin", _INTEGER, autoincrement=False, nullable=False),
        sa.Column("wanted", _INTEGER, nullable=False),
        sa.Column("came", _INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["inspection"], ["inspections.id"], name="fk_regenerations_inspection_inspections"),
        sa.PrimaryKeyConstraint("inspection", "prover", "transcript", "begin", name="pk_regenerations"),
    )
    op.create_table(
        "supplements",
        sa.Column("draft", sa.LargeBinary(), nullable=False),
        sa.Column("signer", sa.LargeBinary(), nullable=False),
        sa.Column("step", _INTEGER, autoincrement=False, nullable=False),
        sa.Column("rounding", sa.LargeBinary(), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("draft", "signer", "step", "rounding", name="pk_supplements"),
    )
