"""Alembic's environment and the revisions of the Verifier's database; see `verifier.store.revision`."""
