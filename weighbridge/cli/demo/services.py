"""Two services train for two clients and audit each other; one trains fewer steps than were ordered, and disputes it.

Everything that a party does is a command in a process of its own, as its people would type it. The referee of disputes
is a service that both reach over mutual TLS. Until the round of an audit's referee, the demo does other things: `audit`
comes before the inspection and `settle` after it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from weighbridge.attest.manifest import load_or_create_key
from weighbridge.cli.bench.layout import Service
from weighbridge.cli.bench.processes import STOP_S, ProcessError, environment, last_words, running
from weighbridge.cli.demo.party import Party

STEPS, TRAINED = 12, 8
"""How many steps each client orders, and how many of them the lazy service runs."""
_SERVICES = ("north", "south")
_LAZY = "south"
_CLIENTS, _COURT = "clients", "court"
_WAIT_S = 900.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Served:
    """What came of one order.

    Attributes:
        service: Who trained.
        auditor: Who audited it.
        run: How many steps were run.
        delivered: Findings of the first transcript against the order.
        claimed: Findings of the one that was audited against it.
        audit: Findings of the audit's verdict.
        dispute: What the referee said of whose claim; empty without a dispute.
        as_said: Whether that is what the demo promises.
    """

    service: str
    auditor: str
    run: int
    delivered: tuple[str, ...]
    claimed: tuple[str, ...]
    audit: tuple[str, ...]
    dispute: tuple[str, ...]
    as_said: bool


def judge(
    service: str, *, delivered: Sequence[str], claimed: Sequence[str], audit: Sequence[str], dispute: Sequence[str]
) -> Served:  # fmt: skip
    """Says whether what came of an order is what the demo promises; see `Served`."""
    found = tuple(map(tuple, (delivered, claimed, audit, dispute)))
    promised: tuple[tuple[str, ...], ...] = ((), (), (), ())
    if service == _LAZY:
        promised = (("order.steps",), (), ("audit.segment",), ("defender: false",))
    auditor = next(each for each in _SERVICES if each != service)
    run = TRAINED if service == _LAZY else STEPS
    return Served(service, auditor, run, found[0], found[1], found[2], found[3], found == promised)


@dataclass
class Market:
    """Two services, two clients and a referee, in a directory.

    Attributes:
        root: The directory.
        parties: The processes of both services, of the clients, and of the audits' referee.
    """

    root: Path
    parties: dict[str, Party]
    _public: dict[str, str] = field(default_factory=dict)
    _compared: dict[str, tuple[list[str], list[str]]] = field(default_factory=dict)

    def audit(self) -> None:
        """Has both services train what was ordered, and each audit the other, as far as the referee's round."""
        for name in (*_SERVICES, *map(_client, _SERVICES), _COURT):
            self._public[name] = load_or_create_key(self.root / f"{name}.key").public.hex()
        self._python("-m", "prover.recipes.digits", "--data-commitment", "--steps", 3, "--out", "rehearsal")
        self._each(self._order)
        began = time.monotonic()
        self._each(self._train)
        took = time.monotonic() - began
        self._each(lambda service: self._audit(service, round(20 + 2 * took)))

    def settle(self) -> list[Served]:
        """Has the referee of each audit say what it found, and the one of disputes who is right."""
        false = {service: self._first_false(service) for service in _SERVICES}
        ruled = {service: self._dispute(service, step) for service, step in false.items() if step is not None}
        found = []
        for service in _SERVICES:
            delivered, claimed = self._compared[service]
            audit, dispute = self._verdict(service), ruled.get(service, ())
            found.append(judge(service, delivered=delivered, claimed=claimed, audit=audit, dispute=dispute))
        return found

    def _order(self, service: str) -> None:
        """The client orders, and the service accepts."""
        self.parties[_CLIENTS].call(
            *("audit", "order", "rehearsal", "--steps", STEPS, "--seed", _seed(service)),
            *("--service", self._public[service], "--key", f"{_client(service)}.key", "--out", f"{service}.order"),
        )
        self.parties[service].call("audit", "accept", f"{service}.order", "--key", f"{service}.key")

    def _train(self, service: str) -> None:
        common = ("--seed", _seed(service), "--key", f"{service}.key", "--out", f"{service}-run")
        if service == _LAZY:
            self._python("-m", "weighbridge.cli.demo.lazy", "--steps", TRAINED, "--claimed", STEPS, *common)
            return
        every = ("--steps", STEPS, "--checkpoint-every", TRAINED)
        self._python("-m", "prover.recipes.digits", "--data-commitment", *every, *common)

    def _audit(self, service: str, work: int) -> None:
        """The client compares what it got first; what it takes then, the other service audits."""
        client, auditor, case = self.parties[_CLIENTS], _other(service), f"{service}-case"
        first = f"{service}-run-trained" if service == _LAZY else f"{service}-run"
        delivered = _codes(client.call("audit", "delivery", f"{service}.order", first))
        beacon, own, clients = ("--beacon", "beacon"), ("--key", f"{auditor}.key"), ("--key", f"{_client(service)}.key")
        self._wait("beacon/info")
        rounds = client.call(
            *("audit", "plan", f"{service}-run", "--order", f"{service}-run={service}.order", "--out", case),
            *("--auditor", f"{auditor}={self._public[auditor]}", "--copies", 1, "--referee", 0, *beacon, *clients),
            *("--enrol", max(8, work // 6), "--work", work),
        )["rounds"]
        self.parties[auditor].call("audit", "enrol", case, *beacon, *own)
        self._wait(f"beacon/public/{rounds[1]}")
        ran = self.parties[auditor].call("audit", "run", case, f"{service}-run", *beacon, *own)
        client.call("audit", "close", case, *beacon, *clients)
        self.parties[auditor].call("audit", "open", case, *beacon, *own)
        self._compared[service] = delivered, _codes(ran)

    def _first_false(self, service: str) -> int | None:
        """Returns the first step that the auditor found false."""
        from verifier.auditing.case import Case
        from verifier.auditing.claims import opened_of

        opened = Case(self.root / f"{service}-case").by("openings", 0)
        claims = {} if opened is None else opened_of(opened.predicate["claims"])
        return min((claim.step for _, claim in claims.values() if claim.verdict == "mismatch"), default=None)

    def _verdict(self, service: str) -> list[str]:
        from verifier.auditing.case import Case

        case = f"{service}-case"
        self._wait(f"beacon/public/{Case(self.root / case).plan.rounds[2]}")
        words = ("audit", "verdict", case, f"{service}-run", "--beacon", "beacon", "--key", f"{_COURT}.key")
        return _codes(self.parties[_COURT].call(*words))

    def _dispute(self, service: str, step: int) -> tuple[str, ...]:
        """The auditor challenges the step, the service stands by it, and the referee rules, over the network."""
        from weighbridge.attest.identity import CertificateAuthority

        authority, auditor = CertificateAuthority.create("Weighbridge demo: disputes"), _other(service)
        authority.issue_role("referee", _COURT).save(self.root / _COURT)
        for name in _SERVICES:
            authority.issue_role("prover", name).save(self.root / name)
        parties = [word for name in _SERVICES for word in ("--party", f"{name}={self._public[name]}")]
        where = ("--docket", str(self.root / "docket"), "--key", str(self.root / f"{_COURT}.key"))
        arguments = (*where, "--credentials", str(self.root / _COURT), *parties)
        log = self.root / "logs" / "referee.log"
        court = Service("referee", "referee serve", arguments, self.root / "court-address", log)
        mine, theirs = self.parties[auditor], self.parties[service]
        with running(court) as address:
            reached = ("--referee", address, "--credentials")
            name = mine.call(
                *("dispute", "open", f"{service}-run", "--step", step, "--key", f"{auditor}.key"),
                *("--defender", self._public[service], *reached, auditor),
            )["dispute"]
            theirs.call("dispute", "answer", name, f"{service}-run", "--key", f"{service}.key", *reached, service)
            deadline, ruled = time.monotonic() + _WAIT_S, dict[str, Any]()
            while "claims" not in ruled and time.monotonic() < deadline:
                ruled = mine.call("dispute", "show", name, *reached, auditor, "--out", f"{service}.dispute")
                time.sleep(0.2)
        checked = self.parties[_CLIENTS].call("dispute", "verify", f"{service}.dispute")
        if not checked["agrees"]:
            return ("the referee's ruling does not verify",)
        return tuple(f"{claim['party']}: {claim['verdict']}" for claim in ruled.get("claims", ()))

    def _python(self, *words: str | int) -> None:
        """Trains, in a process of its own."""
        log = self.root / "logs" / f"{words[1]}-{words[-1]}.log".replace("/", "-")
        with log.open("wb") as out:
            done = subprocess.run(
                [sys.executable, "-P", *map(str, words)],
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment({}),
                check=False,
            )
        if done.returncode:
            raise ProcessError(f"a training ended with {done.returncode}{last_words(log)}")

    def _each(self, act: Callable[[str], T]) -> dict[str, T]:
        """Does something for both services at once."""
        with ThreadPoolExecutor(len(_SERVICES)) as pool:
            return dict(zip(_SERVICES, pool.map(act, _SERVICES), strict=True))

    def _wait(self, name: str) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not (self.root / name).exists():
            if time.monotonic() > deadline:
                raise ProcessError(f"the beacon did not publish {name} in {_WAIT_S:.0f} s")
            time.sleep(0.1)


@contextmanager
def market(root: Path) -> Iterator[Market]:
    """Sets up a market in a new directory, with a beacon that runs until the end of the block."""
    root.mkdir(parents=True)
    words = ("inspect", "beacon", "--key", str(root / "beacon.key"), "--out", str(root / "beacon"))
    beacon = subprocess.Popen(
        [sys.executable, "-P", "-m", "weighbridge.cli", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment({}),
    )  # fmt: skip
    with ExitStack() as stack:
        stack.callback(_stop, beacon)
        parties = {name: Party(name, root) for name in (*_SERVICES, _CLIENTS, _COURT)}
        for each in parties.values():
            stack.callback(each.stop)
        yield Market(root, parties)


def _stop(beacon: subprocess.Popen[bytes]) -> None:
    beacon.terminate()
    try:
        beacon.wait(STOP_S)
    except subprocess.TimeoutExpired:
        beacon.kill()
        beacon.wait()


def _other(service: str) -> str:
    return next(each for each in _SERVICES if each != service)


def _client(service: str) -> str:
    return f"client-{service}"


def _seed(service: str) -> int:
    return 21 + _SERVICES.index(service)


def _codes(said: Any) -> list[str]:
    return [each["id"] for each in said["findings"]]
