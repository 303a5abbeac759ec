"""Errors and findings: one root, stable reason codes.

Every error that malformed or hostile input can cause is a `WeighbridgeError`. Its `code` is the same dotted string that
a `Finding` carries, so logs, reports, exit messages and documentation name a fault the same way.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

Severity = Literal["info", "warning", "violation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One machine-readable thing that an inspection or replay found.

    Attributes:
        id: Stable dotted identifier, e.g. `snapshot.unexplained`.
        message: One sentence for a person.
        expected: What an honest party would have shown, as text.
        found: What was there instead, as text.
        subject: What it is about: a chip, a transcript, a file, a position.
        severity: `info`, `warning` or `violation`; policies may change it.
        evidence: Digests (hex) and numbers that let a reader look again.
    """

    id: str
    message: str
    expected: str = ""
    found: str = ""
    subject: str = ""
    severity: Severity = "violation"
    evidence: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-compatible dictionary with every field."""
        return asdict(self)


class WeighbridgeError(Exception):
    """Root of all errors raised on purpose.

    Attributes:
        code: Stable dotted reason code. A class has a default; an instance may be more specific.
        details: Machine-readable facts about this occurrence.
    """

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, /, *, code: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self._code = code
        self.details = details

    @property
    def reason(self) -> str:
        """The code of this occurrence (the class's, unless a more specific one was given)."""
        return self._code or type(self).code

    def finding(self, *, subject: str = "") -> Finding:
        """Turns this error into a finding, for checks that must not stop at the first failure."""
        return Finding(id=self.reason, message=self.message, subject=subject, evidence=dict(self.details))

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class UsageError(WeighbridgeError):
    """The caller asked for something that makes no sense; exit code 2."""

    code = "usage"


class FormatError(WeighbridgeError):
    """Bytes that do not follow the format they claim."""

    code = "format.malformed"


class TranscriptError(WeighbridgeError):
    """A transcript directory is unreadable, altered or incomplete."""

    code = "transcript.malformed"


class TapeError(WeighbridgeError):
    """A tape is malformed, names a forbidden operation or asks for too much."""

    code = "tape.malformed"


class LogError(WeighbridgeError):
    """A rounding log is malformed."""

    code = "replay.rounding.malformed"


class ProofError(WeighbridgeError):
    """A Merkle inclusion or consistency proof does not verify."""

    code = "merkle.proof"


class TokenError(WeighbridgeError):
    """A snapshot token or log entry does not verify."""

    code = "chip.token"


class OwnCredentialsError(Exception):
    """A process cannot speak because of its own credentials.

    It is no `WeighbridgeError`, so that nothing takes it for something that a peer did.
    """


class IdentityError(WeighbridgeError):
    """A certificate chain does not verify or does not have the needed role."""

    code = "identity.chain"


class ChipError(WeighbridgeError):
    """A chip does not answer, or its log is damaged."""

    code = "chip.unreachable"


class ProverError(WeighbridgeError):
    """A Prover's service does not answer."""

    code = "prover.unreachable"


class UnknownOperationError(WeighbridgeError):
    """An operation has no rule; recording stops before it runs."""

    code = "record.operation.unknown"


class RefusedOperationError(WeighbridgeError):
    """An operation has no bound and no fixed-order form; the message says what to write instead."""

    code = "record.operation.refused"


class DeviceArithmeticError(WeighbridgeError):
    """A device computes in a way that no bound covers."""

    code = "device.arithmetic"


class StateChangedError(WeighbridgeError):
    """State changed outside a recorded step."""

    code = "record.state.changed"


class ReplayWorkerError(WeighbridgeError):
    """The replay worker died, ran out of its limits or answered with nonsense."""

    code = "replay.worker"


class NotFoundError(UsageError):
    """Something that the caller names is not there.

    Details: `resource`, what kind of thing it is (`chip`, `transcript`, `inspection`, `snapshot`, ...), and `name`.
    """


class QuotaError(WeighbridgeError):
    """A caller has used up what it may keep here; waiting does not help."""

    code = "transcript.upload.quota"
