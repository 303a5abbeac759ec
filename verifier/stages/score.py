"""Scores the final state of each run on the rule set's benchmarks, on the Verifier's own copies of their data."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from verifier.model.collected import Collected
from verifier.report import run_facts_for_rules
from verifier.rules.ruleset import Benchmark
from verifier.stages.setting import Setting
from verifier.units import key_of
from weighbridge.core.errors import Finding, WeighbridgeError
from weighbridge.execution.scoring import score
from weighbridge.execution.transcript_facts import OpenedTranscript


def run(setting: Setting, collected: Collected) -> None:
    """Scores every run on one chip; what cannot be scored is said, and leaves the rules that need it undecided."""
    rules = setting.regime.rules
    wanted = [] if rules is None else list(rules.rules.benchmarks)
    for name, ranks in run_facts_for_rules.grouped(collected).items() if wanted else ():
        for benchmark in wanted:
            opened = ranks[0].opened
            if not isinstance(opened, OpenedTranscript):
                continue
            setting.progress("score", 0, 0, f"scoring {opened.manifest.name} on {benchmark.id}")
            found: float | Finding = setting.units.once(
                "scored",
                key_of(opened.digest, benchmark.data, benchmark.metric),
                partial(_score, setting, opened, benchmark, setting.regime.benchmarks[benchmark.data]),
                to=_to,
                of=_of,
            )
            if isinstance(found, Finding):
                collected.report([found])
            else:
                collected.scores.setdefault(name, {})[benchmark.id] = found


def _score(setting: Setting, transcript: OpenedTranscript, benchmark: Benchmark, file: Path) -> float | Finding:
    try:
        return score(
            transcript.path,
            file,
            benchmark.metric,
            device=setting.plan.replay_device,
            limits=setting.limits,
            env=setting.plan.replay_env,
        ).value
    except WeighbridgeError as error:
        finding = error.finding(subject=f"transcript {transcript.digest} on benchmark {benchmark.id}")
        # The replay of the run's snapshots says what is wrong with it; this only says that there is no score.
        return replace(finding, id="score.unavailable", severity="info", found=finding.id, evidence={})


def _to(found: float | Finding) -> Any:
    return found.to_json() if isinstance(found, Finding) else found


def _of(raw: Any) -> float | Finding:
    return Finding(**raw) if isinstance(raw, dict) else float(raw)
