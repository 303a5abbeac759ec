"""What `weighbridge report verify --agreement` says of the record of an outcome."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from weighbridge.cli._exits import Exit, findings_line, one_line, print_json
from weighbridge.cli._inputs import read_file
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from verifier.report.outcome import Drawn


def verify(file: Path, key: bytes, agreement: Path, due: str | None, chips: int | None, *, as_json: bool) -> int:
    """Verifies a record, prints what it says and what left with it, and returns the exit code.

    Args:
        file: The signed record.
        key: The public key that the worker stated when it started.
        agreement: A file with what both parties agreed on.
        due: Snapshots of each drawn chip, with commas between them; None if the caller does not know.
        chips: Chips that the sample was drawn from; None if the caller does not know.
        as_json: Whether a program asks.

    Raises:
        UsageError: A file cannot be read, or `due` is no list of numbers.
        OutcomeError: The record is malformed, altered, or of another start.
    """
    from verifier.report import outcome_consistency
    from weighbridge.attest.disclosure import bits, ledger
    from weighbridge.attest.outcome_agreement import AGREEMENT_LIMIT, Agreement
    from weighbridge.attest.outcome_record import RECORD_LIMIT
    from weighbridge.attest.signed_outcome import verify as verify_record

    agreed = Agreement.from_cbor(read_file(agreement, max_bytes=AGREEMENT_LIMIT))
    record = verify_record(read_file(file, max_bytes=RECORD_LIMIT), agreed, key)
    drawn = None if due is None else drawn_chips(due)
    findings = outcome_consistency.check(record, agreed.terms, drawn, chips)
    sealed = list(outcome_consistency.ONLY_SEALED)
    if drawn is None:
        sealed.append("that each snapshot that was due has a status: give --due, from the chips' logs")
    if chips is None:
        sealed.append("that the sample was drawn from as many chips: give --chips, from the draw")
    said = outcome_consistency.in_words(record, agreed.terms)
    rows = [asdict(each) for each in ledger(record, agreed.terms)]
    disclosed = {"bits_at_most": bits(agreed.terms), "bytes": rows[-1]["offset"] + rows[-1]["length"], "ledger": rows}
    if as_json:
        print_json(
            {
                "verified": not findings,
                "record": said,
                "follows": list(outcome_consistency.FOLLOWS),
                "only_the_sealed_report_supports": sealed,
                "disclosed": disclosed,
                "findings": [each.to_json() for each in findings],
            }
        )
        return Exit.FINDINGS if findings else Exit.NOTHING_FOUND
    for finding in findings:
        print(findings_line(finding))
        print(one_line(f"  expected {finding.expected}, found {finding.found}"))
    p = "not defined" if said["p"] is None else f"{said['p']:.4f} ({said['p_is']})"
    print(f"outcome of inspection {said['inspection']}, {said['status']}: {said['verdict']}")
    print(f"agreed by the Prover with key {said['prover']} and the Verifier with key {said['verifier']}")
    print(f"p = {p}: {said['s']} of {said['C']} chips drawn, {said['w']} unverified after the draw was known")
    print("snapshots: " + (", ".join(f"{count} {name}" for name, count in said["snapshots"].items()) or "none"))
    for severity in ("violations", "warnings"):
        if said[severity]:
            print(f"{severity}: {', '.join(said[severity])}")
    print(f"{disclosed['bytes']} bytes left, with at most {disclosed['bits_at_most']} bits about secrets")
    for row in rows:
        if row["bits"]:
            print(f"  bytes {row['offset']} to {row['offset'] + row['length'] - 1}, {row['field']}: {row['why']}")
    if not findings:
        print("the signature is the worker's, nonce and size class are the agreed ones, and this follows:")
        for line in outcome_consistency.FOLLOWS:
            print(f"  {line}")
    print("only the sealed report supports:")
    for line in sealed:
        print(f"  {line}")
    return Exit.FINDINGS if findings else Exit.NOTHING_FOUND


def drawn_chips(text: str) -> list[Drawn]:
    from verifier.report.outcome import Drawn

    chips = [re.fullmatch(r"([0-9]{1,7})(c?)", each) for each in text.split(",")]
    if not all(chips):
        raise UsageError("--due takes a whole number for each drawn chip, with commas between them: 3,0,2c")
    return [Drawn(each[2] == "c", int(each[1])) for each in chips if each]
