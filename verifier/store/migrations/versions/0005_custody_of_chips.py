"""Custody of chips: the registry's log, the parties, and what follows for each chip."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Makes them; chips from before are installed, and no statement speaks of them."""
    op.create_table(
        "registry_log",
        sa.Column("place", _INTEGER, autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("place", name="pk_registry_log"),
        sa.UniqueConstraint("digest", name="uq_registry_log_digest"),
    )
    op.create_table(
        "registry_log_head",
        sa.Column("id", _INTEGER, nullable=False),
        sa.Column("size", _INTEGER, nullable=False),
        sa.Column("name", sa.String(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_registry_log_head"),
    )
    op.create_table(
        "registry_parties",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("place", _INTEGER, nullable=False),
        sa.Column("roles", sa.String(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", "place", name="pk_registry_parties"),
    )
    op.create_table(
        "registry_contradictions",
        sa.Column("ueid", sa.LargeBinary(), nullable=False),
        sa.Column("place", _INTEGER, nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("expected", sa.String(), nullable=False),
        sa.Column("found", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["ueid"], ["chips.ueid"], name="fk_registry_contradictions_ueid_chips"),
        sa.PrimaryKeyConstraint("ueid", "place", "reason", name="pk_registry_contradictions"),
    )
    with op.batch_alter_table("chips", schema=None) as batch_op:
        batch_op.add_column(sa.Column("state", sa.String(), server_default="installed", nullable=False))
        batch_op.add_column(sa.Column("maker", sa.String(), server_default="", nullable=False))
        batch_op.add_column(sa.Column("since_s", _INTEGER, server_default="0", nullable=False))
        batch_op.add_column(sa.Column("latest_s", _INTEGER, server_default="0", nullable=False))
        batch_op.add_column(sa.Column("history", sa.LargeBinary(), server_default=sa.text("''"), nullable=False))
