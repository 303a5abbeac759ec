"""Where a step takes the generators that its function can reach: PyTorch's default one, and those of the program.

A program draws from the generator that is now where the function would find it, and each draw is as far from the first
one as the tape says. That is what the function does only if it goes on from where a generator is. One that seeds a
generator, or puts it somewhere else, shows that: its draws begin elsewhere, or not where the last one ended, or it ends
elsewhere than they do. What it does to a generator by a fixed number cannot be told from going on as long as each call
begins at one place; so calls that all began there are known there only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from prover.capture.generators import FIRST_OWN, address_of, counter_of
from weighbridge.program.start_rules import WORD
from weighbridge.transcript.tape import Tape

Generator = torch.Generator


@dataclass(frozen=True, slots=True)
class Drawn:
    """One generator of a tape.

    Attributes:
        number: Its number there.
        which: Which of the reached generators it is; None if it is none of them.
        lead: How far it was from its place before the step at its first draw.
        goes_on: Whether each draw began where the one before it ended, and the generator ended where the last one did.
    """

    number: int
    which: int | None
    lead: int
    goes_on: bool


@dataclass(frozen=True, slots=True)
class Moves:
    """What one recorded step did to the generators that its function reaches.

    Attributes:
        starts: Where they were before it, the default one first.
        moved: How far it moved each.
        drawn: Those that its tape draws from.
    """

    starts: tuple[int, ...]
    moved: tuple[int, ...]
    drawn: tuple[Drawn, ...]

    @classmethod
    def of(
        cls, starts: Sequence[int], reached: Sequence[Generator], own: Sequence[Generator],
        rng: Mapping[int, tuple[int, int]], tape: Tape,
    ) -> Moves:  # fmt: skip
        """Looks where generators are after a step.

        Args:
            starts: Where those that are reached were before it.
            reached: They, the default one first.
            own: The program's own that were drawn from, in the order of their numbers.
            rng: Counters of its draws by number, as the record has them.
            tape: Its tape.
        """
        ends, drawn = places(reached), []
        for number, (first, after) in rng.items():
            source = address_of(torch.default_generator if number == 0 else own[number - FIRST_OWN])
            which = next((at for at, each in enumerate(reached) if address_of(each) == source), None)
            if which is None:
                drawn.append(Drawn(number, None, 0, goes_on=False))
                continue
            offsets = [node.draw[1] for node in tape.nodes if node.draw is not None and node.draw[0] == number]
            goes_on = offsets == list(range(len(offsets))) and ends[which] == after
            drawn.append(Drawn(number, which, (first - starts[which]) % WORD, goes_on))
        moved = tuple([(end - start) % WORD for start, end in zip(starts, ends, strict=True)])
        return cls(tuple(starts), moved, tuple(drawn))

    def same(self, other: Moves) -> bool:
        """Whether two steps did the same."""
        return (self.moved, self.drawn) == (other.moved, other.drawn)

    def refusal(self) -> str | None:
        """Returns why no program can do the same, if none can."""
        if any(each.which is None for each in self.drawn):
            return (
                "it draws from a generator that nothing leads to that is looked at, such as one that it makes; keep it "
                "in an attribute or a variable, or pass it"
            )
        drawn = {each.which for each in self.drawn}
        still = all(at in drawn or not moved for at, moved in enumerate(self.moved))
        if still and all(not each.lead and (each.goes_on or not each.number) for each in self.drawn):
            return None  # recomputation repeats draws of the default one, as the tape says
        return "it seeds a generator or sets its state; do that outside"

    def sources(self, reached: Sequence[Generator]) -> dict[int, Generator]:
        """Returns which generators the tape draws from, by number, in a step that reaches these."""
        return {each.number: reached[each.which] for each in self.drawn if each.which is not None}

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Leaves the default generator, after the context, where the step does; others are there after their draws."""
        source = torch.default_generator
        if not any(each.number == 0 for each in self.drawn):
            yield
        elif self.moved[0]:
            end = (counter_of(source) + self.moved[0]) % WORD
            yield
            source.manual_seed(end)
        else:  # it is put back, with what moved it outside of steps, where no counter goes on
            state = source.get_state()
            yield
            source.set_state(state)


def places(generators: Sequence[Generator]) -> tuple[int, ...]:
    """Returns where generators are."""
    return tuple([counter_of(each) for each in generators])
