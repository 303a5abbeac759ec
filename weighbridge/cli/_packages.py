"""What a command says when a package that it needs is not installed: which one, and what to install."""

from __future__ import annotations

from importlib.util import find_spec

from weighbridge.core.errors import UsageError

EXTRAS = {
    "transformers": "demo",
    "sklearn": "demo",
    "pyarrow": "parquet",
    "psycopg": "postgres",
    "ray": "ray",
    "fastapi": "console",
    "uvicorn": "console",
    "jax": "jax",
}
"""Which extra brings a module. Modules that are not listed come with a plain installation."""
_OURS = frozenset({"analysis", "firmware_sim", "protos", "prover", "verifier", "weighbridge"})


def missing(error: ModuleNotFoundError) -> UsageError | None:
    """Returns what to say of a module that was not found; None if it is one of ours, or a part of one that is there."""
    root = (error.name or "").partition(".")[0]
    if not root or root in _OURS or find_spec(root) is not None:
        return None
    return _lacking(root)


def require(*modules: str) -> None:
    """Checks that modules are installed, before anything is begun.

    Raises:
        UsageError: One is not.
    """
    for module in modules:
        if find_spec(module) is None:
            raise _lacking(module)


def _lacking(module: str) -> UsageError:
    whole = f"weighbridge[{EXTRAS[module]}]" if module in EXTRAS else "weighbridge"
    return UsageError(
        f"this needs the Python package {module}, which is not installed here; install it with what {whole} requires",
        code="usage.package",
    )
