"""How a chip is told to report its log: in which mode, which witness it trusts, and how long a workload waits.

Two modes. In `log` the chip keeps its entries in the NVRAM until a Verifier reads them. In `wait` the workload resumes
after a snapshot only when the witness has acknowledged it, that is, has cosigned a checkpoint above it. In both, an
NVRAM without room for another entry stops the workload, and only what the witness has cosigned makes room.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from weighbridge.attest.tlog import WITNESS, NoteKey, parse_key
from weighbridge.core.errors import UsageError

Mode = Literal["log", "wait"]

DEFAULT_PATIENCE_S = 600.0
NO_WITNESS = bytes(32)
"""What a boot entry names as the witness's key if the chip trusts none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reporting:
    """How a chip reports.

    Attributes:
        mode: `log` or `wait`.
        witness: The key whose cosignatures the chip trusts; without one it never drops an entry.
        patience_s: Seconds on the host's clock after which a workload that waits is told so.
    """

    mode: Mode = "log"
    witness: NoteKey | None = None
    patience_s: float = DEFAULT_PATIENCE_S

    def __post_init__(self) -> None:
        """Checks that there is a witness to wait for.

        Raises:
            UsageError: The mode is `wait` without a witness, the key is no witness's, or the patience is negative.
        """
        if self.mode == "wait" and self.witness is None:
            raise UsageError("A chip that waits for a witness needs the witness's key; pass --witness-key.")
        if self.witness is not None and self.witness.type != WITNESS:
            raise UsageError("The witness's key must be one that makes cosignatures (type 4).")
        if not self.patience_s >= 0:
            raise UsageError("The patience must not be negative.")


def witness_key(path: Path | None) -> NoteKey | None:
    """Reads the file with the key of the witness that a chip is to trust; None for no file.

    Raises:
        WeighbridgeError: It cannot be read, or holds no key.
    """
    if path is None:
        return None
    try:
        return parse_key(path.read_text().strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Cannot read {path}; give the file with the witness's verifier key.") from error
