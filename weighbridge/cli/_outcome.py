"""What `weighbridge report verify --agreement` says of the record of an outcome."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from weighbridge.cli._exits import Exit, findings_line, one_line, print_json
from weighbridge.cli._inputs import read_file
from weighbridge.core.errors import UsageError


def verify(file: Path, key: bytes, agreement: Path, due: str | None, *, as_json: bool) -> int:
    """Verifies a record, prints what it says and what left with it, and returns the exit code.

    Args:
        file: The signed record.
        key: The public key that the worker stated when it started.
        agreement: A file with what both parties agreed on.
        due: Snapshots of each drawn chip, with commas between them; None if the caller does not know.
        as_json: Whether a program asks.

    Raises:
        UsageError: A file cannot be read, or `due` is no list of numbers.
        OutcomeError: The record is malformed, altered, or of another start.
    """
    from verifier.report import outcome_consistency
    from weighbridge.attest.disclosure import bits, ledger
    from weighbridge.attest.outcome_agreement import AGREEMENT_LIMIT, Agreement
    from weighbridge.attest.outcome_agreement import verify as verify_record
    from weighbridge.attest.outcome_record import RECORD_LIMIT

    agreed = Agreement.from_cbor(read_file(agreement, max_bytes=AGREEMENT_LIMIT))
    record = verify_record(read_file(file, max_bytes=RECORD_LIMIT), agreed, key)
    counted = None if due is None else _counts(due)
    findings = outcome_consistency.check(record, agreed.terms, counted)
    sealed = list(outcome_consistency.ONLY_SEALED)
    if counted is None:
        sealed.append("that each snapshot that was due has a status: give --due, from the chips' logs")
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


def _counts(text: str) -> list[int]:
    counts = [int(each) if each.isascii() and each.isdigit() and len(each) < 8 else -1 for each in text.split(",")]
    if min(counts) < 0:
        raise UsageError("--due takes whole numbers with commas between them, one for each drawn chip")
    return counts
