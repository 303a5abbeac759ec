"""What a report says of the training of each run: what was recognised, of which programs, and what that does not say.

The section stands under `evidence`: it accuses no party. docs/recognition.md says what the words mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verifier.model.training import Program, Training, draw_seed, reasons
from weighbridge.execution.recognition.outcome import Recognition, Summary

MOST_PROGRAMS = 200
"""Programs that are listed; those that are not recognised come first."""

_MOST_NAMES = 200
_SHOWN = 6


def section(
    trainings: Iterable[Training],
    roots: Mapping[str, str],
    lists: Mapping[str, Sequence[str]],
) -> list[dict[str, Any]]:
    """Returns what the report says of each run, JSON-compatible.

    Args:
        trainings: What was recognised.
        roots: By transcript, the hex root over its committed records; none of a run without a commitment.
        lists: The lists of texts of the rule set in force.
    """
    return [_run(each, roots.get(each.transcript), lists) for each in trainings]


def _run(training: Training, root: str | None, lists: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    steps = training.steps
    listed = sorted(
        training.programs, key=lambda each: ("not recognised", "not known", "recognised").index(each.outcome)
    )
    approved = sorted(name for name, texts in lists.items() if root is not None and root in texts)
    summary = Summary(steps)
    return {
        "transcript": training.transcript,
        "draft": training.draft,
        "outcome": training.outcome,
        "asked": training.asked,
        "draw": [{"begin": each, "seed": _seed(training.seed, training.draft, each)} for each in training.begins],
        "looked_at": len(steps),
        "recognised": sum(each.recognised for each in steps),
        "programs": [_program(each) for each in listed[:MOST_PROGRAMS]],
        "further_programs": max(0, len(listed) - MOST_PROGRAMS),
        "losses": _union(loss.kind for each in steps for loss in each.losses),
        "optimizers": _union(update.optimizer for each in steps for update in each.updates),
        "stops": _union(name for each in steps for name in each.stops),
        "found": [*(summary.found() if steps else ["no step was looked at"]), *_beside(training)],
        "not_said": [*summary.unsaid(), *_not_said(training, root, approved)],
        "data_root": root,
        "data_approved_in": approved,
        "failures": list(training.failures),
        "charged": charged(steps),
    }


def _seed(seed: bytes, draft: str, begin: int) -> str:
    return f"{draw_seed(seed, draft, begin):016x}"


def _program(program: Program) -> dict[str, Any]:
    return {
        "tape": program.digest,
        "ran": program.ran,
        "outcome": program.outcome,
        "looked_at": [each.step for each in program.steps],
        "recognised": [each.step for each in program.steps if each.recognised],
        "reasons": reasons(program.steps)[:_SHOWN],
    }


def _beside(training: Training) -> list[str]:
    """Says of which programs no step was looked at, and what went wrong."""
    unseen = [each for each in training.programs if not each.steps]
    named = ", ".join(f"{each.digest[:16]} ({_steps(each.ran)})" for each in unseen[:_SHOWN])
    more = f" and {len(unseen) - _SHOWN} more" if len(unseen) > _SHOWN else ""
    few = "1 program" if len(unseen) == 1 else f"{len(unseen)} programs"
    lines = [f"not known: of {few} no step was looked at: {named}{more}"] if unseen else []
    return lines + [f"not known: {each}" for each in training.failures]


def _steps(ran: int | None) -> str:
    return "1 step" if ran == 1 else f"{'some' if ran is None else ran} steps"


def headline(entry: Mapping[str, Any]) -> str:
    """Returns what stands first of a run: its outcome, or that all steps that were looked at are recognised."""
    whole = 0 < entry["looked_at"] == entry["recognised"]
    return "recognised in part" if whole and entry["outcome"] == "not known" else str(entry["outcome"])


def _not_said(training: Training, root: str | None, approved: Sequence[str]) -> list[str]:
    counted = [each.ran for each in training.programs]
    ran = None if None in counted else sum(each or 0 for each in counted)
    of = "" if ran is None else f" of {ran:,}"
    if root is None:
        data = "its data set was not committed to before training, so no party can have approved it"
    elif approved:
        data = f"its data set is approved by the rule set ({', '.join(approved)})"
    else:
        data = "its data set is the Prover's choice: no list of the rules in force approves it"
    return [
        f"steps that were not looked at are not verified: {len(training.steps):,}{of} were; a program that is "
        "recognised in one step may do something else with other data",
        data,
    ]


def charged(steps: Sequence[Recognition]) -> dict[str, Any] | None:
    """Returns the entry of recognised steps in the ledger of chosen bits (docs/reports.md); None if there are none."""
    bits = {each.step: sum(u.freedom_bits for u in each.updates) for each in steps if each.recognised}
    if not bits:
        return None
    step = max(bits, key=lambda number: (bits[number], -number))
    weights = max(each.weight_bits for each in steps)
    total = float(sum(bits.values()))
    return {
        "bits": total,
        "step": step,
        "step_bits": float(bits[step]),
        "what": "what else would be accepted of the recognised updates",
        "budget": None,
        "share": total / weights if weights else None,
    }


def facts(training: Training, parameters: int | None) -> dict[str, Any]:
    """Returns a run's fact `training`, in the form of `verifier.rules.schema`.

    Args:
        training: What is known of the run; of a job, of all of its ranks.
        parameters: Elements of its weights, on all ranks; None if it names none.
    """
    steps = training.steps
    by_step: dict[int, list[Recognition]] = {}
    for each in steps:
        by_step.setdefault(each.step, []).append(each)
    out: dict[str, Any] = {
        "looked_at": len(by_step),
        "recognised": sum(all(each.recognised for each in ranks) for ranks in by_step.values()),
        "programs": len(training.programs),
        "programs_recognised": sum(each.outcome == "recognised" for each in training.programs),
    }
    if training.outcome != "not known":
        out["outcome"] = training.outcome
    if not steps or not all(each.known for each in steps):
        return out
    out |= {
        "loss": " + ".join(sorted(_union(loss.kind for each in steps for loss in each.losses))),
        "optimizer": " + ".join(sorted(_union(update.optimizer for each in steps for update in each.updates))),
        "trained": _union(name for each in steps for update in each.updates for name in update.parameters),
        "direct": _union(name for each in steps for loss in each.losses for name in loss.direct),
        "stops": _union(name for each in steps for name in each.stops),
    }
    if all(each.weight_bits for each in steps):
        out["data_share"] = max(each.float_bits / each.weight_bits for each in steps)
        out["other_share"] = max(each.other_bits / each.weight_bits for each in steps)
    if all(each.recognised for each in steps):
        out["freedom"] = float(Summary(steps).freedom())
    if parameters:
        elements = [
            sum(update.elements for each in ranks if each.recognised for update in each.updates)
            for ranks in by_step.values()
        ]
        out["verified_share"] = min(1.0, min(elements) / parameters)
    return out


def in_words(report: Mapping[str, Any]) -> list[str]:
    """Returns what a report says of trainings as lines for people: each run with its name, and what is not said."""
    names = {each["id"]: each["name"] for each in report["transcripts"]}
    lines = []
    for each in report["evidence"].get("training", ()):
        name = names.get(each["transcript"]) or each["transcript"][:12]
        lines.append(f"training of {name}: {headline(each)}: {'; '.join(each['found'])}")
        lines.append(f"  not said by that: {'; '.join(each['not_said'])}")
    return lines


def again(report: Mapping[str, Any]) -> list[tuple[str, object, object]]:
    """Computes again what the section says and follows from other parts of a report.

    Returns:
        (subject, what follows, what is stated) of each part; the two are equal in an honest report.

    Raises:
        KeyError, TypeError, ValueError: It is no report.
    """
    plan, found = report["plan"], list[tuple[str, object, object]]()
    for each in report["evidence"].get("training", ()):
        subject, programs = f"evidence.training of {each['transcript']}", each["programs"]
        seeds = [_seed(bytes.fromhex(plan["seed"]), each["draft"], one["begin"]) for one in each["draw"]]
        found += [
            (f"{subject}: seeds of its draws", seeds, [one["seed"] for one in each["draw"]]),
            (f"{subject}: steps asked for", plan["segments"]["recognise"], each["asked"]),
            (f"{subject}: outcome", _outcome([one["outcome"] for one in programs], each["outcome"]), each["outcome"]),
        ]
        if not each["further_programs"]:
            found += [
                (f"{subject}: {name}", sum(len(one[name]) for one in programs), _count(each[name]))
                for name in ("looked_at", "recognised")
            ]
    return found


def _outcome(programs: Sequence[str], stated: str) -> str:
    """What the outcomes of programs come to; a run may be less known than the programs that are listed."""
    if "not recognised" in programs:
        return "not recognised"
    return "not known" if "not known" in programs or not programs else stated if stated == "not known" else "recognised"


def _count(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("a count")
    return value


def _union(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))[:_MOST_NAMES]
