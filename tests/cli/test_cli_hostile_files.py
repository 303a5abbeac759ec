"""What a Verifier's operator types on files that a Prover sent: the command's own process decodes none of them.

The commands run here, in the test's process, and their workers where they always do.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.command_line import weighbridge
from support.forging import at_step, forge
from support.hostile_files import MIB, bomb, hostile
from support.peaks import peak

from prover.keeping import collective_replay
from weighbridge.execution import collective_openings, comparison, job_questions, job_replay, transcript_facts
from weighbridge.execution.collective_openings import Commitments
from weighbridge.execution.replay import replay
from weighbridge.execution.worker_process import Limits
from weighbridge.program import tape_description
from weighbridge.transcript.job_record import RECORD, rank_name
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord, steps_path, tape_path
from weighbridge.transcript.tape import Input, Node, Tape
from weighbridge.transcript.tensor_file import TensorFile

GOLDEN_JOB = Path(__file__).parents[1] / "golden" / "job"
STEPS, TAPE = "step records", "a tape"
ALL_REDUCE = "weighbridge::all_reduce.default"
DIGITS = re.compile("[0-9a-f]{32,}")
SURVIVES_WITHIN = 200e6, 60.0
"""Bytes that the command's own process may need more, and seconds of its own processor time."""

RUN_COMMANDS: dict[str, tuple[str, ...]] = {
    "show": ("show", "RUN"),
    "tape show": ("tape", "show", "RUN", "--operations"),
    "replay": ("replay", "RUN"),
    "compare": ("compare", "RUN", "HONEST"),
}
JOB_COMMANDS: dict[str, tuple[str, ...]] = {
    "job show": ("job", "show", "JOB"),
    "job challenge": ("job", "challenge", "JOB", "--out", "OUT"),
    "job check": ("job", "check", "JOB", "--challenge", "CHALLENGE", "--openings", "OPENINGS"),
    "job layout": ("job", "layout", "JOB", "WHOLE", "--step", "3"),
    "replay of a job": ("replay", "JOB"),
}
COMMANDS = RUN_COMMANDS | JOB_COMMANDS


@pytest.fixture(scope="module")
def places(honest_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What the words in capitals stand for where everybody is honest."""
    folder = tmp_path_factory.mktemp("job")
    targets = list(Commitments(GOLDEN_JOB).targets(0, (1, 3)))
    (folder / "challenge").write_bytes(collective_openings.encode_targets(targets))
    opened = collective_replay.open_chunks(GOLDEN_JOB, 0, targets)
    (folder / "openings").write_bytes(collective_openings.encode(opened))
    return {
        "RUN": honest_run, "HONEST": honest_run, "JOB": GOLDEN_JOB, "WHOLE": GOLDEN_JOB / rank_name(0),
        "CHALLENGE": folder / "challenge", "OPENINGS": folder / "openings", "OUT": folder / "out",
    }  # fmt: skip


def typed(command: str, places: dict[str, Path], *options: str) -> tuple[int, str, str]:
    """Runs a command; returns its exit code and what it wrote to standard output and standard error."""
    return weighbridge(*(places.get(word, word) for word in COMMANDS[command]), *options)


@pytest.fixture(scope="module")
def honest(places: dict[str, Path]) -> dict[str, str]:
    """What each command says of honest files, in a process in which every decoder of transcripts is out of order."""

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("the command's own process decodes what a Prover sent")

    said = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transcript, "open", forbidden)
        patch.setattr(Transcript, "__init__", forbidden)
        patch.setattr(Tape, "decode", staticmethod(forbidden))
        patch.setattr(StepRecord, "from_map", forbidden)
        patch.setattr(TensorFile, "__init__", forbidden)
        patch.setattr(collective_openings, "read_openings", forbidden)
        for command in COMMANDS:
            code, said[command], err = typed(command, places, *(["--json"] if command != "job challenge" else []))
            assert (code, err) == (0, ""), (command, err)
    return said


@pytest.mark.essential
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_of_honest_files_what_is_in_them(
    command: str, honest: dict[str, str], places: dict[str, Path]
) -> None:
    """The same that their decoders find in them, here and without confinement."""
    said = honest[command]
    if command == "job challenge":
        there = list(Commitments(GOLDEN_JOB).targets(0, (0, Transcript.open(GOLDEN_JOB / rank_name(0)).steps)))
        drawn = collective_openings.decode_targets(places["OUT"].read_bytes())
        assert said == f"{min(100, len(there))} of {len(there)} chunks, drawn with replacement\n"
        assert len(drawn) == 100
        assert set(drawn) <= set(there)
        return
    answer = json.loads(said)
    match command:
        case "show":
            assert answer["steps"] == {"init": 1, "step": Transcript.open(places["RUN"]).steps - 1}
        case "tape show":
            described = tape_description.describe(Transcript.open(places["RUN"]), None, None, operations=True)
            described.pop("step")
            assert list(answer.items()) == list(json.loads(json.dumps(described)).items())
        case "replay" | "replay of a job":
            assert answer["verdict"] == "match"
        case "compare":
            assert answer["equal"] is True
        case "job show":
            transcripts = [Transcript.open(GOLDEN_JOB / rank_name(rank)) for rank in (0, 1)]
            assert [row["transcript"] for row in answer["ranks"]] == [each.digest for each in transcripts]
            steps, commitments = range(transcripts[0].steps), Commitments(GOLDEN_JOB)
            names = [Counter(c.call.name for s in steps for c in commitments.step(r, s).values()) for r in (0, 1)]
            assert [row["collectives"] for row in answer["ranks"]] == names
        case "job check":
            asked = collective_openings.decode_targets(places["CHALLENGE"].read_bytes())
            assert answer == {"chunks": len(asked), "findings": []}
        case "job layout":
            assert answer["findings"] == []
            assert answer["shards"] == sum(len(Transcript.open(GOLDEN_JOB / rank_name(r)).layout()) for r in (0, 1))


def with_rank(target: Path, make: Callable[[Path, Path], object]) -> Path:
    """The job with another transcript of rank 0, which `make` makes of (the old one, a new directory)."""
    target.mkdir()
    shutil.copyfile(GOLDEN_JOB / RECORD, target / RECORD)
    shutil.copytree(GOLDEN_JOB / rank_name(1), target / rank_name(1))
    make(GOLDEN_JOB / rank_name(0), target / rank_name(0))
    return target


def refused(command: str, places: dict[str, Path]) -> str:
    """Runs a command that must not succeed, and must not need much; returns what it says."""
    with peak() as took:
        code, out, err = typed(command, places)
    assert code in (1, 2), (code, out, err)
    assert took.bytes < SURVIVES_WITHIN[0]
    assert took.seconds < SURVIVES_WITHIN[1]
    return out + err


READS_TAPES = {"tape show", "replay", "job show", "job challenge", "replay of a job"}
"""The others read no tape of step 1 where the records are alike, or none at all."""


@pytest.mark.parametrize(
    ("command", "kind"), [*((each, STEPS) for each in COMMANDS), *((each, TAPE) for each in sorted(READS_TAPES))]
)
def test_a_command_survives_files_that_expand(
    command: str, kind: str, honest: dict[str, str], places: dict[str, Path], tmp_path: Path
) -> None:
    """42 million items in 4 kB, in the place of the records of a segment or of the tape that step 1 ran."""

    def make(old: Path, new: Path) -> Path:
        path = steps_path(0) if kind == STEPS else tape_path(Transcript.open(old).step(1).tape)
        return hostile(old, new, path, bomb(42 * MIB))

    run = command in RUN_COMMANDS
    here = {"RUN": make(places["RUN"], tmp_path / "run")} if run else {"JOB": with_rank(tmp_path / "job", make)}
    if command == "tape show":
        here["--operations"] = Path("--step=1")
    assert "malformed" in refused(command, {**places, **here})


def test_openings_that_expand_are_refused(honest: dict[str, str], places: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "openings").write_bytes(b"\x9a\x04\x00\x00\x00" + b"\x80" * (1 << 26))
    assert "format.malformed" in refused("job check", {**places, "OPENINGS": tmp_path / "openings"})
    (tmp_path / "link").symlink_to(tmp_path / "openings")
    assert "regular files only" in refused("job check", {**places, "OPENINGS": tmp_path / "link"})


def claims_much(tape: Tape, fields: dict[str, Any]) -> None:
    """A tensor of 2^40 elements that lie on one, and an operation on it."""
    slot, ref = tape.inputs[0].slot, len(tape.refs)
    tape.refs.append((slot, "f32", (1 << 40,), (0,), 0))
    tape.nodes.append(Node("neg.default", (("t", ref),), {}, (None,), ()))
    tape.frees = [(min(at, len(tape.nodes) - 1), freed) for at, freed in tape.frees]


def collects_much(tape: Tape, fields: dict[str, Any]) -> None:
    """One more all-reduce, of a tensor of 2^40 elements that lie on one."""
    slot, ref, at = tape.inputs[0].slot, len(tape.refs), len(tape.nodes)
    tape.refs.append((slot, "f32", (1 << 40,), (0,), 0))
    side = ("l", (("t", ref),))
    tape.nodes.append(Node(ALL_REDUCE, (side, side, ("s", "sum"), ("l", (0, 1)), 0, 0), {}, ()))
    fields["collectives"] = [*fields["collectives"], (at, bytes(32), bytes(32))]


@pytest.mark.parametrize("command", ["tape show", "replay", "compare"])
def test_a_tensor_that_claims_more_elements_than_there_are_costs_nothing(
    command: str, honest: dict[str, str], places: dict[str, Path], tmp_path: Path
) -> None:
    """What only reads the program describes it; what executes it refuses."""
    run = forge(places["RUN"], tmp_path / "run", at_step(4, claims_much))
    if command != "tape show":
        refused(command, {**places, "RUN": run})
        return
    with peak() as took:
        code, out, _ = weighbridge("tape", "show", run, "--step", "4", "--operations")
    assert code == 0
    assert "f32[1099511627776]" in out
    assert took.bytes < SURVIVES_WITHIN[0]


@pytest.mark.parametrize("command", ["job show", "job challenge", "replay of a job"])
def test_a_collective_that_claims_more_elements_than_there_are_costs_nothing(
    command: str, honest: dict[str, str], places: dict[str, Path], tmp_path: Path
) -> None:
    """Chunks are drawn from 2^28 of them without a list of all."""
    job = with_rank(tmp_path / "job", lambda old, new: forge(old, new, at_step(2, collects_much)))
    here = {**places, "JOB": job, "OUT": tmp_path / "out"}
    if command == "replay of a job":
        refused(command, here)
        return
    with peak() as took:
        code, out, err = typed(command, here)
    assert (code, err) == (0, "")
    assert took.bytes < SURVIVES_WITHIN[0]
    if command == "job challenge":
        (count,) = (int(word) for word in out.split() if len(word) > 8 and word.isdigit())
        assert count > 1 << 28
        drawn = collective_openings.decode_targets((tmp_path / "out").read_bytes())
        assert max(target.chunk for target in drawn) > 1 << 20


def endless(tape: Tape, fields: dict[str, Any]) -> None:
    """So much state, each part of it changed, that who asks of each part what it depends on is at it for minutes."""
    much, at = 20_000, len(tape.nodes)
    first, ref = 100_000, len(tape.refs)
    tape.inputs += [Input(first + n, 4, "state", f"s{n}") for n in range(much)]
    tape.refs += [(first + n, "f32", (1,), (1,), 0) for n in range(much)]
    tape.nodes += [Node("neg_.default", (("t", ref + n),), {}, (ref + n,), ()) for n in range(much)]
    tape.frees = [(freed if freed < at else at + much, slot) for freed, slot in tape.frees]


def test_an_endless_analysis_is_ended(
    honest: dict[str, str], places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = forge(places["RUN"], tmp_path / "run", at_step(4, endless))
    monkeypatch.setattr(transcript_facts, "OPENING", replace(transcript_facts.OPENING, seconds=3))
    code, out, err = weighbridge("tape", "show", run, "--step", "4")
    assert (code, out) == (2, "")
    assert "replay.worker" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_ends_with_its_budget(
    command: str, honest: dict[str, str], places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Limits(seconds=0)
    for module, name in ((transcript_facts, "OPENING"), (transcript_facts, "QUESTIONS"), (job_questions, "LIMITS")):
        monkeypatch.setattr(module, name, nothing)
    for function in (replay, comparison.compare, job_replay.replay_job):
        monkeypatch.setitem(function.__kwdefaults__, "limits", nothing)
    code, _, err = typed(command, places)
    assert code == 2
    assert "replay.worker" in err


@pytest.mark.parametrize("command", ["tape show", "job show"])
def test_what_a_worker_answers_cannot_steer_the_terminal(
    command: str, honest: dict[str, str], places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Escapes in every text of an answer that has its shape to the last item."""

    def escaped(value: Any, shape: Any) -> Any:
        if isinstance(shape, tuple):
            shape = str if isinstance(value, str) else {} if value is None else shape[-1]
        if isinstance(value, str) and not DIGITS.fullmatch(value):  # what has to be digits is refused
            return "\x1b[2J" + value
        if isinstance(value, list):
            return [escaped(each, shape[0] if isinstance(shape, list) else None) for each in value]
        if isinstance(value, dict) and isinstance(shape, dict) and str in shape:
            return {f"\x1b[2J{name}": escaped(each, shape[str]) for name, each in value.items()}
        if isinstance(value, dict) and isinstance(shape, dict):
            return {name: escaped(each, shape.get(name, shape.get(f"{name}?"))) for name, each in value.items()}
        return value

    run_worker = transcript_facts.run_worker

    def taken_over(module: str, request: dict[str, Any], *rest: Any) -> Any:
        answer = run_worker(module, request, *rest)
        shapes = {"program": tape_description.SHAPE, "describe": job_questions.DESCRIPTION}
        if request["question"] in shapes:
            answer["result"] = escaped(answer["result"], shapes[request["question"]])
        return answer

    monkeypatch.setattr(transcript_facts, "run_worker", taken_over)
    monkeypatch.setattr(job_questions, "run_worker", taken_over)
    for options in ((), ("--json",)):
        code, out, err = typed(command, places, *options)
        assert (code, err) == (0, "")
        assert "[2J" in out
        assert "\x1b" not in out
