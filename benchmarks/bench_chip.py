"""What a chip costs: digests, stalls, recording with interrupts, and tokens.

`python -m benchmarks.bench_chip [--rounds N] [--steps N] [--mebibytes N] [--kernels N] [--tokens N]` measures

- the throughput of storage digests on one core and on all, against the `blake3` package alone;
- the stall of a snapshot, from when kernels stop until they may run again, against the bytes in memory;
- a step of a training: alone, under a shim, recorded under it, with interrupts at 0.1 a chip-day and 1,000 times that;
- what a kernel costs more under a shim, beside a mode that only passes it on, and what its counters take alone;
- how many tokens a Verifier checks a second, and how many a chip signs.

Results go to benchmarks/results/chip.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import machine
from firmware_sim import ChipProcess, Shim, provision
from firmware_sim.device import boot
from firmware_sim.work_counter import WorkCounter
from prover import Recorder
from weighbridge.attest import tokens
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.treehash.tree import device_digest, storage_digest

KEY = bytes(range(32))
TURNS = 3
RATES = {"0.1 a day": 0.1, "100 a day": 100.0}
"""Interrupts per chip-day: the rate of Shavit's table 1, and 1,000 times that."""


def best(work: Callable[[], Any], rounds: int) -> float:
    """Returns the least of several times, in seconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def digests(mebibytes: int, rounds: int) -> dict[str, Any]:
    """Throughput over one storage, in GB/s (10^9 bytes)."""
    data = torch.from_numpy(np.random.default_rng(0).integers(0, 256, mebibytes << 20, dtype=np.uint8))
    view, storage = data.numpy().data, data.untyped_storage()
    seconds = {
        "package_one_core": best(lambda: blake3(view, key=KEY, max_threads=1).digest(), rounds),
        "package_all_cores": best(lambda: blake3(view, key=KEY, max_threads=blake3.AUTO).digest(), rounds),
        "ours_all_cores": best(lambda: storage_digest(storage, KEY), rounds),
    }
    rates = {name: data.numel() / each / 1e9 for name, each in seconds.items()}
    pieces = [part.clone() for part in data.view(-1, 1 << 20)]  # storages below the size from which threads are used
    one = best(lambda: [storage_digest(piece.untyped_storage(), KEY) for piece in pieces], rounds)
    package = best(lambda: [blake3(piece.numpy().data, key=KEY, max_threads=1).digest() for piece in pieces], rounds)
    rates |= {"package_one_core_by_mebibyte": data.numel() / package / 1e9}
    rates |= {"ours_one_core_by_mebibyte": data.numel() / one / 1e9}
    if torch.cuda.is_available():
        there = data.cuda()
        rates["ours_on_the_device"] = there.numel() / best(lambda: device_digest(there, KEY), rounds) / 1e9
    return {
        "mebibytes": mebibytes,
        "gigabytes_per_second": {name: round(rate, 3) for name, rate in rates.items()},
        "ours_over_package_all_cores": round(rates["ours_all_cores"] / rates["package_all_cores"], 3),
        "ours_over_package_one_core": round(
            rates["ours_one_core_by_mebibyte"] / rates["package_one_core_by_mebibyte"], 3
        ),
    }


class Chips:
    """Chips in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        manufacturer = CertificateAuthority.create("Manufacturer")
        manufacturer.save(directory / "manufacturer")
        CertificateAuthority.create("Station").issue_role("chip", "chip").save(directory / "credentials")
        self._count = 0

    def start(self, **options: Any) -> ChipProcess:
        """Returns a new chip, not started yet."""
        self._count += 1
        home = self._directory / f"chip{self._count}"
        manufacturer = self._directory / "manufacturer"
        return ChipProcess(home, self._directory / "credentials", manufacturer=manufacturer, **options)


def stalls(chips: Chips, rounds: int) -> list[dict[str, Any]]:
    """The stall of a snapshot for growing memory: how long the kernels stood, all in all."""
    rows = []
    with chips.start(allow_forced=True) as chip:
        for mebibytes in (1, 16, 64, 256):
            with Shim.connect(chip.socket) as shim:
                memory = [torch.zeros(1 << 18) for _ in range(mebibytes)]
                times = []
                for place in range(rounds):
                    shim.request_snapshot()
                    begin = time.perf_counter()
                    shim.safepoint(0, place, bytes(32), bytes(32), lambda: None)
                    times.append(1000 * (time.perf_counter() - begin))
                rows.append({
                    "mebibytes": len(memory), "median_ms": round(statistics.median(times), 2),
                    "min_ms": round(min(times), 2), "max_ms": round(max(times), 2),
                })  # fmt: skip
                del memory
    return rows


def _training() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 64))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


@contextmanager
def _way(chips: Chips, name: str, directory: Path) -> Iterator[Callable[[int], None]]:
    """Gives a function that makes one update in one of the ways."""
    with ExitStack() as stack:
        shim = recorder = None
        if name != "plain" and name != "recorded":
            rate = RATES.get(name.removeprefix("recorded, "), 0.0)
            chip = stack.enter_context(chips.start(rate_per_day=rate))
            shim = stack.enter_context(Shim.connect(chip.socket))
        if name.startswith("recorded"):
            recorder = stack.enter_context(
                Recorder(directory / name.replace(" ", "-"), seed=1, chip=shim, checkpoint_every=1000)
            )
            with recorder.initialisation():
                model, optimizer = _training()
            recorder.attach(model, optimizer)
        else:
            model, optimizer = _training()

        def update(number: int) -> None:
            x = torch.randn(32, 256, generator=torch.Generator().manual_seed(number))
            with recorder.step({"x": x}) if recorder is not None else ExitStack():
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

        yield update


def steps(chips: Chips, count: int, directory: Path) -> dict[str, Any]:
    """Milliseconds of an update in each way; the ways take turns, so that a busy machine is busy for all."""
    ways = ["plain", "under a shim", "recorded", "recorded, no interrupts", *(f"recorded, {rate}" for rate in RATES)]
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS):
        for name in ways:
            with _way(chips, name, directory / f"turn{turn}") as update:
                for number in range(count // TURNS + 2):
                    begin = time.perf_counter()
                    update(number)
                    if number >= 2:  # the first ones make the optimizer's state and compile
                        times[name].append(1000 * (time.perf_counter() - begin))
    medians = {name: statistics.median(each) for name, each in times.items()}
    base = medians["recorded, no interrupts"]
    return {
        "steps": count // TURNS * TURNS,
        "median_ms": {name: round(each, 2) for name, each in medians.items()},
        "min_ms": {name: round(min(each), 2) for name, each in times.items()},
        "over_recorded_without_interrupts": {
            rate: round(medians[f"recorded, {rate}"] / base, 4) for rate in RATES
        },
    }  # fmt: skip


class _PassingOn(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Does nothing but what every dispatch mode has to."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def kernels(chips: Chips, count: int) -> dict[str, dict[str, float]]:
    """Microseconds of a kernel too small to take any time itself, in each way; and of the counters, called alone."""
    x, w, out = torch.randn(4, 4), torch.randn(4, 4), torch.empty(4, 4)
    aten = torch.ops.aten
    calls: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "add": (aten.add.Tensor, (x, w)),
        "mm": (aten.mm.default, (x, w)),
        "addcdiv_": (aten.addcdiv_.default, (out, x, w)),
        "_softmax": (aten._softmax.default, (x, 1, False)),
        "native_layer_norm": (aten.native_layer_norm.default, (x, [4], None, None, 1e-5)),
    }
    found: dict[str, dict[str, float]] = {}
    counter = WorkCounter()
    with chips.start(rate_per_day=0.0) as chip:
        for name, (op, args) in calls.items():
            made = op(*args)
            ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
                "plain": (ExitStack, lambda op=op, args=args: op(*args)),  # type: ignore[misc]
                "a mode that passes on": (_PassingOn, lambda op=op, args=args: op(*args)),  # type: ignore[misc]
                "under a shim": (lambda: Shim.connect(chip.socket), lambda op=op, args=args: op(*args)),  # type: ignore[misc]
                "counters alone": (
                    ExitStack,
                    lambda op=op, args=args, made=made: counter.add(op, args, {}, made, 1, 192),
                ),  # type: ignore[misc]
            }
            times: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(4 * TURNS):
                for way, (around, call) in ways.items():
                    with around():
                        call()
                        begin = time.perf_counter()
                        for _ in range(count):
                            call()
                        times[way].append(1e6 * (time.perf_counter() - begin) / count)
            found[name] = {way: round(statistics.median(each), 2) for way, each in times.items()}
    return found


def overhead(stall_ms: float) -> dict[str, float]:
    """The share of a chip's time that snapshots take, by rate and stall alone: rates this low show in no step time."""
    return {name: rate * stall_ms / 86_400_000 for name, rate in RATES.items()}


def signatures(count: int, directory: Path) -> dict[str, Any]:
    """Tokens signed and verified a second, on one core."""
    authority = CertificateAuthority.create("Manufacturer")
    authority.save(directory / "signer")
    with Chips(directory / "signing").start(allow_forced=True) as chip, Shim.connect(chip.socket) as shim:
        begin = time.perf_counter()
        for number in range(count):
            shim.log_event(f"event {number}", bytes(32))
        logged = count / (time.perf_counter() - begin)
    device_home = directory / "device"
    provision(device_home, authority)
    device = boot(device_home)
    token = tokens.Token(
        kind="event", ueid=device.ueid, nonce=None, index=0, previous=tokens.GENESIS, boot_count=1,
        boot_seed=bytes(32), uptime_ms=0, time_ms=0, hwmodel=device.hwmodel,
        firmware_version=device.tcb.version, debug=False, body={"name": "event", "digest": bytes(32)},
    )  # fmt: skip
    data = tokens.sign(token, device.key, device.chain)
    begin = time.perf_counter()
    for _ in range(count):
        tokens.sign(token, device.key, device.chain)
    signed = count / (time.perf_counter() - begin)
    begin = time.perf_counter()
    for _ in range(count):
        tokens.verify(data, authority.certificate)
    verified = count / (time.perf_counter() - begin)
    return {
        "tokens": count,
        "signed_per_second": round(signed),
        "verified_per_second": round(verified),
        "logged_durably_per_second": round(logged),
    }


def main() -> None:
    """Measures everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="repetitions of each digest and stall")
    parser.add_argument("--steps", type=int, default=60, help="updates in each way")
    parser.add_argument("--mebibytes", type=int, default=512, help="size of what is hashed")
    parser.add_argument("--kernels", type=int, default=2000, help="kernels of each kind in each way and turn")
    parser.add_argument("--tokens", type=int, default=2000, help="tokens signed and verified")
    parser.add_argument("--dry", action="store_true", help="write no result file")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    result: dict[str, Any] = {**machine.about(), "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory(prefix="weighbridge-chip-") as directory:
        home = Path(directory)
        chips = Chips(home)
        result["digests"] = digests(options.mebibytes, options.rounds)
        print(result["digests"], flush=True)
        result["stalls"] = stalls(chips, options.rounds)
        print(result["stalls"], flush=True)
        result["steps"] = steps(chips, options.steps, home)
        result["overhead"] = overhead(result["stalls"][-1]["median_ms"])
        print(result["steps"], result["overhead"], flush=True)
        result["kernels"] = kernels(chips, options.kernels)
        print(result["kernels"], flush=True)
        result["tokens"] = signatures(options.tokens, home)
        print(result["tokens"], flush=True)
    if not options.dry:
        machine.save("chip", result)


if __name__ == "__main__":
    main()
