"""`weighbridge report ...`: show a report to people, and verify that it is the Verifier's and says what follows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from weighbridge.cli import _outcome
from weighbridge.cli._exits import Exit, findings_line, one_line, print_json
from weighbridge.cli._inputs import Json, read_file
from weighbridge.core.errors import Finding, UsageError

app = typer.Typer(help="Reports of inspections: show one, verify one.", no_args_is_help=True)

_MAX_REPORT = 256 << 20
_SUBJECTS = 4
"""Subjects of equal findings that the text names; the page and the JSON have all."""

_File = Annotated[Path, typer.Argument(help="Signed report (report.dsse), or its content (report.json).")]


@app.command()
def show(
    file: _File,
    html: Annotated[Path | None, typer.Option("--html", help="Also write the page here.")] = None,
    as_json: Json = False,
) -> int:
    """Show a report: exit 0 if nothing was found, 1 if something was. Says nothing about who made it."""
    report, _ = read(file)
    if html is not None:
        _write(html, _page(report))
    if as_json:
        print_json(report)
    else:
        with of_this_form():
            text = as_text(report)
        print(text, end="")
    return outcome(report)


@app.command()
def verify(
    file: _File,
    key: Annotated[str, typer.Option("--key", help="The Verifier's public key in hexadecimal, or a file with it.")],
    rule_set: Annotated[
        Path | None, typer.Option("--rule-set", help="The signed rule set that it should have applied.")
    ] = None,
    parties: Annotated[Path | None, typer.Option("--parties", help="TOML file with the parties' keys.")] = None,
    agreement: Annotated[
        Path | None, typer.Option("--agreement", help="Of the record of an outcome: what both parties agreed on.")
    ] = None,
    due: Annotated[
        str | None,
        typer.Option("--due", help="Of it: snapshots of each drawn chip, in order; c after certain ones: 3,0,2c."),
    ] = None,
    chips: Annotated[
        int | None, typer.Option("--chips", help="Of it: chips that the random sample was drawn from (C).")
    ] = None,
    as_json: Json = False,
) -> int:
    """Verify a report: its signature, its rule set, and that p and all other figures follow from its inputs.

    Of the record of an outcome, which a sealed worker makes, it verifies what follows from the record alone.
    """
    from verifier.report import consistency, extent
    from verifier.rules import ruleset
    from weighbridge.attest.dsse import Trust

    wanted = public_key(key)
    if agreement is not None:
        return _outcome.verify(file, wanted, agreement, due, chips, as_json=as_json)
    report, signers = read(file)
    findings = []
    if wanted not in signers:
        findings.append(
            Finding(
                id="report.signer",
                message="the report is not signed with this Verifier's key; do not rely on it",
                expected=wanted.hex(),
                found=", ".join(each.hex() for each in signers) or "no signature",
                subject="signature",
            )
        )
    if (rule_set is None) != (parties is None):
        raise UsageError("--rule-set and --parties go together: a rule set counts if enough parties signed it")
    applied = None
    if rule_set is not None and parties is not None:
        applied = ruleset.verify(read_file(rule_set), Trust.load(parties)).rules
    findings += consistency.check(report, applied)
    if as_json:
        print_json({"verified": not findings, "findings": [each.to_json() for each in findings]})
    else:
        for finding in findings:
            print(findings_line(finding))
            print(one_line(f"  expected {finding.expected}, found {finding.found}"))
        if not findings:
            print("the signature is the Verifier's, and every figure follows from others")
            if nothing := extent.nothing_checked(report):
                print(f"yet it says no more than this: {nothing}")
    return Exit.FINDINGS if findings else Exit.NOTHING_FOUND


def outcome(report: Mapping[str, Any]) -> int:
    """Returns the exit status of a command that shows a report: whether something was found, by the report's word.

    Nothing was found in a report in which nothing, or not everything, was checked either; its text says so. A rule that
    could not be decided counts as found, whatever severity the policy gives it.
    """
    from verifier.report import extent

    nothing = report.get("verdict") in ("clean", "incomplete", "unchecked") and not extent.undecided(report)
    return Exit.NOTHING_FOUND if nothing else Exit.FINDINGS


def read(path: Path) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    """Returns a report and the keys that signed it (none, if the file is only its content).

    Raises:
        UsageError: The file cannot be read, or is no report.
        DocumentError: Its signature does not verify.
    """
    data = read_file(path, max_bytes=_MAX_REPORT)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and "payloadType" in value:
        from verifier.report.signing import open_report

        opened = open_report(data)
        return opened.report, opened.signers
    if not isinstance(value, dict) or "schema" not in value:
        raise UsageError(f"{path} is no report; give report.dsse or report.json of an inspection")
    return value, ()


@contextmanager
def of_this_form() -> Iterator[None]:
    """Refuses what has not the form of a report: what shows it relies on that.

    Raises:
        DocumentError: Something was not there or was of another type.
    """
    from jinja2 import TemplateError

    from weighbridge.attest.dsse import DocumentError

    try:
        yield
    except (TemplateError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DocumentError(
            f"this is no report that this version can show ({type(error).__name__}); look at its schema",
            code="report.malformed",
        ) from None


def _page(report: Mapping[str, Any]) -> str:
    from verifier.report.page import render_html

    with of_this_form():
        return render_html(report)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}); choose another place") from None


def as_text(report: Mapping[str, Any]) -> str:
    """Returns what matters of a report as text for people.

    Raises:
        KeyError, TypeError, ValueError, ...: It is no report of this version.
    """
    from io import StringIO

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from verifier.report import chip_names, extent, false_accusation, training
    from verifier.report.earlier_reports import as_current
    from verifier.report.finding_groups import group, subjects_in_words
    from verifier.report.ledger import CATEGORIES
    from verifier.report.run_facts_for_rules import programs_in_words

    console = Console(highlight=False, file=StringIO(), width=120)

    report = as_current(report)
    called = chip_names.names(report)

    def say(text: str) -> None:
        console.print(escape(one_line(chip_names.named(text, called))), soft_wrap=True)

    counts, miss, ledger, observed = report["counts"], report["miss"], report["ledger"], report["observed"]
    nothing = extent.nothing_checked(report)
    undecided = extent.undecided(report)
    say(f"inspection {report['inspection']}: {nothing or ('findings' if undecided else report['verdict'])}")
    if undecided:
        say(f"rules that could not be decided, so that this report is not clean: {', '.join(undecided)}")
    if nothing and report["verdict"] == "findings":
        say(f"{counts['violations']} violations and {counts['warnings']} warnings were found without a replay")
    say(f"{counts['sampled']} of {counts['registered']} chips drawn; " + silence(counts, nothing))
    if (without := extent.nothing_due_on(report["chips"])) and not nothing:
        say(f"on {without} of the verified chips nothing was due: only their logs were checked")
    given = counts.get("explained_given_collectives", 0)
    apart = f", {given} given the results of collectives" if given else ""
    say(f"{counts['snapshots']} snapshots, {counts['explained']} explained{apart}")
    say(headline(miss))
    say(proven(report["probability"]["proven"]))
    say(false_accusation.in_words(report["false_accusation"]))
    say(observed_time(observed))
    if replays := extent.replays_in_words(report):
        say(f"replays: {replays}")
    names = {each["id"]: each["name"] for each in report["transcripts"]}
    for run in report["facts"]["runs"]:
        if programs := programs_in_words(run):
            say(f"programs of {names.get(run['id']) or 'job ' + run['id'][:12]}: {programs}")
    for line in training.in_words(report):
        say(line)
    table = Table("category", "chip-hours", title="ledger of the sampled chips", title_justify="left")
    for category in CATEGORIES:
        table.add_row(category, f"{ledger['ms'][category] / 3_600_000:.2f}")
    console.print(table)
    say(f"undeclared work on them: at most {ledger['unexplained_flops']:.4g} FLOPs, their counters believed")
    if (work := ledger.get("work")) is not None:
        say(
            f"work by their counters that no transcript explains: {work['unexplained_flops']:.4g} FLOPs, of which "
            f"{work['below_flops']:.4g} on chips with fewer than {work['from_flops']:.4g}"
        )
    if ledger["fleet"] is not None:
        bound, sure = ledger["fleet"]["unexplained_flops_at_most"], ledger["fleet"]["confidence"]
        say(f"undeclared work on all chips: at most {bound:.4g} FLOPs, with confidence {sure:g}")
    if report["rules"] is not None:
        rules = report["rules"]
        say(f"rules {rules['id']} version {rules['version']}, signed by {', '.join(rules['signers'])}")
        for rule in rules["rules"]:
            say(f"  {rule['outcome']}: {rule['id']}: {rule['title']}")
    for one in group(report["findings"]):
        times = f" ({len(one.cases)} times)" if len(one.cases) > 1 else ""
        about = subjects_in_words(one.cases, _SUBJECTS)
        say(f"{one.severity}: {one.id}{times}: {one.message}" + (f" [{about}]" if about else ""))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def silence(counts: Mapping[str, Any], nothing: str) -> str:
    """Returns what became of the drawn chips, in words.

    Args:
        counts: The report's.
        nothing: What a report says in which nothing was checked; empty for others.
    """
    good = "have nothing against them" if nothing else "verified"
    return (
        f"{counts['verified']} {good}, {counts['found_against']} with a violation, "
        f"{counts['unverified_after_draw']} unverified after the draw was known, "
        f"{counts['silent_before_cutoff']} silent before the cut-off"
    )


def headline(miss: Mapping[str, Any]) -> str:
    """Returns in words the one p that a report rests on, and the bound on unseen violations.

    Args:
        miss: The report's.
    """
    from verifier.report.miss_bound import P_IS

    p = P_IS["not defined"] if miss["p"] is None else f"{miss['p']:.4f} ({P_IS[miss['p_is']]})"
    return f"p = {p}; a violation of size H went unseen with a probability of at most {miss['unseen_at_most']:.4f}"


def observed_time(observed: Mapping[str, Any]) -> str:
    """Returns in words how much chip-time the evidence covers."""
    from verifier.report import extent

    hours = {name: observed[f"{name}_ms"] / 3_600_000 for name in ("explained", "idle")}
    return (
        f"observed: {extent.chip_time(observed['observed_ms'], observed['drawn_ms'])} of the drawn chips "
        f"({hours['explained']:.2f} hours explained, {hours['idle']:.2f} idle)"
    )


def proven(section: Mapping[str, Any]) -> str:
    """Returns in words what p is by proven time alone."""
    p = "not defined" if section["p"] is None else f"{section['p']:.4f}"
    return f"by proven time alone p = {p}: {section['unproven_share']:.1%} of some drawn chip's period is not proven"


def public_key(text: str) -> bytes:
    """Returns a public key that is given in hexadecimal or as a file with that."""
    path = Path(text)
    given = read_file(path).decode("ascii", "replace").strip() if len(text) < 4096 and path.is_file() else text
    try:
        key = bytes.fromhex(given)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise UsageError("--key takes a public key of 64 hexadecimal digits, or a file with one")
    return key
