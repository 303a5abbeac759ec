"""Names of chips, and summaries of reports."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the columns; chips from before have no name, and reports from before no summary."""
    with op.batch_alter_table("chips", schema=None) as batch_op:
        batch_op.add_column(sa.Column("name", sa.String(), server_default="", nullable=False))
    with op.batch_alter_table("inspections", schema=None) as batch_op:
        batch_op.add_column(sa.Column("summary", sa.String(), nullable=True))
