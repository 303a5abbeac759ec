"""What collectives of a recorded job cost: bytes that a rank sends and receives, and time, against the number of ranks.

`python -m benchmarks.bench_collectives [--ranks 2 4 8]` starts one process a rank, over gloo and the loopback interface
of this machine, and takes the ways in turn, so that all meet the same state of the machine:

- *gathered*: every rank gathers what all ranks contribute to a sum, and combines it. That is what the exchange did at
  first, and what it still does for small tensors, there with one message from each rank to each;
- *shares*: every rank combines its share of the elements and gives the result away, as the exchange does now;
- *PyTorch's own*: the same collective of the library, whose sums depend on its algorithm.

Bytes are what a rank hands to its process group, and, in brackets in the table, what the kernel counted at its TCP
sockets, headers of gloo included. Steps are those of a perceptron with 1.3 million weights under DDP and of the recipe
`gpt2_fsdp`, recorded both ways; the records must be the same, and the job must replay. On a machine with fewer cores
than ranks, times say what all ranks together compute and copy. Results go to benchmarks/results/collectives.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import collective_steps, machine
from benchmarks.traffic import CountedGroup, over_sockets
from prover.ranks.exchange import Exchange

Tensor = torch.Tensor

DATA = 1 << 20
"""Elements of a collective: what is reduced, what is scattered, what is gathered."""
ROUNDS, MANY = 5, 20
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SIZES = (4, 4096, 1 << 14, 1 << 16, 1 << 17, 1 << 18, 1 << 20)
"""Bytes of all-reduces whose time shows up to what size one message is cheaper than two."""


class Whole(Exchange):
    """An exchange that combines everything whole."""

    _combined_whole = 1 << 62


class Shares(Exchange):
    """An exchange that divides everything."""

    _combined_whole = 0


class Gathered(collective_steps.Gathering, Exchange):
    """The exchange as it was."""


def operands(name: str, dtype: torch.dtype, ranks: int) -> tuple[list[Tensor], list[Tensor]]:
    """Returns what a rank gets and contributes."""
    whole = torch.randn(DATA, generator=torch.Generator().manual_seed(dist.get_rank())).to(dtype)
    parts = list(torch.split(whole, DATA // ranks))
    match name:
        case "all_reduce":
            return [torch.empty_like(whole)], [whole]
        case "reduce_scatter":
            return [torch.empty_like(parts[0])], parts
        case _:
            return [torch.empty_like(part) for part in parts], parts[:1]


def own(name: str, outs: list[Tensor], ins: list[Tensor]) -> None:
    """Does a collective as PyTorch does it."""
    match name:
        case "all_reduce":
            outs[0].copy_(ins[0])
            dist.all_reduce(outs[0])
        case "reduce_scatter":
            dist.reduce_scatter(outs[0], ins)
        case _:
            dist.all_gather(outs, ins[0])


def measured(work: Callable[[Any], None]) -> dict[str, float]:
    """Does work with a counted group, between barriers; returns bytes and milliseconds."""
    group = CountedGroup(dist.group.WORLD)
    dist.barrier()
    time.sleep(0.02)  # until the last bytes of the barrier are counted
    before, begin = over_sockets(), time.perf_counter()
    work(group)
    after = over_sockets()
    dist.barrier()
    found = {"ms": 1000 * (time.perf_counter() - begin), "sent": group.sent, "received": group.received}
    return {**found, "socket_sent": after[0] - before[0], "socket_received": after[1] - before[1]}


def middle(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Returns the medians."""
    return {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}


def collectives(ranks: int) -> list[dict[str, Any]]:
    """Measures each collective in each way."""
    return [
        collective(name, dtype, ranks) for name in ("all_reduce", "reduce_scatter", "all_gather") for dtype in DTYPES
    ]


def collective(name: str, dtype: str, ranks: int) -> dict[str, Any]:
    """Measures one collective in each way, in turn."""
    host, reduction = torch.device("cpu"), "" if name == "all_gather" else "sum"
    exchanges = {"gathered": Gathered(None, host), "shares": Exchange(None, host)}
    outs, ins = operands(name, DTYPES[dtype], ranks)
    rounds: dict[str, list[dict[str, float]]] = {way: [] for way in (*exchanges, "own")}
    results: dict[str, Tensor] = {}
    for _ in range(ROUNDS):
        for way, exchange in exchanges.items():

            def one(group: Any, exchange: Exchange = exchange) -> None:
                exchange.exchange(group, name, outs, ins, reduction, 0, 0)

            rounds[way].append(measured(one))
            results[way] = torch.cat(outs).view(torch.uint8)
        rounds["own"].append(measured(lambda _: own(name, outs, ins)))
    return {
        "name": name, "dtype": dtype, "bytes": DATA * DTYPES[dtype].itemsize,
        "same_results": torch.equal(results["gathered"], results["shares"]),
        "ways": {way: middle(each) for way, each in rounds.items()},
    }  # fmt: skip


def messages() -> list[dict[str, Any]]:
    """Times all-reduces of small tensors."""
    host = torch.device("cpu")
    ways: Mapping[str, Exchange] = {
        "gathered": Gathered(None, host), "whole": Whole(None, host), "shares": Shares(None, host)
    }  # fmt: skip
    found = []
    for size in SIZES:
        outs, ins = [torch.empty(size // 4)], [torch.randn(size // 4)]
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(MANY if size < 1 << 18 else ROUNDS):
            for way, exchange in ways.items():
                dist.barrier()
                begin = time.perf_counter()
                exchange.exchange(dist.group.WORLD, "all_reduce", outs, ins, "sum", 0, 0)
                dist.barrier()
                times[way].append(1000 * (time.perf_counter() - begin))
        found.append({"bytes": size, "ms": {way: round(statistics.median(each), 3) for way, each in times.items()}})
    return found


def rank_process(rank: int, ranks: int, out: Path) -> None:
    """Measures as one rank, and writes what it found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=ranks)
    found = {"collectives": collectives(ranks), "messages": messages(), "steps": collective_steps.steps(out, measured)}
    (out / f"rank-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # the library's threads may abort an interpreter that ends


def most(of_ranks: list[dict[str, float]]) -> dict[str, float]:
    """Returns the most that any rank sent, received and waited for."""
    return {key: round(max(each[key] for each in of_ranks), 2) for key in of_ranks[0]}


def measure(ranks: int, directory: Path) -> dict[str, Any]:
    """Measures with so many ranks."""
    directory.mkdir()
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.bench_collectives", "--out", str(directory)]
    processes = [
        subprocess.Popen([*command, "--of", str(ranks), "--rank", str(rank)]) for rank in range(ranks)
    ]  # fmt: skip
    if any([process.wait() for process in processes]):
        raise RuntimeError("a rank failed")
    found = [json.loads((directory / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    for part in ("collectives", "steps"):
        for number, row in enumerate(found[0][part]):
            others = [each[part][number] for each in found]
            row["ways"] = {way: most([other["ways"][way] for other in others]) for way in row["ways"]}
            if part == "collectives":
                row["same_results"] = all(other["same_results"] for other in others)
            else:
                row |= collective_steps.compared(directory, row["recipe"], row["dtype"])
    return {"ranks": ranks, **found[0]}


def main() -> int:
    """Measures; returns 1 if results or records differ between the ways, or a job does not replay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.rank is not None:
        rank_process(arguments.rank, arguments.of, arguments.out)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="weighbridge-bench-") as directory:
        found = {
            **machine.about(),
            "cores_used": len(os.sched_getaffinity(0)),
            "jobs": [measure(ranks, Path(directory) / str(ranks)) for ranks in arguments.ranks],
        }
    print(json.dumps(found, indent=1))
    if arguments.ranks == [2, 4, 8]:
        machine.save("collectives", found)
    return int(any(
        not all(row["same_results"] for row in job["collectives"])
        or any(not row["same_records"] or row["verdict"] != "match" for row in job["steps"])
        for job in found["jobs"]
    ))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
