"""What an inspection applies besides its plan: the parties' rules, the inspectorate's policy, and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from analysis.early_detection import threshold_to_catch
from verifier.report.inspectorate_policy import AS_DESIGNED, Policy
from verifier.report.inspectorate_policy import load as load_policy
from verifier.rules import ruleset
from verifier.rules.ruleset import Signed
from weighbridge.attest.dsse import Trust
from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import UsageError

_MOST_FILES = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Regime:
    """Rules, policy and benchmarks.

    Attributes:
        rules: The signed rule set; None if there is none.
        policy: Severities, and how the ledger counts.
        benchmarks: By hex digest, the file with a benchmark's batches.
    """

    rules: Signed | None = None
    policy: Policy = AS_DESIGNED
    benchmarks: Mapping[str, Path] = field(default_factory=dict)

    @property
    def least(self) -> float | None:
        """The smallest H, in FLOPs, that one of the rules needs; None without a rule about sizes."""
        sizes = [] if self.rules is None else [each.threshold for each in self.rules.rules.rules]
        return min((float(threshold_to_catch(run_flops=size)) for size in sizes if size is not None), default=None)


def load(
    *,
    rules: Path | None = None,
    parties: Path | None = None,
    policy: Path | None = None,
    benchmarks: Path | None = None,
) -> Regime:
    """Reads a regime from files.

    Args:
        rules: A signed rule set.
        parties: TOML file with the keys of the parties, of whom a quorum must have signed it.
        policy: TOML file with the inspectorate's policy.
        benchmarks: Directory with the files that the rule set's benchmarks name by digest.

    Raises:
        UsageError: Rules without parties, a file is missing, or the policy makes no sense.
        DocumentError: Too few of the parties signed the rule set, or it was altered.
        RuleError: It is no rule set.
    """
    signed = None
    if rules is not None:
        if parties is None:
            raise UsageError("rules need the keys of the parties who sign them; name them with --parties")
        try:
            data = rules.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {rules} ({error.strerror}); name the signed rule set") from None
        signed = ruleset.verify(data, Trust.load(parties))
    files: dict[str, Path] = {}
    if benchmarks is not None:
        if not benchmarks.is_dir():
            raise UsageError(f"{benchmarks} is no directory; name the one with the benchmarks' files")
        for path in sorted(benchmarks.iterdir())[:_MOST_FILES]:
            if path.is_file():
                files[bytes_digest(path.read_bytes()).hex()] = path
    if signed is not None:
        for benchmark in signed.rules.benchmarks:
            if benchmark.data not in files:
                raise UsageError(
                    f"benchmark {benchmark.id} of the rule set needs a file with the digest {benchmark.data}; put it "
                    "into the directory that --benchmarks names"
                )
    return Regime(rules=signed, policy=AS_DESIGNED if policy is None else load_policy(policy), benchmarks=files)


NO_RULES = Regime()
