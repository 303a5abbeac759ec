"""What can be wrong with a rule, a rule set, or the facts that it is applied to."""

from __future__ import annotations

from weighbridge.core.errors import WeighbridgeError


class RuleError(WeighbridgeError):
    """A rule or rule set breaks the rules of its format."""

    code = "rules.malformed"


class FactsError(WeighbridgeError):
    """Facts do not have the names and types that rules may speak about."""

    code = "rules.facts"
