"""Runs revisions on the connection that `verifier.store.revision` hands over; Alembic executes this file."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context

from verifier.store import tables


def _render(kind: str, item: Any, autogen_context: Any) -> str | Literal[False]:
    """Writes 64-bit integers into new revisions as the models declare them."""
    if kind == "type" and type(item).__name__ == "BigInteger":
        return 'sa.BigInteger().with_variant(sa.Integer(), "sqlite")'
    return False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=tables.Base.metadata,
    render_as_batch=True,
    render_item=_render,
    compare_type=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
