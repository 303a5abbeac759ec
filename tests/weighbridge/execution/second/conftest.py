"""Looks what was imported when all tests were collected."""

from __future__ import annotations

import sys

import pytest

_LOADED = pytest.StashKey[bool]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Notes whether JAX was there before any test ran."""
    session.config.stash[_LOADED] = "jax" in sys.modules


@pytest.fixture
def jax_at_collection(pytestconfig: pytest.Config) -> bool:
    """Whether it was."""
    return pytestconfig.stash[_LOADED]
