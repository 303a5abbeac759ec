"""Which number a generator has in a step, whatever Python object stands for it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from prover.capture.generators import Generators, address_of


class Passed(TorchDispatchMode):
    """Keeps the object that an operation is given for a generator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = kwargs["generator"]
        return func(*args, **kwargs)


def passed(generator: torch.Generator) -> torch.Generator:
    with Passed() as mode:
        torch.rand(1, generator=generator)
    found: torch.Generator = mode.found
    return found


def test_a_generator_has_one_number_in_a_step() -> None:
    generators, one, other = Generators(), torch.Generator(), torch.Generator()
    generators.begin()
    assert generators.number(passed(torch.default_generator)) == 0
    assert generators.number(torch.default_generator) == 0
    assert [generators.number(each) for each in (other, passed(one), one, passed(other))] == [2, 3, 3, 2]
    assert [address_of(each) for each in generators.own()] == [address_of(other), address_of(one)]
    generators.begin()
    assert generators.number(one) == 2
