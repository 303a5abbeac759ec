"""A rule set of one rule, signed by its one party, as a service reads it from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from verifier.report import regime
from verifier.report.regime import Regime
from verifier.rules import ruleset
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import bytes_digest
from weighbridge.transcript.tensor_file import write_tensors

KEY = SigningKey.generate()


def ruled(
    root: Path,
    holds: str,
    *,
    benchmark: dict[str, torch.Tensor] | None = None,
    declarations: dict[str, list[str]] | None = None,
    lists: dict[str, list[str]] | None = None,
    **more: Any,
) -> Regime:
    """Signs a rule set and reads it again.

    Args:
        root: Directory for its files; made if missing.
        holds: The rule.
        benchmark: Tensors of a benchmark, if there is one.
        declarations: What every run must declare.
        lists: Its lists of texts.
        more: Of the rule, its threshold for example.

    Raises:
        RuleError: It is no rule.
    """
    (root / "benchmarks").mkdir(parents=True)
    benchmarks = []
    if benchmark is not None:
        write_tensors(root / "benchmarks" / "held_out.safetensors", benchmark)
        data = bytes_digest((root / "benchmarks" / "held_out.safetensors").read_bytes()).hex()
        benchmarks = [{"id": "held_out", "metric": "accuracy", "data": data}]
    document = {
        "format": 1, "id": "example", "version": 1, "title": "Example", "benchmarks": benchmarks,
        "declarations": declarations or {}, "lists": lists or {},
        "rules": [{"id": "one", "title": "The rule", "holds": holds, **more}],
    }  # fmt: skip
    (root / "rules.dsse").write_bytes(ruleset.sign(ruleset.parse(document), [KEY]))
    (root / "parties.toml").write_text(f'quorum = 1\n[parties]\nparty = "{KEY.public.hex()}"\n')
    return regime.load(rules=root / "rules.dsse", parties=root / "parties.toml", benchmarks=root / "benchmarks")
