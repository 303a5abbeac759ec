"""Rule sets: versioned documents with rules, written by people in TOML or JSON, signed by k of n parties.

What is signed is the canonical CBOR of the parsed document, so that comments, order and spelling of numbers in the
source do not matter. Its digest names the rule set in reports.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from verifier.rules.errors import RuleError
from verifier.rules.expression import Expression, check
from verifier.rules.schema import DECLARED, DOUBLE, FACTS, Schema, Type, listed, record
from weighbridge.attest.dsse import Trust, open_envelope, seal
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.bounded import decode_cbor, decode_json
from weighbridge.core.digests import cbor, record_digest
from weighbridge.core.errors import FormatError, Severity

FORMAT = 1
MEDIA_TYPE = "application/vnd.weighbridge.rules.v1+cbor"
MAX_FILE = 1 << 20
MAX_RULES = 500

Metric = Literal["cross_entropy", "accuracy"]

_ID = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        id: Names it in findings.
        title: What it asks for, in a sentence.
        holds: CEL expression that must be true.
        severity: Of the finding if it is false.
        remedy: What to do then.
        threshold: Size of run in FLOPs that the rule is about, if it is about size; `threshold` in the expression.
    """

    id: str
    title: str
    holds: str
    severity: Severity = "violation"
    remedy: str = ""
    threshold: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """An evaluation that the Verifier makes of a run's final state (`weighbridge.execution.scoring`).

    Attributes:
        id: Its key in `scores`.
        metric: What is computed from the program's own loss operation.
        data: Hex BLAKE3 digest of the file with the batches.
    """

    id: str
    metric: Metric
    data: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleSet:
    """A rule set whose expressions were checked.

    Attributes:
        id: Names it over all its versions.
        version: Counts up.
        title: What it is, in a sentence.
        supersedes: Hex digest of the version before; empty for the first.
        rules: In the order of the document.
        lists: Named lists of texts, `lists.NAME` in expressions: approved drafts, banned programs.
        declarations: What every run must declare, and the words that it may use: `r.declared.NAME` in expressions.
        benchmarks: What the Verifier evaluates.
    """

    id: str
    version: int
    title: str
    supersedes: str = ""
    rules: tuple[Rule, ...]
    lists: Mapping[str, tuple[str, ...]]
    benchmarks: tuple[Benchmark, ...]
    declarations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_map(self) -> dict[str, Any]:
        """Returns the document's content: what is signed, in canonical CBOR."""
        return {
            "format": FORMAT,
            "id": self.id,
            "version": self.version,
            "title": self.title,
            "supersedes": self.supersedes,
            "rules": [asdict(rule) for rule in self.rules],
            "lists": {name: list(texts) for name, texts in self.lists.items()},
            "benchmarks": [asdict(benchmark) for benchmark in self.benchmarks],
        } | (
            {"declarations": {name: list(words) for name, words in self.declarations.items()}}
            if self.declarations
            else {}
        )

    @property
    def digest(self) -> str:
        """Hex digest that names this version."""
        return record_digest("rule-set/1", self.to_map()).hex()

    @property
    def facts(self) -> Schema:
        """The facts that rules of this set may speak about; of what runs declare, only what the set asks for."""
        meaning = FACTS["run"][DECLARED][1]
        return {
            **FACTS,
            "run": {**FACTS["run"], DECLARED: (record(DECLARED), meaning)},
            DECLARED: {name: (Type("string", words=words), meaning) for name, words in self.declarations.items()},
        }

    def schema(self, rule: Rule) -> Schema:
        """Returns what a rule of this set may speak about: the facts, its lists, and its threshold."""
        names = dict(FACTS[""])
        if self.lists:
            names["lists"] = (record("lists"), "lists of this rule set")
        if rule.threshold is not None:
            names["threshold"] = (DOUBLE, "threshold of this rule, in FLOPs")
        lists = {
            name: (listed(Type("string", words=texts)), "a list of this rule set") for name, texts in self.lists.items()
        }
        return {**self.facts, "": names, "lists": lists}

    def expression(self, rule: Rule, sizes: Mapping[tuple[str, str], int] | None = None) -> Expression:
        """Returns a rule's expression, checked for facts of these sizes.

        Raises:
            RuleError: It does not check.
        """
        try:
            return check(rule.holds, self.schema(rule), sizes)
        except RuleError as error:
            raise RuleError(f"rule {rule.id}: {error.message}", code=error.reason) from None


def load(path: str | Path) -> RuleSet:
    """Reads a rule set from a TOML or JSON file, by the ending of its name.

    Raises:
        RuleError: It cannot be read, or breaks a rule of the format.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise RuleError(f"{path} is larger than {MAX_FILE} bytes; split the rule set")
        # A person would read the first of two keys with one name, and json takes the last. TOML refuses them.
        raw = decode_json(data, unique_keys=True) if path.suffix == ".json" else tomllib.loads(data.decode())
    except (OSError, FormatError, ValueError, RecursionError) as error:
        raise RuleError(f"cannot read {path} ({error}); give a rule set in TOML or JSON") from None
    return parse(raw)


def parse(raw: Any) -> RuleSet:
    """Returns the rule set in a decoded document, with every expression checked.

    Raises:
        RuleError: The document breaks a rule of the format; the message names the place.
    """
    fields = _fields(
        raw,
        "the rule set",
        ("format", "id", "version", "title"),
        ("supersedes", "rules", "lists", "benchmarks", "declarations"),
    )
    if type(fields["format"]) is not int or fields["format"] != FORMAT:
        raise RuleError(f"this version reads rule sets of format {FORMAT} only; write `format = {FORMAT}`")
    version, supersedes = fields["version"], fields.get("supersedes", "")
    if type(version) is not int or not 1 <= version < 1 << 31:
        raise RuleError("version must be a whole number from 1 upwards")
    if not isinstance(supersedes, str) or (supersedes and not _DIGEST.fullmatch(supersedes)):
        raise RuleError("supersedes must be the digest of the version before, 64 hexadecimal digits")
    rules, lists, benchmarks, declarations = (fields.get(name, kind()) for name, kind in _PARTS)
    if not all(
        isinstance(part, kind) for part, (_, kind) in zip((rules, lists, benchmarks, declarations), _PARTS, strict=True)
    ):
        raise RuleError("rules and benchmarks must be lists of tables, and lists and declarations tables")
    if not 1 <= len(rules) <= MAX_RULES or len(benchmarks) > MAX_RULES:
        raise RuleError(f"a rule set has 1 to {MAX_RULES} rules, and at most as many benchmarks")
    found = RuleSet(
        id=_matching(fields["id"], _ID, "the id of the rule set"),
        version=version,
        title=_text(fields["title"], "the title of the rule set"),
        supersedes=supersedes,
        rules=tuple(_rule(each, place) for place, each in enumerate(rules)),
        lists={_matching(name, _NAME, "the name of a list"): _list(name, each) for name, each in lists.items()},
        benchmarks=tuple(_benchmark(each, place) for place, each in enumerate(benchmarks)),
        declarations={
            _matching(name, _NAME, "the name of a declaration"): _words(name, each)
            for name, each in declarations.items()
        },
    )
    for kind, ids in (("rules", [r.id for r in found.rules]), ("benchmarks", [b.id for b in found.benchmarks])):
        if len(set(ids)) != len(ids):
            raise RuleError(f"two {kind} have the same id; give each its own")
    for rule in found.rules:
        found.expression(rule)
    return found


_PARTS: tuple[tuple[str, type], ...] = (("rules", list), ("lists", dict), ("benchmarks", list), ("declarations", dict))


def _rule(raw: Any, place: int) -> Rule:
    where = f"rule {place}"
    fields = _fields(raw, where, ("id", "title", "holds"), ("severity", "remedy", "threshold"))
    severity, threshold = fields.get("severity", "violation"), fields.get("threshold")
    if severity not in get_args(Severity):
        raise RuleError(f"{where}: severity must be one of {', '.join(get_args(Severity))}")
    if threshold is not None:
        fits = type(threshold) in (int, float) and math.isfinite(threshold) and 0 < threshold < 1e300
        if not fits:
            raise RuleError(f"{where}: threshold must be a positive number of FLOPs, not {threshold!r:.80}")
    return Rule(
        id=_matching(fields["id"], _ID, f"the id of {where}"),
        title=_text(fields["title"], f"the title of {where}"),
        holds=_text(fields["holds"], f"holds of {where}"),
        severity=cast("Severity", severity),
        remedy=_text(fields.get("remedy", ""), f"remedy of {where}", least=0),
        threshold=None if threshold is None else float(threshold),
    )


def _benchmark(raw: Any, place: int) -> Benchmark:
    where = f"benchmark {place}"
    fields = _fields(raw, where, ("id", "metric", "data"), ())
    if fields["metric"] not in get_args(Metric):
        raise RuleError(f"{where}: metric must be one of {', '.join(get_args(Metric))}")
    return Benchmark(
        id=_matching(fields["id"], _NAME, f"the id of {where}"),
        metric=fields["metric"],
        data=_matching(fields["data"], _DIGEST, f"data of {where}, a digest"),
    )


def _list(name: str, raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, list) or len(raw) > 10_000:
        raise RuleError(f"list {name[:80]!r} must be a list of at most 10000 texts")
    return tuple(_text(each, f"list {name[:80]!r}") for each in raw)


def _words(name: str, raw: Any) -> tuple[str, ...]:
    """Returns the words of a declaration: identifiers in ASCII, so that no two of them look alike."""
    if not isinstance(raw, list) or not 1 <= len(raw) <= 1000:
        raise RuleError(f"declaration {name[:80]!r} must be a list of 1 to 1000 words, those that a run may declare")
    words = tuple(_matching(each, _ID, f"a word of declaration {name[:80]!r}") for each in raw)
    if len(set(words)) != len(words):
        raise RuleError(f"declaration {name[:80]!r} has a word twice; name each once")
    return words


def _fields(raw: Any, where: str, needed: Sequence[str], allowed: Sequence[str]) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise RuleError(f"{where} must be a table")
    for name in needed:
        if name not in raw:
            raise RuleError(f"{where} has no {name!r}; it needs {', '.join(needed)}")
    for name in raw:
        if name not in needed and name not in allowed:
            raise RuleError(f"{where} has an unknown key {name!r:.80}; allowed are {', '.join([*needed, *allowed])}")
    return dict(raw)


def _text(value: Any, what: str, least: int = 1) -> str:
    if not isinstance(value, str) or not least <= len(value) <= 4000 or not value.replace("\n", " ").isprintable():
        raise RuleError(f"{what} must be a text of {least} to 4000 printable characters")
    return value


def _matching(value: Any, pattern: re.Pattern[str], what: str) -> str:
    if not isinstance(value, str) or len(value) > 100 or not pattern.fullmatch(value):
        raise RuleError(f"{what} must match {pattern.pattern}, not {value!r:.80}")
    return value


@dataclass(frozen=True, slots=True)
class Signed:
    """A rule set that enough parties signed.

    Attributes:
        rules: The rule set.
        signers: Names of the parties that signed.
        keys: Raw public keys of all who signed, parties or not.
    """

    rules: RuleSet
    signers: tuple[str, ...]
    keys: tuple[bytes, ...]


def sign(rules: RuleSet, keys: Sequence[SigningKey], former: bytes | None = None) -> bytes:
    """Returns the signed document; `former` has the signatures of others over the same rule set.

    Raises:
        DocumentError: `former` is over another rule set.
    """
    return seal(cbor(rules.to_map()), MEDIA_TYPE, keys, former)


def read(data: bytes) -> tuple[RuleSet, tuple[bytes, ...]]:
    """Reads a signed rule set; returns it and the keys that signed it, trusted or not.

    Raises:
        DocumentError: The document is malformed, or a signature does not verify.
        RuleError: What was signed is no rule set.
    """
    envelope = open_envelope(data, MEDIA_TYPE)
    try:
        rules = parse(decode_cbor(envelope.payload))
    except FormatError:
        raise RuleError("what was signed is not canonical CBOR; sign the rule set again") from None
    if cbor(rules.to_map()) != envelope.payload:
        raise RuleError("what was signed is not the canonical form of a rule set; sign the rule set again")
    return rules, envelope.signers


def verify(data: bytes, trust: Trust, after: RuleSet | None = None) -> Signed:
    """Reads a signed rule set and checks who signed it.

    Args:
        data: The signed document.
        trust: The parties, and how many of them must have signed.
        after: The version in force until now, which this one must follow.

    Raises:
        DocumentError: Malformed, altered, or too few of the parties signed.
        RuleError: It is no rule set, or does not follow `after` (`rules.version`).
    """
    rules, keys = read(data)
    names = trust.require(open_envelope(data, MEDIA_TYPE), f"rule set {rules.id} version {rules.version}")
    if after is not None and after.digest != rules.digest:
        follows = rules.id == after.id and rules.version > after.version and rules.supersedes == after.digest
        if not follows:
            raise RuleError(
                f"version {rules.version} of {rules.id} does not follow version {after.version} of {after.id}: it must "
                f"have a higher number and name {after.digest} as superseded",
                code="rules.version",
            )
    return Signed(rules, names, keys)
