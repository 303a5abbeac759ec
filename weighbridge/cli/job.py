"""`weighbridge job ...`: what a job on several ranks is, cells of it, and chunks of its collectives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli._exits import print_found, print_json
from weighbridge.cli._inputs import Json
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from weighbridge.execution.collective_openings import Commitments

app = typer.Typer(help="Jobs on several ranks: show one, replay a cell, check its collectives.", no_args_is_help=True)

_Job = Annotated[Path, typer.Argument(help="Directory of the job.")]
_Rank = Annotated[int, typer.Option(help="The cell's rank.")]
_Steps = Annotated[str | None, typer.Option(help="The cell's steps A to B-1, as A:B; all by default.")]
_Out = Annotated[Path, typer.Option(help="File to write.")]
_Device = Annotated[str, typer.Option(help="Device to execute on: cpu, cuda, cuda:1.")]


def _cell(commitments: Commitments, rank: int, steps: str | None) -> tuple[int, int]:
    from weighbridge.cli.replay import parse_steps

    count = commitments.transcript(rank).steps
    return (0, count) if steps is None else parse_steps(steps, count)


@app.command("show")
def show(job: _Job, as_json: Json = False) -> None:
    """Verify all transcripts of a job and say which ranks it has and what they exchange."""
    from collections import Counter

    from weighbridge.execution.collective_openings import Commitments

    commitments = Commitments(job)
    rows: list[dict[str, Any]] = []
    for rank in range(commitments.record.ranks):
        transcript = commitments.transcript(rank)
        names = Counter(c.call.name for step in range(transcript.steps) for c in commitments.step(rank, step).values())
        shards = sum(s.sizes != s.shape for s in transcript.layout())
        facts = {"rank": rank, "transcript": transcript.digest, "steps": transcript.steps, "shards": shards}
        rows.append({**facts, "collectives": dict(sorted(names.items()))})
    mesh = {name: size for name, size in commitments.record.mesh}
    if as_json:
        print_json({"job": commitments.record.id.hex(), "mesh": mesh, "ranks": rows})
        return
    print(f"job {commitments.record.id.hex()}  " + "  ".join(f"{name} {size}" for name, size in mesh.items()))
    for row in rows:
        collectives = ", ".join(f"{count} {name}" for name, count in row["collectives"].items()) or "none"
        print(f"rank {row['rank']}: {row['steps']} steps, {row['shards']} sharded tensors; collectives: {collectives}")


@app.command("results")
def results(job: _Job, out: _Out, rank: _Rank = 0, steps: _Steps = None, device: _Device = "cpu") -> None:
    """For the Prover: replay the job and write the results of a cell's collectives, for a replay of the cell."""
    from prover.keeping.collective_replay import cell_results
    from weighbridge.cli.replay import require_device
    from weighbridge.execution.collective_openings import Commitments

    require_device(device)
    cell_results(job, rank, _cell(Commitments(job), rank, steps), out, device=device)


@app.command("challenge")
def challenge(
    job: _Job,
    out: _Out,
    rank: _Rank = 0,
    steps: _Steps = None,
    chunks: Annotated[int, typer.Option(help="How many chunks to choose.", min=1, max=65536)] = 100,
) -> None:
    """For the Verifier: choose random chunks of the results of a cell's collectives."""
    from weighbridge.execution.collective_openings import Commitments, choose, encode_targets

    commitments = Commitments(job)
    targets = list(commitments.targets(rank, _cell(commitments, rank, steps)))
    out.write_bytes(encode_targets(choose(targets, chunks)))
    print(f"{min(chunks, len(targets))} of {len(targets)} chunks, drawn with replacement")


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
    from weighbridge.execution.collective_openings import Commitments, decode, decode_targets, verify

    commitments, targets = Commitments(job), decode_targets(_read(chosen))
    findings = verify(commitments, rank, targets, decode(_read(opened)))
    if targets:
        findings += commitments.equal_results(rank, (min(t.step for t in targets), max(t.step for t in targets) + 1))
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
    from weighbridge.execution.collective_openings import Commitments
    from weighbridge.transcript import layout as layouts
    from weighbridge.transcript.reader import Transcript

    commitments, unsharded = Commitments(job), Transcript.open(run)
    ranks = [commitments.transcript(rank) for rank in range(commitments.record.ranks)]
    common = sorted(set.intersection(*(set(each.checkpoint_steps) for each in (unsharded, *ranks))))
    if step not in common:
        raise UsageError(f"not all of them have a checkpoint before step {step}; they share those before {common[:20]}")
    whole, findings, shards = unsharded.tensors(step), [], 0
    for rank, transcript in enumerate(ranks):
        held = transcript.tensors(step)
        wanted = [shard for shard in transcript.layout() if shard.name in held or shard.name in whole]
        shards += len(wanted)
        findings += [replace(f, subject=f"rank {rank}: {f.subject}") for f in layouts.check(wanted, held, whole)]
    lines = [f"{shards} shards compared, {len(findings)} findings"]
    return print_found({"shards": shards}, lines, findings, as_json=as_json)


_MAX_FILE = 4 << 30


def _read(path: Path) -> bytes:
    """Reads what the other party sent: a regular file, as large as the chunks of a large job may be."""
    from weighbridge.core.bounded import read_file

    if not path.is_file():
        raise UsageError(f"{path} does not exist; give a file")
    return read_file(path, max_bytes=_MAX_FILE)
