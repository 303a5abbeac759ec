"""Finds what a program trains: optimizers, the modules that hold their parameters, and other modules that it made."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from prover.capture.attached_objects import local_part
from prover.capture.derived_formulas import innermost
from prover.capture.live_objects import of_types

_CONSTANTS = 1 << 20
"""Most bytes of what a module without parameters holds that counts as constants of the program."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a program has made.

    Attributes:
        trained: Modules with parameters of an optimizer, that are part of no other module.
        others: Other such modules whose tensors the program made or used: averages of weights, teachers.
        optimizers: The optimizers.
        tensors_by_name: Parameters of an optimizer that belong to no module.
    """

    trained: list[nn.Module]
    others: list[nn.Module]
    optimizers: list[Optimizer]
    tensors_by_name: dict[str, Tensor]

    @property
    def objects(self) -> list[Any]:
        """Modules and optimizers, as `Recorder.attach` takes them."""
        return [*self.trained, *self.others, *self.optimizers]

    def tensors(self) -> list[Tensor]:
        """Returns their tensors: parameters, buffers, what optimizers hold; of a sharded one, the part of this rank."""
        found: list[Tensor] = list(self.tensors_by_name.values())
        for module in (*self.trained, *self.others):
            found += [*module.parameters(), *module.buffers()]
        for optimizer in self.optimizers:
            found += [t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
        return [local_part(t) for t in found]


def found_objects(knows: Callable[[int], bool], updated: Sequence[Tensor] = ()) -> Found:
    """Looks through the program's objects.

    Args:
        knows: Whether a storage (by address) was made or used by the program since it is followed.
        updated: Parameters that the program updates without an optimizer.
    """
    gc.collect()  # what is garbage is no object of the program any more
    optimizers = [each for each in of_types(lambda kind: issubclass(kind, Optimizer)) if innermost(each) is each]
    wanted = {id(p): p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    wanted |= {id(p): p for p in updated}
    modules = [each for each in of_types(lambda kind: issubclass(kind, nn.Module)) if "_parameters" in vars(each)]
    parts = {id(child) for module in modules for child in module.children()}
    roots = [module for module in modules if id(module) not in parts]
    trained = [module for module in roots if any(id(p) in wanted for p in module.parameters())]
    chosen = {id(module) for module in trained}
    others = [
        m
        for m in roots
        if id(m) not in chosen and (_is_criterion(m) or any(_known(t, knows) for t in (*m.parameters(), *m.buffers())))
    ]
    held = {id(p) for module in trained for p in module.parameters()}
    loose = [p for key, p in wanted.items() if key not in held]
    return Found(trained, others, optimizers, {f"parameter{number or ''}": p for number, p in enumerate(loose)})


def _is_criterion(module: nn.Module) -> bool:
    """True for a module with a few constants and no parameters, as a loss with weights for its classes is."""
    buffers = list(module.buffers())
    plain = all(type(t) in (Tensor, nn.Buffer) and t.device.type != "meta" for t in buffers)
    return bool(buffers) and plain and not any(True for _ in module.parameters()) and _size(buffers) <= _CONSTANTS


def _size(tensors: list[Tensor]) -> int:
    return sum(t.untyped_storage().nbytes() for t in tensors)


def _known(t: Tensor, knows: Callable[[int], bool]) -> bool:
    return (
        t.device.type != "meta" and type(t) in (Tensor, nn.Parameter, nn.Buffer) and knows(t.untyped_storage()._cdata)
    )
