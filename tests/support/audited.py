"""A small training of several segments that auditors share, and the parts that they play."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.draws import beacon_key
from support.recordings import train
from torch import nn

from verifier.auditing import parties
from verifier.auditing.case import Case
from verifier.auditing.claims import Claim, Opened
from verifier.auditing.plan import Plan, Planted, Source, assignment, value
from verifier.auditing.verdict import judge
from weighbridge.attest.beacon import LocalBeacon
from weighbridge.attest.manifest import SigningKey

STEPS = 8


def record(path: Path) -> None:
    """Records a perceptron with dropout and momentum: eight steps, with a checkpoint every two."""

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.GELU(), nn.Linear(8, 3))
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    generator = torch.Generator().manual_seed(1)
    batches = [{"x": torch.randn(4, 6, generator=generator), "y": torch.tensor([0, 1, 2, 0])} for _ in range(STEPS)]
    train(path, build, step, batches, every=2)


START = 1_800_000_000
FALSE_STEP = 5
_TRUE = Source(name="trained", sha256="1f" * 32, digest="1e" * 32, edges=(0, 2, 4, 6, 8, 10, 12))
PLANTED = Source(name="other", sha256="2f" * 32, digest="2e" * 32, edges=(0, 4, 8))


def key(number: int) -> SigningKey:
    """Returns a key, the same for the same number."""
    return SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


@dataclass
class Audit:
    """An audit of made-up transcripts, step by step, so that a test can cheat at each. Execution is a hash of results.

    Attributes:
        path: Where its files go.
        auditors: How many.
        copies: Auditors of each segment.
        referee: Segments that the referee replays anyway.
        planted: Whether a second transcript is there, made false in `FALSE_STEP`.
        false: Segments that the Prover made false, in their last step.
        time: Seconds since 1970.
    """

    path: Path
    auditors: int = 3
    copies: int = 2
    referee: int = 1
    planted: bool = False
    false: frozenset[int] = frozenset()
    time: float = START + 1000.0

    def __post_init__(self) -> None:
        """Makes the plan."""
        self.beacon = LocalBeacon(beacon_key(), period_s=3, genesis_s=START, clock=lambda: self.time)
        self.keys = [key(number + 1) for number in range(self.auditors)]
        self.names = [f"auditor-{number}" for number in range(self.auditors)]
        self.coordinator = key(100)
        self.hidden = Planted(salt="ab" * 32, steps={PLANTED.digest: FALSE_STEP} if self.planted else {})
        self.opened: dict[int, Opened] = {}
        self.case = Case.create(self.path, self.plan(), self.coordinator)

    def plan(self, **changed: Any) -> Plan:
        """Returns the plan, or another one."""
        sources = (_TRUE, PLANTED) if self.planted else (_TRUE,)
        first = self.beacon.info.round_after(int(self.time * 1000) + 60_000)
        said: dict[str, Any] = {
            "sources": sources,
            "auditors": tuple((name, key.public.hex()) for name, key in zip(self.names, self.keys, strict=True)),
            "copies": self.copies,
            "drawn": sum(len(source.edges) - 1 for source in sources),
            "referee": self.referee,
            "beacon": self.beacon.info.chain.hex(),
            "rounds": (first, first + 1, first + 100),
            "planted": self.hidden.commitment(),
        }
        return Plan(**said | changed)

    @property
    def now_ms(self) -> int:
        """The time of all parties."""
        return int(self.time * 1000)

    def pass_round(self, place: int) -> None:
        """Turns the clock to a round of the plan."""
        self.time = self.beacon.info.time_ms(self.case.plan.rounds[place]) / 1000

    def execute(self, segment: int, keyed: bytes) -> Claim:
        """Returns what an honest replay finds."""
        source, begin, end = self.case.plan.segments[segment]
        work = blake3(f"results of {source.digest} {begin}:{end}".encode(), key=keyed).hexdigest()
        false = FALSE_STEP if source == PLANTED else end - 1
        if segment in self.false or (source == PLANTED and begin <= FALSE_STEP < end):
            return Claim(verdict="mismatch", step=false, op=7, work=work)
        return Claim(verdict="match", step=end, op=0, work=work)

    def lazy(self, segment: int, keyed: bytes) -> Claim:
        """Returns what an auditor says who has the transcript's state digests and executes nothing."""
        source, begin, end = self.case.plan.segments[segment]
        work = blake3(f"states of {source.digest} {begin}:{end}".encode(), key=keyed).hexdigest()
        return Claim(verdict="match", step=end, op=0, work=work)

    def enrol(self, *who: int) -> Audit:
        """Enrols auditors, all by default, and passes the rounds of draw and key."""
        for number in who or range(self.auditors):
            parties.enrol(self.case, self.keys[number], self.beacon.info, self.now_ms)
        self.pass_round(1)
        return self

    def commit(self, *who: int, replay: parties.Replay | None = None) -> Audit:
        """Lets auditors replay and commit, all by default."""
        for number in who or range(self.auditors):
            self.opened[number] = parties.commit(
                self.case, self.keys[number], self.beacon, replay or self.execute, lambda opened: None
            )
        return self

    def close(self) -> Audit:
        """Closes the commitments."""
        parties.close(self.case, self.coordinator, self.beacon.info, self.now_ms)
        return self

    def open(self, *who: int) -> Audit:
        """Lets auditors open, all by default."""
        for number in who or range(self.auditors):
            parties.open_claims(self.case, self.keys[number], self.beacon.info, self.now_ms, self.opened[number])
        return self

    def judge(self, replay: parties.Replay | None = None) -> dict[str, Any]:
        """Passes the referee's round and judges."""
        self.pass_round(2)
        return judge(self.case, self.beacon, self.hidden, replay or self.execute)

    def mine(self, number: int) -> list[int]:
        """Returns the segments of an auditor."""
        drawn = value(self.beacon, self.case.plan, self.case.plan.rounds[0])
        return [at for at, who in assignment(self.case.plan, self.case.digest, drawn).items() if number in who]


def found(said: dict[str, Any]) -> set[tuple[str, str]]:
    """Returns identifier and subject of each finding of a verdict."""
    return {(each["id"], each["subject"]) for each in said["findings"]}
