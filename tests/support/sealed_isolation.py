"""What this machine does not permit of what a sealed worker needs."""

from __future__ import annotations

from weighbridge.execution.sealed.lacking import lacking

LACKING = ", ".join(lacking())
"""Empty if nothing is lacking."""
