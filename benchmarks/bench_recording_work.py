"""What recording itself makes a chip do: FLOPs beside those of the tapes, for each result in 16 bits.

`python -m benchmarks.bench_recording_work [--steps N]` records models in every arithmetic and counts as a chip does. In
32 bits the Recorder's arithmetic is in compiled loops, which a chip's shim does not see, so the tapes have more. The
allowance that follows is `verifier.model.policies.SnapshotPolicy.recording_flops`. Results go to
benchmarks/results/recording_work.json.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import honest_job, machine
from firmware_sim.work_counter import Kernel, WorkCounter, in_force, kernel_of
from prover import Recorder
from weighbridge.numerics.schemas import Op
from weighbridge.program.flops import flops, narrow
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

MODELS = ("tiny", "perceptron", "mlp-2m", "gpt2-2m", "resnet", "lstm", "llama")
ARITHMETIC = (("float32", "strict"), ("float32", "calibrated"), ("autocast", "calibrated"), ("bfloat16", "calibrated"))


class _Counted(TorchDispatchMode):
    """Counts as the firmware's shim does, without a chip."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = WorkCounter()

    def __torch_dispatch__(
        self, func: Op, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if kernel_of(func) is Kernel.COMPOSITE:
            with in_force(self):
                return func.decompose(*args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        self.work.add(func, args, kwargs or {}, out, 0, 0)
        return out


def measured(model: str, precision: str, policy: str, steps: int) -> dict[str, Any]:
    """Records a model and compares what was counted with its tapes."""
    with tempfile.TemporaryDirectory(prefix="weighbridge-work-") as directory:
        run = Path(directory) / "run"
        step = honest_job.made(model, precision)
        described = honest_job.described(step.optimizer)
        with _Counted() as counted, Recorder(run, seed=1, policy=policy, formulas=described) as recorder:
            recorder.attach(*step.attached)
            for update in range(steps):
                batch = step.batch(update)
                with recorder.step(batch):
                    step.update(batch)
        transcript = Transcript.open(run)
        known: dict[bytes, tuple[int, int]] = {}
        tape_flops, elements = 0, 0
        for record in transcript.records():
            if record.tape not in known:
                tape = Tape.decode(transcript.tape(record.tape))
                counts = flops(tape)
                known[record.tape] = sum(counts), sum(narrow(tape, counts))
            tape_flops += known[record.tape][0]
            elements += known[record.tape][1]
    beside = counted.work.total.flops - tape_flops
    return {
        "model": model, "precision": precision, "policy": policy, "chip_flops": counted.work.total.flops,
        "tape_flops": tape_flops, "narrow": elements, "for_each": round(beside / elements, 1) if elements else None,
    }  # fmt: skip


def main() -> int:
    """Measures all models; returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for model in MODELS:
        for precision, policy in ARITHMETIC:
            rows.append(measured(model, precision, policy, options.steps))
            print(rows[-1], flush=True)
    machine.save("recording_work", {**machine.about(), "steps": options.steps, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
