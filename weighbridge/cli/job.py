"""`weighbridge job ...`: what a job on several ranks is, cells of it, and chunks of its collectives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weighbridge.cli._exits import one_line, print_found, print_json
from weighbridge.cli._inputs import Json, require_transcript
from weighbridge.core.errors import UsageError

app = typer.Typer(help="Jobs on several ranks: show one, replay a cell, check its collectives.", no_args_is_help=True)

_Job = Annotated[Path, typer.Argument(help="Directory of the job.")]
_Rank = Annotated[int, typer.Option(help="The cell's rank.")]
_Steps = Annotated[str | None, typer.Option(help="The cell's steps A to B-1, as A:B; all by default.")]
_Out = Annotated[Path, typer.Option(help="File to write.")]
_Device = Annotated[str, typer.Option(help="Device to execute on: cpu, cuda, cuda:1.")]


def _cell(job: Path, rank: int, steps: str | None) -> tuple[int, int]:
    """Returns the steps of a cell (first, last + 1); reads no more than the manifest of the rank's transcript."""
    from weighbridge.cli.replay import parse_steps
    from weighbridge.core.bounded import DEFAULT_LIMITS
    from weighbridge.transcript.files import read_manifest
    from weighbridge.transcript.job_record import rank_name

    _require_job(job)
    run = job / rank_name(rank)
    if rank < 0 or not run.is_dir():
        raise UsageError(f"the job has no rank {rank}; `weighbridge job show {job}` lists its ranks")
    count = read_manifest(run, DEFAULT_LIMITS).steps
    return (0, count) if steps is None else parse_steps(steps, count)


def _require_job(job: Path) -> None:
    from weighbridge.transcript.job_record import RECORD, is_job

    if not is_job(job):
        raise UsageError(f"{job} is no job: it has no {RECORD}; give the directory that holds rank-0000")


@app.command("show")
def show(job: _Job, as_json: Json = False) -> None:
    """Verify all transcripts of a job and say which ranks it has and what they exchange."""
    from weighbridge.execution import job_questions, transcript_facts

    _require_job(job)
    facts = job_questions.describe(job, limits=transcript_facts.OPENING)
    if as_json:
        print_json(facts)
        return
    mesh = "  ".join(f"{name} {size}" for name, size in facts["mesh"].items())
    print(f"job {facts['job']}  {one_line(mesh)}")
    for row in facts["ranks"]:
        collectives = ", ".join(f"{count} {name}" for name, count in row["collectives"].items()) or "none"
        said = f"{row['steps']} steps, {row['shards']} sharded tensors; collectives: {collectives}"
        print(one_line(f"rank {row['rank']}: {said}"))


@app.command("results")
def results(job: _Job, out: _Out, rank: _Rank = 0, steps: _Steps = None, device: _Device = "cpu") -> None:
    """For the Prover: replay the job and write the results of a cell's collectives, for a replay of the cell."""
    from prover.keeping.collective_replay import cell_results
    from weighbridge.cli.replay import require_device

    require_device(device)
    cell_results(job, rank, _cell(job, rank, steps), out, device=device)


@app.command("challenge")
def challenge(
    job: _Job,
    out: _Out,
    rank: _Rank = 0,
    steps: _Steps = None,
    chunks: Annotated[int, typer.Option(help="How many chunks to choose.", min=1, max=65536)] = 100,
) -> None:
    """For the Verifier: choose random chunks of the results of a cell's collectives."""
    import secrets

    from weighbridge.execution import job_questions, transcript_facts
    from weighbridge.execution.collective_openings import encode_targets

    sides = job_questions.results(job, rank, _cell(job, rank, steps), limits=transcript_facts.OPENING)
    there = sum(side.chunks for side in sides)
    drawn = sorted(secrets.randbelow(there) for _ in range(chunks)) if there else []
    out.write_bytes(encode_targets(job_questions.chunks_of(sides, drawn)))
    print(f"{min(chunks, there)} of {there} chunks, drawn with replacement")


@app.command("open")
def open_(
    job: _Job,
    chosen: Annotated[Path, typer.Option("--challenge", help="File of the chunks that were chosen.")],
    out: _Out,
    rank: _Rank = 0,
    device: _Device = "cpu",
) -> None:
    """For the Prover: replay the job and open chunks of a cell's results, with the contributions they are made from."""
    from prover.keeping.collective_replay import open_chunks
    from weighbridge.execution.collective_openings import decode_targets, encode

    out.write_bytes(encode(open_chunks(job, rank, decode_targets(_read(chosen)), device=device)))


@app.command("check")
def check(
    job: _Job,
    chosen: Annotated[Path, typer.Option("--challenge", help="File of the chunks that were chosen.")],
    opened: Annotated[Path, typer.Option("--openings", help="File of what the Prover opened.")],
    rank: _Rank = 0,
    as_json: Json = False,
) -> int:
    """For the Verifier: check opened chunks against the step records of all ranks and combine them again."""
    from weighbridge.execution import job_questions
    from weighbridge.execution.collective_openings import decode_targets

    _require_job(job)
    _require_file(opened)
    targets = decode_targets(_read(chosen))
    asked = [target.step for target in targets]
    steps = (min(asked), max(asked) + 1) if asked else (0, 0)
    findings = job_questions.check(job, rank, steps, targets, opened, together=True, limits=job_questions.LIMITS)
    count = len(set(targets))
    lines = [f"{count} chunks checked, {len(findings)} findings"]
    return print_found({"chunks": count}, lines, findings, as_json=as_json)


@app.command("layout")
def layout(
    job: _Job,
    run: Annotated[Path, typer.Argument(help="Transcript of the same training on one device.")],
    step: Annotated[int, typer.Option(help="Compare the states before this step; both need that checkpoint.")] = 1,
    as_json: Json = False,
) -> int:
    """Compare what each rank holds, by its layout, with the state of a run that was not sharded."""
    from weighbridge.execution import job_questions

    _require_job(job)
    require_transcript(run)
    shards, findings = job_questions.layout(job, run, step, limits=job_questions.LIMITS)
    lines = [f"{shards} shards compared, {len(findings)} findings"]
    return print_found({"shards": shards}, lines, findings, as_json=as_json)


_MAX_FILE = 4 << 20


def _read(path: Path) -> bytes:
    """Reads a list of chunks, which a Verifier wrote."""
    from weighbridge.core.bounded import read_file

    _require_file(path)
    return read_file(path, max_bytes=_MAX_FILE)


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise UsageError(f"{path} does not exist; give a file")
