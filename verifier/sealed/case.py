"""The Verifier's case: what an inspection knows once it has read the logs of the drawn chips, and what it applies.

A case is public between the two parties: the Prover sees whom and what it asks about before it commits to anything, and
both sign an order that names it. A worker reads it as hostile all the same, because a party may try to take the worker
over by it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from verifier.model import fact_codec
from verifier.model.agreed_population import AgreedPopulation, parse
from verifier.model.facts import LogFacts, Plan
from verifier.model.reference_values import FirmwarePolicy
from verifier.registry import Chip
from verifier.registry.transitions import Contradiction
from verifier.report import regime
from verifier.report.regime import Regime
from weighbridge.attest.beacon import parse_round, verify_round
from weighbridge.attest.certificates import load_der
from weighbridge.attest.outcome_agreement import Agreement
from weighbridge.attest.sealed_session import CASE_LIMIT
from weighbridge.attest.tlog import NoteKey, parse_key
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor, record_digest
from weighbridge.core.errors import FormatError, UsageError, WeighbridgeError

FORMAT = 2
_ITEMS = 1 << 22
_OWN_SETTINGS: Sequence[Mapping[str, str]] = ({}, {"OMP_NUM_THREADS": "1"})
"""Settings of replays that a session has; it starts no program for others."""
_parsed = lru_cache(maxsize=2)(parse)


class CaseError(FormatError):
    """A case of a sealed inspection is malformed, or asks for what a sealed session does not do."""

    code = "sealed.case"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What a sealed session inspects.

    Attributes:
        inspection: Its identifier, as in the terms of the outcome.
        created_at: UTC time of its start, RFC 3339.
        plan: What to do; its seed follows from the agreement (`seed_of`).
        firmware: Which firmware chips may run.
        manufacturer: Root certificate of device identities.
        witness: The key of the witness that holds the logs; None if nothing is cosigned.
        population: The chips that could be drawn, as lines (`verifier.model.agreed_population`).
        beacon: The value of the beacon that the terms name, JSON as a drand node gives it; empty without one.
        logs: The logs of the drawn chips, in the order drawn.
        contradictions: What parties said of each that cannot be.
        rules: The signed rule set; empty without one.
        parties: The TOML file with the parties whose signatures it needs; empty without rules.
        policy: The TOML file of the inspectorate's policy; empty if it is as designed.
    """

    inspection: str
    created_at: str
    plan: Plan
    firmware: FirmwarePolicy
    manufacturer: x509.Certificate
    witness: NoteKey | None
    population: bytes
    logs: tuple[LogFacts, ...]
    contradictions: tuple[tuple[Contradiction, ...], ...]
    rules: bytes = b""
    parties: bytes = b""
    policy: bytes = b""
    beacon: bytes = b""

    def __post_init__(self) -> None:
        """Checks that a session can do what the plan asks for.

        Raises:
            CaseError: It cannot.
        """
        plan = self.plan
        for wrong, what in (
            (plan.replay_device != "cpu", "replays on another device than a CPU"),
            (dict(plan.replay_env) not in map(dict, _OWN_SETTINGS), "replays with other settings than the site's"),
            (plan.sharded != "all", "replays one rank of a job alone, for which its Prover is asked"),
            (plan.segments.records > 0, "has its Prover open records"),
            (plan.segments.commitment != "", "keeps criteria secret"),
            (len(self.logs) != len(self.contradictions), "says of a chip nothing that parties said"),
            (len({log.chip.ueid for log in self.logs}) != len(self.logs), "has the log of a chip twice"),
            (not len(self.agreed), "names no chip to draw"),
        ):
            if wrong:
                raise CaseError(f"a sealed session cannot inspect this: the case {what}; make another plan")

    @property
    def agreed(self) -> AgreedPopulation:
        """The chips that could be drawn.

        Raises:
            AgreedPopulationError: The lines are none.
        """
        return _parsed(self.population)

    def to_cbor(self) -> bytes:
        """Returns the one encoding of this case.

        Raises:
            CaseError: It is larger than cases may be.
        """
        data = cbor(
            {
                "format": FORMAT, "inspection": self.inspection, "created_at": self.created_at,
                "plan": json.dumps(self.plan.to_json(), sort_keys=True),
                "firmware": json.dumps(self.firmware.to_json(), sort_keys=True),
                "manufacturer": self.manufacturer.public_bytes(Encoding.DER),
                "witness": "" if self.witness is None else str(self.witness), "population": self.population,
                "logs": [fact_codec.log_to(each) for each in self.logs],
                "contradictions": [
                    [[said.index, said.reason, said.expected, said.found] for said in each]
                    for each in self.contradictions
                ],
                "rules": self.rules, "parties": self.parties, "policy": self.policy,
                "beacon": self.beacon,
            }
        )  # fmt: skip
        if len(data) > CASE_LIMIT:
            raise CaseError("the logs of these chips make a case that is too large; draw fewer chips")
        return data

    @classmethod
    def from_cbor(cls, data: bytes) -> Case:
        """Reads a case; tokens of chips are verified again.

        Law: `from_cbor(c.to_cbor()).to_cbor() == c.to_cbor()`; and where `from_cbor(data)` returns, its `to_cbor()` is
        `data`.

        Raises:
            CaseError: The bytes are not the encoding of a case.
        """
        if len(data) > CASE_LIMIT:
            raise CaseError("a case is too large")
        raw = decode_cbor(data, max_items=_ITEMS)
        names = {each.name for each in fields(cls)} | {"format"}
        if not isinstance(raw, dict) or raw.keys() != names or raw["format"] != FORMAT:
            raise CaseError(f"a case is a map of format {FORMAT} with {', '.join(sorted(names))}")
        try:
            found = cls(**{name: of(raw) for name, of in _READERS.items()})
            again = found.to_cbor()
        except CaseError:
            raise
        except (WeighbridgeError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            raise CaseError(
                f"a field of the case is none of its kind ({type(error).__name__}: {error})"[:300]
            ) from None
        if again != data:
            raise CaseError("the case is not in its one encoding")
        return found


def seed_of(agreement: Agreement, beacon: bytes = b"") -> bytes:
    """Returns the seed of the draw (32 bytes): of both parties' shares, and of the agreed beacon's value.

    Args:
        agreement: What both parties agreed on.
        beacon: The value of the beacon that its terms name, JSON as a drand node gives it; empty without one.

    Raises:
        UsageError: The value is not the one that the terms name, or its signature cannot be verified here
            (`sealed.beacon`).
    """
    info = agreement.terms.beacon_info
    if (info is None) != (beacon == b""):
        raise _refused("the terms name a beacon and the case has no value of it, or the other way round")
    if info is None:
        return record_digest("sealed-draw/1", agreement.nonce)
    if not info.verifiable:
        raise _refused(f"signatures of the beacon's scheme {info.scheme} cannot be verified here; install [drand]")
    try:
        value = parse_round(json.loads(beacon))
        verify_round(info, value)
    except (FormatError, ValueError, RecursionError):
        raise _refused("the case has no value of the beacon that the terms name") from None
    if value.number != agreement.terms.round:
        raise _refused(f"the case has the value of another round than {agreement.terms.round}, which the terms name")
    return record_digest("sealed-draw/2", [agreement.nonce, info.chain, value.number, value.randomness])


def _refused(why: str) -> UsageError:
    return UsageError(f"{why}; ask for a case of what was agreed on", code="sealed.beacon")


def regime_of(case: Case) -> Regime:
    """Reads the rules and the policy of a case.

    Raises:
        WeighbridgeError: They are none.
    """
    named: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="weighbridge-case-") as scratch:
        for name in ("rules", "parties", "policy"):
            if content := getattr(case, name):
                named[name] = Path(scratch, name)
                named[name].write_bytes(content)
        return regime.load(rules=named.get("rules"), parties=named.get("parties"), policy=named.get("policy"))


def check_agreed(case: Case, agreement: Agreement) -> None:
    """Checks that a case is of the inspection and the rules that were agreed on, and draws by the agreement's seed.

    Raises:
        UsageError: It is not.
        WeighbridgeError: Its rules or its policy are none.
    """
    terms, plan = agreement.terms, case.plan
    if case.inspection != terms.inspection:
        raise UsageError(f"the case is of inspection {case.inspection[:64]!r}, and the terms of {terms.inspection!r}")
    if terms.population == b"":
        raise UsageError(
            "the terms name no population to draw from; agree on other terms, with it", code="sealed.population"
        )
    if (population := case.agreed).digest != terms.population:
        raise UsageError(
            "the case draws from other chips than were agreed on; ask for a case of those", code="sealed.population"
        )
    if plan.seed != seed_of(agreement, case.beacon):
        raise UsageError("the seed of the case is not the one of the agreement, so a party chose it")
    if not plan.samples == len(case.logs) == terms.samples:
        raise UsageError("the case has the logs of more or fewer chips than the terms and its plan draw")
    if population.draw(plan.samples, plan.seed) != [log.chip.ueid for log in case.logs]:
        raise UsageError("the case has the logs of other chips than its seed draws", code="sealed.population")
    for name in ("flops_threshold", "chip_flops_per_day", "period_days", "snapshot_rate_per_day"):
        if getattr(plan, name) != getattr(terms, name):
            raise UsageError(f"{name} of the case is another than in the terms")
    rules = regime_of(case).rules
    if (b"" if rules is None else bytes.fromhex(rules.rules.digest)) != terms.rules:
        raise UsageError("the case applies another rule set than the terms name; ask for a case of the one agreed on")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise CaseError("a field of the case is no text")
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise CaseError("a field of the case is no byte string")
    return value


def _logs(raw: Mapping[str, Any]) -> tuple[LogFacts, ...]:
    root = load_der(raw["manufacturer"])
    found = tuple(fact_codec.log_of(each, root) for each in raw["logs"])
    for log in found:
        for each in fields(Chip):
            value = getattr(log.chip, each.name)
            if type(value).__name__ != each.type:  # the codec reads what a Verifier stored for itself
                raise CaseError("a field of a chip in the case is none of its kind")
        if not 17 <= len(log.chip.ueid) <= 33:
            raise CaseError("a chip in the case has no UEID")
    return found


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "inspection": lambda raw: _text(raw["inspection"]),
    "created_at": lambda raw: _text(raw["created_at"]),
    "plan": lambda raw: Plan.from_json(json.loads(_text(raw["plan"]))),
    "firmware": lambda raw: FirmwarePolicy.from_json(json.loads(_text(raw["firmware"]))),
    "manufacturer": lambda raw: load_der(_bytes(raw["manufacturer"])),
    "witness": lambda raw: parse_key(_text(raw["witness"])) if raw["witness"] else None,
    "population": lambda raw: _bytes(raw["population"]),
    "beacon": lambda raw: _bytes(raw["beacon"]),
    "logs": _logs,
    "contradictions": lambda raw: tuple(
        tuple(Contradiction(index=i, reason=_text(r), expected=_text(e), found=_text(f)) for i, r, e, f in each)
        for each in raw["contradictions"]
    ),
    "rules": lambda raw: _bytes(raw["rules"]),
    "parties": lambda raw: _bytes(raw["parties"]),
    "policy": lambda raw: _bytes(raw["policy"]),
}
