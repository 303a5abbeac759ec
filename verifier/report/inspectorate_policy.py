"""What an inspectorate decides for itself: how grave findings are, and how the ledger counts. One TOML file.

A policy can lower any severity, and raise a warning. It cannot turn into a violation what is not evidence against the
Prover: notes (`info`) and evidence with a p-value become warnings at most.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

from verifier.report.ledger import AS_AGREED, LedgerPolicy
from weighbridge.core.digests import record_digest
from weighbridge.core.errors import Finding, Severity, UsageError

_ID = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")
_LARGEST = 1 << 20
_P_VALUES = ("p", "p_value", "p_few", "p_many", "p_reboots")


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """An inspectorate's policy.

    Attributes:
        severities: By identifier of a finding, the severity that it is to have.
        ledger: How the ledger counts.
    """

    severities: Mapping[str, Severity] = field(default_factory=dict)
    ledger: LedgerPolicy = AS_AGREED

    def to_json(self) -> dict[str, Any]:
        """Returns JSON-compatible data with every field, and the digest that names it."""
        content = {"severities": dict(sorted(self.severities.items())), "ledger": self.ledger.to_json()}
        return {**content, "digest": record_digest("policy/1", content).hex()}

    def apply(self, findings: Iterable[Finding]) -> tuple[list[Finding], list[dict[str, str]]]:
        """Returns findings with the severities of this policy, and what was changed.

        Args:
            findings: As the checks made them.

        Returns:
            The findings, in order; and for each that changed its `id`, `subject`, and severity `was` and `now`.
        """
        out, changes = [], []
        for finding in findings:
            wanted = self.severities.get(finding.id, finding.severity)
            if wanted == "violation" and finding.severity != "violation" and not accuses(finding):
                wanted = "warning"
            if wanted != finding.severity:
                changes.append({"id": finding.id, "subject": finding.subject, "was": finding.severity, "now": wanted})
            out.append(replace(finding, severity=wanted))
        return out, changes


def accuses(finding: Finding) -> bool:
    """Whether a finding may be called a violation: it is more than a note, and does not rest on chance."""
    return finding.severity != "info" and not any(name in finding.evidence for name in _P_VALUES)


def load(path: str | Path) -> Policy:
    """Reads a policy from a TOML file with the tables `[severities]` and `[ledger]`, each of which may be missing.

    Raises:
        UsageError: It cannot be read, or has a key or value that makes no sense; the message names it.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        raw = tomllib.loads(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read {path} ({error}); give a policy in TOML, as docs/reports.md has it") from None
    for name in raw:
        if name not in ("severities", "ledger") or not isinstance(raw[name], dict):
            raise UsageError(f"{path}: {name[:80]!r} is no table of a policy; there are [severities] and [ledger]")
    severities = raw.get("severities", {})
    for name, value in severities.items():
        if not _ID.fullmatch(name) or value not in get_args(Severity):
            raise UsageError(
                f"{path}: {name[:80]!r} = {value!r:.80}: a finding's identifier has one of the severities "
                f'{", ".join(get_args(Severity))}; write it as "snapshot.tail" = "info"'
            )
    return Policy(severities=cast("dict[str, Severity]", severities), ledger=_ledger(path, raw.get("ledger", {})))


def _ledger(path: Path, raw: dict[str, Any]) -> LedgerPolicy:
    fields = dict(raw)
    exempt = fields.pop("exempt", [])
    if not isinstance(exempt, list) or not all(isinstance(each, str) for each in exempt):
        raise UsageError(f"{path}: exempt must be a list of UEIDs in hexadecimal, or types, of chips")
    for name, value in fields.items():
        if name not in ("tolerated_share", "confidence") or type(value) not in (int, float):
            raise UsageError(f"{path}: {name[:80]!r} = {value!r:.80} is no setting of the ledger")
    return LedgerPolicy(exempt=frozenset(exempt), **fields)


AS_DESIGNED = Policy()
