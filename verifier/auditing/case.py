"""The files of an audit: one statement a party and kind, in a directory that goes round or is shared.

A file that does not verify, or is of another audit or party, counts as if it were not there, and is told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verifier.auditing.plan import Plan
from verifier.auditing.statements import MAX_STATEMENT, AuditError, Kind, Statement, read, sign
from weighbridge.attest.manifest import SigningKey, key_id
from weighbridge.core.errors import Finding, UsageError

OF_AUDITORS: tuple[Kind, ...] = ("enrolment", "commitments", "openings")
"""Statements that each auditor makes; the others are made once."""


class Case:
    """An audit in a directory.

    Attributes:
        path: The directory.
        plan: Its plan.
        digest: Digest of the plan's statement, which names the audit (32 bytes).
        coordinator: Public key that signed the plan (32 bytes).
    """

    def __init__(self, path: Path) -> None:
        """Opens an audit.

        Raises:
            UsageError: There is none.
            AuditError: Its plan does not verify, or makes no sense.
        """
        self.path = path
        statement = self._read("plan", None)
        if statement is None:
            raise UsageError(f"{path} has no plan of an audit; make one with `weighbridge audit plan`")
        self.plan = Plan.from_json(statement.predicate)
        if list(statement.subjects) != self.plan.subjects():
            raise AuditError("The plan is about other transcripts than it names.", code="audit.plan")
        self.digest, self.coordinator = statement.digest, statement.signer
        self.keys = [bytes.fromhex(key) for _, key in self.plan.auditors]

    @classmethod
    def create(cls, path: Path, plan: Plan, key: SigningKey) -> Case:
        """Begins an audit in a new directory.

        Args:
            path: The directory, which must not exist.
            plan: Its plan.
            key: The coordinator's.

        Raises:
            UsageError: The directory exists, or cannot be made.
        """
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise UsageError(f"cannot make {path} ({error.strerror}); name a directory that does not exist") from None
        _write(path / "plan.json", sign("plan", plan.subjects(), plan.to_json(), key))
        return cls(path)

    def put(self, kind: Kind, predicate: dict[str, Any], key: SigningKey) -> None:
        """Signs a statement and adds it.

        Raises:
            UsageError: There is one of this kind and key, or it cannot be written.
        """
        at = self._place(kind, key.public if kind in OF_AUDITORS else None)
        if at.exists():
            raise UsageError(f"{at} exists, and a second one would contradict it; keep the first")
        said = {"plan": self.digest.hex(), **predicate}
        _write(at, sign(kind, self.plan.subjects(), said, key))

    def one(self, kind: Kind) -> Statement | None:
        """Returns the closing or the verdict, or None if there is none; the closing is the coordinator's.

        Raises:
            AuditError: It does not verify, or is of another audit.
        """
        found = self._of_this(self._read(kind, None), kind)
        if found is not None and kind == "closing" and found.signer != self.coordinator:
            raise AuditError("The closing is not signed by the coordinator, who signed the plan.")
        return found

    def by(self, kind: Kind, auditor: int) -> Statement | None:
        """Returns what an auditor stated, or None if there is nothing.

        Args:
            kind: What sort of statement.
            auditor: Number of the auditor.

        Raises:
            AuditError: It does not verify, or is another party's or of another audit.
        """
        found = self._of_this(self._read(kind, self.keys[auditor]), kind)
        if found is not None and found.signer != self.keys[auditor]:
            raise AuditError(f"The {kind} of {self.plan.auditors[auditor][0]} are signed by another key.")
        return found

    def all(self, kind: Kind) -> tuple[dict[int, Statement], list[Finding]]:
        """Returns what the auditors stated, by number, and what is wrong with the rest."""
        found, wrong = dict[int, Statement](), []
        for number, (name, _) in enumerate(self.plan.auditors):
            try:
                statement = self.by(kind, number)
            except AuditError as error:
                wrong.append(error.finding(subject=name))
                continue
            if statement is not None:
                found[number] = statement
        return found, wrong

    def auditor(self, public: bytes) -> int:
        """Returns the number of the auditor with a key.

        Raises:
            UsageError: It is none of the plan's.
        """
        if public not in self.keys:
            raise UsageError("this key is none of the plan's auditors; ask its coordinator")
        return self.keys.index(public)

    def _of_this(self, statement: Statement | None, kind: Kind) -> Statement | None:
        if statement is None:
            return None
        if statement.predicate.get("plan") != self.digest.hex() or list(statement.subjects) != self.plan.subjects():
            raise AuditError(f"The {kind} is of another audit than this one.")
        return statement

    def _read(self, kind: Kind, key: bytes | None) -> Statement | None:
        path = self._place(kind, key)
        if path.exists() and not path.is_file():  # a pipe would keep the reader waiting
            raise AuditError(f"{path.name} is no plain file.")
        try:
            with path.open("rb") as file:
                data = file.read(MAX_STATEMENT + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"cannot read {path} ({error.strerror}); make it readable") from None
        return read(data, kind)

    def _place(self, kind: Kind, key: bytes | None) -> Path:
        return self.path / (f"{kind}.json" if key is None else f"{kind}-{key_id(key)[:16]}.json")


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}); choose another place") from None
