"""Processors that programs run on: this machine's own, and ARM processors that QEMU emulates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arm.setting_up import STUBS

SOURCE = Path(__file__).parents[2]
WORKER = "benchmarks.arm.worker"


@dataclass(frozen=True)
class Processor:
    """An ARM processor.

    Attributes:
        name: What QEMU calls it.
        says: What sets it apart.
    """

    name: str
    says: str


PROCESSORS = {
    each.name: each
    for each in (
        Processor("cortex-a72", "Armv8.0, no SVE, no bfloat16"),
        Processor("neoverse-v1", "Armv8.4, SVE of 256 bits, bfloat16"),
        Processor("a64fx", "Armv8.2, SVE of 512 bits, no bfloat16"),
    )
}

_LOOPS = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+neon"}
"""What the project's own loops are compiled for: what all processors have, so once for all of them."""

_BEGINS = r"\x7fELF\x02\x01\x01" + 9 * r"\x00" + r"\x02\x00\xb7\x00"
_MASK = 7 * r"\xff" + r"\x00" + 8 * r"\xff" + r"\xfe\xff\xff\xff"
"""How programs for 64-bit ARM begin, and which bits of that count."""

_ENTER = r"""
mount -t tmpfs tmpfs /mnt; mkdir /mnt/binfmt; mount -t binfmt_misc binfmt_misc /mnt/binfmt
printf '%s' "$ARM_FORMAT" > /mnt/binfmt/register
R=$ARM_HOME/root
mount --rbind /dev $R/dev; mount -t proc proc $R/proc; mount --rbind /sys $R/sys
mount --bind $ARM_HOME/site $R/site; mount --bind $ARM_SOURCE $R/src; mount --bind $ARM_RUNS $R/runs
mount --bind $ARM_HOME/cache $R/cache; mount -t tmpfs tmpfs $R/tmp
exec env -i "$@"
"""
"""Registers the emulator and mounts what is needed, in namespaces that end with the process.

Registrations of other programs for the kernel are private to a user namespace since Linux 6.7.
"""


def _emulated(processor: str, home: Path, runs: Path, arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    variables = {
        "PATH": "/usr/bin:/bin", "HOME": "/cache", "LANG": "C.UTF-8", "LD_LIBRARY_PATH": f"/site/{STUBS}",
        "PYTHONPATH": "/src:/src/tests:/site", "PYTHONDONTWRITEBYTECODE": "1", "NUMBA_CACHE_DIR": "/cache/numba",
        "OMP_NUM_THREADS": "1", "QEMU_CPU": processor, **_LOOPS,
    }  # fmt: skip
    command = [
        "unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", _ENTER, "sh",
        *(f"{name}={value}" for name, value in variables.items()),
        "/usr/sbin/chroot", str(home / "root"), "/usr/bin/python3.11", "-W", "ignore", *arguments,
    ]  # fmt: skip
    places = {
        "ARM_HOME": str(home), "ARM_SOURCE": str(SOURCE), "ARM_RUNS": str(runs),
        "ARM_FORMAT": f":arm64:M::{_BEGINS}:{_MASK}:{home}/qemu/usr/bin/qemu-aarch64:FP",
    }  # fmt: skip
    return command, {**os.environ, **places}


class Machine:
    """A process that records and replays what it is told to, on one processor."""

    def __init__(self, processor: str | None, home: Path, runs: Path) -> None:
        """Starts the process.

        Args:
            processor: One of `PROCESSORS`, or None for this machine's own.
            home: What `setting_up.ready` returned.
            runs: Directory of all transcripts, which both sides see.
        """
        self.name = processor or "here"
        self._runs, self._inside = runs, Path("/runs") if processor else runs
        self._log = home / f"{self.name}.log"
        if processor is None:
            command = [sys.executable, "-W", "ignore", "-m", WORKER]
            path = f"{SOURCE / 'tests'}{os.pathsep}{SOURCE}"
            environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        else:
            command, environment = _emulated(processor, home, runs, ["-m", WORKER])
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
                cwd=SOURCE,
            )  # fmt: skip

    def ask(self, what: str, run: str = "", **further: Any) -> dict[str, Any]:
        """Has the process do something and waits for it.

        Args:
            what: A request of the worker.
            run: The transcript it is about, below the directory of all.
            **further: More of the request.

        Returns:
            The answer, with the `seconds` that it took.

        Raises:
            RuntimeError: The process failed; the message says where its own words are.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        begin = time.perf_counter()
        self._process.stdin.write(json.dumps({"do": what, "path": str(self._inside / run), **further}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"the process on {self.name} ended while it did {what!r}; {self._log} has its last words"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.name} could not do {what!r}: {answer['error']}")
        return {**answer, "seconds": round(time.perf_counter() - begin, 1)}

    def stop(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
