"""The evaluation context of a recorded step: it logs contested roundings and draws from the run's seed.

With logs on demand it looks for no contested roundings, and takes the digest of all rounded outputs instead. With
sketches it takes that digest too, makes a sketch of each 16-bit output, and logs contested roundings to 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from prover.capture.generators import Generators, counter_of
from weighbridge.numerics.conformance.bound_policy import STRICT, Policy
from weighbridge.numerics.context import Context
from weighbridge.numerics.random.variates import Draw
from weighbridge.numerics.rounding import contested, formats, narrow
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.outputs_digest import OutputsDigest
from weighbridge.numerics.rounding.rounding_log import LogWriter
from weighbridge.numerics.sketches.candidates import ordered
from weighbridge.numerics.sketches.step_sketches import SketchWriter
from weighbridge.transcript.log_kinds import ON_DEMAND, SKETCH, LogKind

Tensor = torch.Tensor


class Recording(Context):
    """The context of a recorded step: logs contested roundings, checksums, host values and draws.

    Attributes:
        outputs: What the rounded outputs are hashed into, if logs are made on demand or sketched.
        sketches: Makes the sketches, if there are any.
    """

    def __init__(
        self,
        seed: int,
        generators: Generators,
        policy: Policy = STRICT,
        stream: int = 0,
        *,
        logs: LogKind = "full",
    ) -> None:
        self.bounded, self.bounds_halves = logs != ON_DEMAND, logs == "full"
        self.outputs = None if logs == "full" else OutputsDigest()
        self.sketches = SketchWriter() if logs == SKETCH else None
        self.policy = policy
        self.op = 0
        self.checksums: list[int] = []
        self.log = LogWriter()
        self.hosts: list[bool | int | float] = []
        self.given: list[bool | int | float] | None = None
        """The step's values as they were recorded, if it was recorded before."""
        self.rng: dict[int, tuple[int, int]] = {}
        self.draw_key: tuple[int, int] | None = None
        self.rounded_elements = 0
        self.collectives: list[tuple[int, bytes, bytes]] = []
        self.asked: Callable[[], None] | None = None
        """Called when a number is given to Python."""
        self._output = 0
        self._seed, self._stream, self._generators = seed, stream, generators
        generators.begin()

    def begin(self, op: int) -> None:
        """Starts operation number `op`."""
        self.op, self._output, self.draw_key = op, 0, None

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """See `Context.rounded`."""
        small = dtype in formats.NARROW
        if self.outputs is not None and (small or self.sketches is None):
            out, checksum = narrow.round_plain(wide, dtype) if small else contested.round_plain(wide)
            if self.sketches is not None:
                self.sketches.add(ordered(out))
            self._took(out, checksum)
            return out
        if small:
            result = narrow.record(wide, bound, dtype, self.op, self._output)
        else:
            result = contested.record(wide, bound, self.op, self._output)
        self._took(result.out, result.checksum)
        if result.entries is not None:
            self.log.add(result.entries)
        return result.out

    def _took(self, out: Tensor, checksum: int) -> None:
        if self.outputs is not None:
            self.outputs.add(self.op, self._output, out)
        self._output += 1
        self.rounded_elements += out.numel()
        self.checksums.append(checksum)

    def rounding(self) -> bytes:
        """Returns what the step's record names: the encoded log, after sketches if there are any."""
        log = self.log.finish()
        return log if self.sketches is None else self.sketches.finish(log)

    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        """See `Context.exact`."""
        if checksum is None:
            checksum = (narrow if bits.dtype in formats.NARROW else contested).canonicalise(bits)
        self.checksums.append(checksum)

    def draw(self, generator: torch.Generator | None, device: torch.device) -> Draw:
        """See `Context.draw`."""
        source = self._generators.resolve(generator, device)
        number = self._generators.number(source)
        counter = counter_of(source)
        first = self.rng.setdefault(number, (counter, counter))[0]
        after = (counter + 1) & 0xFFFFFFFFFFFFFFFF
        source.manual_seed(after)
        self._generators.drawn(source)
        self.rng[number] = (first, after)
        # A program may seed a generator anew within a step, so the way from the first draw's counter may be any.
        self.draw_key = (number, (counter - first + (1 << 63)) % (1 << 64) - (1 << 63))
        return Draw(self._seed, self._stream + (number << 12), counter)

    def host(self, value: bool | int | float) -> bool | int | float:
        """See `Context.host`."""
        if self.asked is not None:
            self.asked()
        self.hosts.append(value)
        return value
