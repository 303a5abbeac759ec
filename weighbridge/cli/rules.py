"""`weighbridge rules ...`: check, sign, verify and try rule sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli._exits import Exit, findings_line, one_line, print_json
from weighbridge.cli._inputs import Json, read_file, write_file
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from verifier.rules.ruleset import RuleSet

app = typer.Typer(help="Rules that training runs must keep: check, sign, verify and try them.", no_args_is_help=True)

_Source = Annotated[Path, typer.Argument(help="Rule set in TOML or JSON.")]
_Signed = Annotated[Path, typer.Argument(help="Signed rule set.")]
_Parties = Annotated[Path, typer.Option("--parties", help="TOML file with the parties' keys and the quorum.")]


@app.command()
def key(
    file: Annotated[Path, typer.Argument(help="Private key of a party; created if missing.")], as_json: Json = False
) -> None:
    """Print the public key of a party, for the file of parties; make the key first if there is none."""
    from weighbridge.attest.manifest import load_or_create_key

    public = load_or_create_key(file).public.hex()
    print_json({"public_key": public}) if as_json else print(public)


@app.command()
def check(source: _Source, as_json: Json = False) -> None:
    """Check a rule set: every expression, name and type."""
    from verifier.rules.ruleset import load

    _show(load(source), as_json)


@app.command()
def sign(
    source: _Source,
    key: Annotated[list[Path], typer.Option("--key", help="Private key of a party; repeatable.")],
    out: Annotated[Path, typer.Option("--out", help="Signed rule set; signatures that it has are kept.")],
    as_json: Json = False,
) -> None:
    """Sign a rule set, or add a signature to one that others signed."""
    from verifier.rules import ruleset
    from weighbridge.attest.manifest import load_or_create_key

    for each in key:
        if not each.exists():
            raise UsageError(f"there is no key {each}; make it with `weighbridge rules key {each}`")
    rules = ruleset.load(source)
    signed = ruleset.sign(rules, [load_or_create_key(each) for each in key], read_file(out) if out.exists() else None)
    write_file(out, signed)
    _, keys = ruleset.read(signed)
    if as_json:
        print_json({"digest": rules.digest, "keys": [each.hex() for each in keys]})
    else:
        print(f"{rules.id} version {rules.version}, digest {rules.digest}, signed by {len(keys)}")


@app.command()
def verify(
    signed: _Signed,
    parties: _Parties,
    after: Annotated[Path | None, typer.Option("--after", help="The signed version in force until now.")] = None,
    as_json: Json = False,
) -> None:
    """Verify who signed a rule set, and that it follows the version before: exit 1 if it does not."""
    from verifier.rules import ruleset
    from weighbridge.attest.dsse import Trust

    trust = Trust.load(parties)
    former = None if after is None else ruleset.verify(read_file(after), trust).rules
    found = ruleset.verify(read_file(signed), trust, former)
    _show(found.rules, as_json, signers=list(found.signers), quorum=trust.quorum)


@app.command("eval")
def evaluate(
    source: Annotated[Path, typer.Argument(help="Rule set in TOML or JSON, or a signed one.")],
    facts: Annotated[Path, typer.Option("--facts", help="Facts in JSON, or a report (signed or not).")],
    planned: Annotated[float | None, typer.Option("--threshold", help="H of the inspection, in FLOPs.")] = None,
    as_json: Json = False,
) -> int:
    """Apply rules to facts: exit 1 unless all hold and all runs declare what they must."""
    from verifier.rules import ruleset
    from verifier.rules.judge import findings, judge

    rules = ruleset.load(source) if source.suffix in (".toml", ".json") else ruleset.read(read_file(source))[0]
    given, stated = _facts(facts)
    judgements = judge(rules, given, stated if planned is None else planned)
    found = findings(rules, judgements, given)
    if as_json:
        print_json({"rules": [each.to_json() for each in judgements], "findings": [each.to_json() for each in found]})
    else:
        for each in judgements:
            print(one_line(f"{each.outcome}: {each.rule.id}: {each.rule.title}"))
        for finding in found:
            print(findings_line(finding))
    kept = all(each.outcome == "holds" for each in judgements)
    declared = all(finding.evidence.get("declaration") is None for finding in found)
    return Exit.NOTHING_FOUND if kept and declared else Exit.FINDINGS


def _facts(path: Path) -> tuple[dict[str, Any], float | None]:
    """Returns the facts in a file, and H if it is a report's."""
    data = read_file(path)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not JSON; give facts as docs/rules.md has them, or a report") from None
    if isinstance(value, dict) and "payloadType" in value:
        from verifier.report.signing import open_report

        value = open_report(data).report
    if isinstance(value, dict) and "schema" in value:
        stated = value.get("plan", {}).get("flops_threshold") if isinstance(value.get("plan"), dict) else None
        value, planned = value.get("facts"), stated if isinstance(stated, int | float) else None
    else:
        planned = None
    if not isinstance(value, dict):
        raise UsageError(f"{path} has no facts; give a JSON object of facts, or a report that was made with rules")
    return value, planned


def _show(rules: RuleSet, as_json: bool, **more: Any) -> None:
    if as_json:
        print_json({**rules.to_map(), "digest": rules.digest, **more})
        return
    print(one_line(f"{rules.id} version {rules.version}: {rules.title}"))
    print(f"digest {rules.digest}")
    if "signers" in more:
        print(one_line(f"signed by {', '.join(more['signers'])} ({more['quorum']} needed)"))
    for name, words in rules.declarations.items():
        print(one_line(f"declare {name}: {', '.join(words)}"))
    for rule in rules.rules:
        print(one_line(f"{rule.severity}: {rule.id}: {rule.title}"))
