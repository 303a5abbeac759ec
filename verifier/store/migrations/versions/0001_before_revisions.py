"""The tables from before there were revisions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Makes them."""
    op.create_table(
        "chips",
        sa.Column("ueid", sa.LargeBinary(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("prover_address", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("site", sa.String(), nullable=False),
        sa.Column("chip_type", sa.String(), nullable=False),
        sa.Column("registered_at", sa.String(), nullable=False),
        sa.Column("witnessed_size", _INTEGER, nullable=False),
        sa.Column("witnessed_last", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("ueid", name="pk_chips"),
    )
    op.create_table(
        "inspections",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(), nullable=False),
        sa.Column("seed", sa.LargeBinary(), nullable=False),
        sa.Column("plan", sa.String(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("report", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_inspections"),
    )
    op.create_table(
        "sampled",
        sa.Column("inspection", sa.String(), nullable=False),
        sa.Column("place", _INTEGER, nullable=False),
        sa.Column("ueid", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["inspection"], ["inspections.id"], name="fk_sampled_inspection_inspections"),
        sa.ForeignKeyConstraint(["ueid"], ["chips.ueid"], name="fk_sampled_ueid_chips"),
        sa.PrimaryKeyConstraint("inspection", "place", name="pk_sampled"),
    )
    op.create_table(
        "held_logs",
        sa.Column("ueid", sa.LargeBinary(), nullable=False),
        sa.Column("size", _INTEGER, nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("checkpoint", sa.LargeBinary(), nullable=False),
        sa.Column("chip_ms", _INTEGER, nullable=False),
        sa.Column("read_ms", _INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["ueid"], ["chips.ueid"], name="fk_held_logs_ueid_chips"),
        sa.PrimaryKeyConstraint("ueid", name="pk_held_logs"),
    )
    op.create_table(
        "held_entries",
        sa.Column("ueid", sa.LargeBinary(), nullable=False),
        sa.Column("place", _INTEGER, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["ueid"], ["chips.ueid"], name="fk_held_entries_ueid_chips"),
        sa.PrimaryKeyConstraint("ueid", "place", name="pk_held_entries"),
    )
    op.create_table(
        "log_keys",
        sa.Column("ueid", sa.LargeBinary(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["ueid"], ["chips.ueid"], name="fk_log_keys_ueid_chips"),
        sa.PrimaryKeyConstraint("ueid", "key", name="pk_log_keys"),
    )
    op.create_table(
        "refused_checkpoints",
        sa.Column("id", _INTEGER, nullable=False),
        sa.Column("ueid", sa.LargeBinary(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("checkpoint", sa.LargeBinary(), nullable=False),
        sa.Column("token", sa.LargeBinary(), nullable=False),
        sa.Column("held", sa.LargeBinary(), nullable=False),
        sa.Column("read_ms", _INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["ueid"], ["chips.ueid"], name="fk_refused_checkpoints_ueid_chips"),
        sa.PrimaryKeyConstraint("id", name="pk_refused_checkpoints"),
    )
