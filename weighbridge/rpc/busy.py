"""The error of a caller who has used up its share for now."""

from __future__ import annotations

from weighbridge.core.errors import WeighbridgeError


class BusyError(WeighbridgeError):
    """A caller has used up its share for now; details: `retry_s`, the seconds after which to try again."""

    code = "rpc.busy"

    @property
    def retry_s(self) -> float:
        """Seconds to wait; a peer's nonsense reads as one."""
        try:
            return min(max(float(self.details.get("retry_s", 1)), 0.0), 3600.0)
        except ValueError:
            return 1.0
