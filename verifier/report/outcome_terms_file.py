"""The terms of an outcome as people write them, in TOML: what they leave out is this version's."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from verifier.model import agreed_population, site_machines
from verifier.report import published_findings
from verifier.rules import ruleset
from weighbridge.attest.beacon import parse_info, read_json
from weighbridge.attest.image_policy import POLICY_LIMIT, parse_policy
from weighbridge.attest.outcome_terms import OutcomeError, OutcomeTerms, encode_beacon
from weighbridge.core.errors import UsageError

HOURS = tuple(10.0**exponent for exponent in range(7))
"""Edges of the classes of hours, where a file has none: 1 to 1,000,000."""

FLOPS = tuple(10.0**exponent for exponent in range(3, 31, 3))
"""Edges of the classes of FLOPs, where a file has none: 1e3 to 1e30."""

_LARGEST = 1 << 16
_OPTIONAL: dict[str, Any] = {
    "samples": 0, "population": "", "beacon": "", "round": 0, "images": "", "machines": "", "examined": 0, "attempt": 0,
    "speeds": [], "hours": list(HOURS), "flops": list(FLOPS),
}  # fmt: skip
_KEYS = ("prover", "verifier")
_AMOUNTS = ("flops_threshold", "chip_flops_per_day", "period_days", "snapshot_rate_per_day")
_LISTS = ("speeds", "hours", "flops")
_OURS = ("rules", "rule_count", "findings", "finding_count")
_NAMES = tuple(each.name for each in fields(OutcomeTerms) if each.name not in _OURS)


def load(path: Path) -> OutcomeTerms:
    """Reads terms from a TOML file.

    Args:
        path: It has the fields of `OutcomeTerms` by their names, keys in hexadecimal, and `rules`, the file of a rule
            set (relative to this one), in place of its digest and number of rules. Likewise `population` is the file
            of the chips that are drawn from, `beacon` that of a beacon's description, `images` that of a policy of
            images, and `machines` that of the machines that can run the worker. The list of findings is this version's.

    Raises:
        UsageError: It cannot be read, lacks a field, or has one that makes no sense; the message names it.
        RuleError: The file of rules is none.
        FormatError: The file of the population or of the beacon is none.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        raw = tomllib.loads(data.decode()) if len(data) <= _LARGEST else None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"cannot read {path} ({error}); give terms in TOML, as docs/formats/outcome.md has them"
        ) from None
    if raw is None:
        raise UsageError(f"{path} has more than {_LARGEST} bytes; give terms in TOML")
    rules = raw.pop("rules", None)
    given = _OPTIONAL | raw
    if lacking := [name for name in _NAMES if name not in given]:
        raise UsageError(f"{path} lacks {', '.join(lacking)}; see docs/formats/outcome.md for what each is")
    if unknown := sorted(given.keys() - set(_NAMES)):
        raise UsageError(f"{path} has {unknown[0][:80]!r}, which terms have not")
    for name in _KEYS:
        given[name] = _key(path, name, given[name])
    for name in _AMOUNTS:
        given[name] = _number(path, name, given[name])
    for name in _LISTS:
        if not isinstance(given[name], list):
            raise UsageError(f"{path}: {name} is a list of numbers")
        given[name] = tuple(_number(path, name, each) for each in given[name])
    named = {"population": _population, "beacon": _beacon, "images": _images, "machines": _machines}
    for name, read in named.items():
        if not isinstance(given[name], str):
            raise UsageError(f"{path}: {name} is the name of a file")
        given[name] = read(path.parent / given[name]) if given[name] else b""
    digest, count = b"", 0
    if rules is not None:
        if not isinstance(rules, str):
            raise UsageError(f"{path}: rules is the name of a file with a rule set")
        applied = _rules(path.parent / rules)
        digest, count = bytes.fromhex(applied.digest), len(applied.rules)
    try:
        return OutcomeTerms(
            **given, rules=digest, rule_count=count, findings=published_findings.digest(),
            finding_count=len(published_findings.published()),
        )  # fmt: skip
    except OutcomeError as error:
        raise UsageError(f"{path}: {error.message}") from None


def _rules(path: Path) -> ruleset.RuleSet:
    """Returns a rule set, signed or not: the parties sign its digest."""
    if path.suffix in (".toml", ".json"):
        return ruleset.load(path)
    try:
        with path.open("rb") as file:
            data = file.read(ruleset.MAX_FILE + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read {path} ({error.strerror}); name the rule set that both parties agreed on"
        ) from None
    return ruleset.read(data)[0]


def _population(path: Path) -> bytes:
    return agreed_population.parse(_content(path, agreed_population.LIMIT)).digest


def _images(path: Path) -> bytes:
    return parse_policy(_content(path, POLICY_LIMIT)).digest


def _machines(path: Path) -> bytes:
    return site_machines.parse(_content(path, site_machines.LIMIT)).digest


def _beacon(path: Path) -> bytes:
    """Returns the description of a beacon, in the file `info` of a directory with its values."""
    return encode_beacon(parse_info(read_json(path / "info" if path.is_dir() else path)))


def _content(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limit + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror}); name the file that both parties agreed on") from None


def _key(path: Path, name: str, value: Any) -> bytes:
    try:
        key = bytes.fromhex(value)
    except (TypeError, ValueError):
        key = b""
    if len(key) != 32:
        raise UsageError(
            f"{path}: {name} is a public key of 64 hexadecimal digits (`weighbridge rules key` prints one)"
        )
    return key


def _number(path: Path, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{path}: {name} is a number")
    try:
        return float(value)
    except OverflowError:
        raise UsageError(f"{path}: {name} is too large") from None
