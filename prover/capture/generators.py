"""The torch generators of a recorded program: their numbers within a step, and their counters after a crash."""

from __future__ import annotations

from collections.abc import Sequence

import torch

FIRST_OWN = 2
"""The number of the first generator of the program's own that draws in a step."""


class Generators:
    """Numbers the torch generators of a step and keeps their counters in their seeds.

    A generator's seed is part of its state, so saving and restoring a state, forking it and recomputation under
    activation checkpointing carry the counter along.
    """

    def __init__(self) -> None:
        self._used: list[torch.Generator] = []
        self._followed: dict[int, tuple[int, int]] = {}
        self._seen: set[int] = set()
        self._again: set[int] = set()
        self._restored: dict[int, int] = {}

    def begin(self) -> None:
        """Begins a step: numbers go by first use in it, as a program may make generators anew in each."""
        self._used.clear()

    def resolve(self, generator: torch.Generator | None, device: torch.device) -> torch.Generator:
        """Returns the generator that an operation would use."""
        if generator is not None:
            return generator
        if device.type == "cuda":
            index: int | None = device.index
            index = torch.cuda.current_device() if index is None else index
            return torch.cuda.default_generators[index]
        return torch.default_generator

    def number(self, generator: torch.Generator) -> int:
        """Returns the number: 0 for the CPU default, 1 for CUDA defaults, then in order of first use in the step."""
        address = address_of(generator)
        if address == address_of(torch.default_generator):
            return 0
        if str(generator.device).startswith("cuda") and address in map(address_of, torch.cuda.default_generators):
            return 1
        for i, used in enumerate(self._used):
            if address_of(used) == address:
                return i + FIRST_OWN
        self._used.append(generator)
        self._meet(generator)
        return len(self._used) - 1 + FIRST_OWN

    def own(self) -> list[torch.Generator]:
        """Returns the program's own that the last step drew from, in the order of their numbers."""
        return list(self._used)

    def _meet(self, generator: torch.Generator) -> None:
        """Finds out whether one of the program's own generators continues or begins with its seed."""
        seed = counter_of(generator)
        if self._followed.get(address_of(generator), (0, -1))[1] == seed:
            return
        if seed in self._restored:  # made before the crash too, and drawn from since
            generator.manual_seed(self._restored.pop(seed))
        elif seed in self._seen:
            self._again.add(seed)  # a program that resumes does this by itself
        self._seen.add(seed)
        self._followed[address_of(generator)] = seed, seed

    def drawn(self, generator: torch.Generator) -> None:
        """Notes that a generator has been drawn from."""
        if address_of(generator) in self._followed:
            self._followed[address_of(generator)] = self._followed[address_of(generator)][0], counter_of(generator)

    def counters(self) -> list[tuple[int, int, int]]:
        """Returns (number, seed at its first use, present counter) of the defaults and, as 2, of the program's own.

        The default's is not always that after its last draw: activation checkpointing may have recomputed that one.
        """
        found = [(0, 0, counter_of(torch.default_generator))]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            found.append((1, 0, counter_of(torch.cuda.default_generators[torch.cuda.current_device()])))
        return found + [(2, first, now) for first, now in self._followed.values() if first not in self._again]

    def restore(self, counters: Sequence[tuple[int, int, int]]) -> None:
        """Sets the counters of the defaults; of the program's own, when it uses one with the same seed first.

        Args:
            counters: What `counters` returned.
        """
        for number, first, counter in counters:
            if number == 0:
                torch.default_generator.manual_seed(counter)
            elif number == 1:
                for generator in torch.cuda.default_generators:
                    generator.manual_seed(counter)
            else:
                self._restored[first] = counter


def counter_of(generator: torch.Generator) -> int:
    """Returns a generator's counter, which it keeps in its seed."""
    return generator.initial_seed() & 0xFFFFFFFFFFFFFFFF


def address_of(generator: torch.Generator) -> int:
    """Identifies a generator while it lives, whatever Python object stands for it: an operation is given another."""
    return int(generator._cdata)  # type: ignore[attr-defined]
