"""Finds what a program trains: optimizers, the modules that hold their parameters, and other modules that it made."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from prover.capture.attached_objects import local_part
from prover.capture.derived_formulas import innermost
from prover.capture.live_objects import of_types
from prover.capture.without_modes import unseen

_PLAIN = (Tensor, nn.Parameter, nn.Buffer)

_CONSTANTS = 1 << 20
"""Most bytes of what a module without parameters holds that counts as constants of the program."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a program has made.

    Attributes:
        trained: Modules with parameters of an optimizer, that are part of no other module.
        others: Other such modules whose tensors the program made or used, and copies of what is trained: averages of
            weights, teachers.
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


class ProgramObjects:
    """Looks through the program's objects, among them those that the collector shows no more once they are frozen.

    What is older than the recording, as in a notebook whose cells trained something else before, is the program's only
    if the recorded part has to do with it.
    """

    def __init__(self) -> None:
        """Prepares; nothing counts as older yet."""
        self._older_modules: list[ReferenceType[nn.Module]] = []
        self._older_optimizers: list[ReferenceType[Optimizer]] = []
        self._found: list[ReferenceType[Any]] = []

    def begin(self) -> None:
        """Notes what there is; to be called before anything is recorded, since a recording freezes what is older."""
        gc.collect()  # what is garbage is no object of the program any more
        self._older_modules = [ref(each) for each in _modules()]
        self._older_optimizers = [ref(each) for each in _optimizers()]

    def older_tensors(self) -> list[Tensor]:
        """Returns the memory of the objects that are older: parameters, buffers, what optimizers hold."""
        modules = [each for each in (r() for r in self._older_modules) if each is not None]
        held = [t for module in modules for t in (*module.parameters(False), *module.buffers(False))]
        for optimizer in (r() for r in self._older_optimizers):
            states = [] if optimizer is None else optimizer.state.values()
            held += [t for state in states for t in state.values() if isinstance(t, Tensor)]
        return [t.detach() for t in held if type(t) in _PLAIN and t.device.type != "meta"]

    def older(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer was made before the recording began, and makes its first step in it only now."""
        return any(each() is optimizer for each in self._older_optimizers)

    def stepped(self, optimizer: Optimizer) -> None:
        """Notes that an optimizer is in use, whenever it was made."""
        self._older_optimizers = [each for each in self._older_optimizers if each() is not optimizer]
        self._found.append(ref(optimizer))

    def find(self, knows: Callable[[int], bool], updated: Sequence[Tensor] = ()) -> Found:
        """Finds what belongs to the training.

        Args:
            knows: Whether a storage (by address) was made or used by the program since it is followed.
            updated: Parameters that the program updates without an optimizer.
        """
        gc.collect()
        before = [each for each in (r() for r in self._found) if each is not None]
        older = [each for each in (r() for r in self._older_modules) if each is not None]
        unused = {id(each()) for each in self._older_optimizers}
        optimizers = [each for each in _once(before, _optimizers()) if isinstance(each, Optimizer)]
        optimizers = [each for each in optimizers if id(each) not in unused]
        modules = [each for each in _once(before, older, _modules()) if isinstance(each, nn.Module)]
        found = _among(optimizers, modules, {id(each) for each in older}, knows, updated)
        self._found = [ref(each) for each in found.objects]
        return found

    def wanted(self, knows: Callable[[int], bool]) -> list[Tensor]:
        """Returns what gradients are wanted of, none as long as some of it is still to be made.

        Args:
            knows: As for `find`.
        """
        tensors = [t for t in of_types(lambda kind: issubclass(kind, Tensor)) if t.requires_grad and t.is_leaf]
        if any(is_lazy(t) for t in tensors):
            return []
        return [t for t in tensors if _known(t, knows)]


def _among(
    optimizers: list[Optimizer],
    modules: list[nn.Module],
    older: set[int],
    knows: Callable[[int], bool],
    updated: Sequence[Tensor],
) -> Found:
    wanted = {id(p): p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    wanted |= {id(p): p for p in updated}
    parts = {id(child) for module in modules for child in module.children()}
    roots = [module for module in modules if id(module) not in parts]
    trained = [module for module in roots if any(id(p) in wanted for p in module.parameters())]
    chosen = {id(module) for module in trained}
    others = [
        m
        for m in roots
        if id(m) not in chosen
        and (
            (id(m) not in older and _is_criterion(m))
            or any(_known(t, knows) for t in (*m.parameters(), *m.buffers()))
            or any(_is_copy(m, each) for each in trained)
        )
    ]
    held = {id(p) for module in trained for p in module.parameters()}
    loose = [p for key, p in wanted.items() if key not in held]
    return Found(trained, others, optimizers, {f"parameter{number or ''}": p for number, p in enumerate(loose)})


def _modules() -> list[nn.Module]:
    return [each for each in of_types(lambda kind: issubclass(kind, nn.Module)) if "_parameters" in vars(each)]


def _optimizers() -> list[Optimizer]:
    return [each for each in of_types(lambda kind: issubclass(kind, Optimizer)) if innermost(each) is each]


def _once(*lists: list[Any]) -> list[Any]:
    return list({id(each): each for found in lists for each in found}.values())


def _is_criterion(module: nn.Module) -> bool:
    """True for a module with a few constants and no parameters, as a loss with weights for its classes is."""
    buffers = list(module.buffers())
    plain = all(type(t) in (Tensor, nn.Buffer) and t.device.type != "meta" for t in buffers)
    return bool(buffers) and plain and not any(True for _ in module.parameters()) and _size(buffers) <= _CONSTANTS


@unseen
def _is_copy(module: nn.Module, trained: nn.Module) -> bool:
    """True for an average or a reference that begins with the weights of a model which is older itself."""
    one, other = list(module.parameters()), list(trained.parameters())
    if not one or len(one) != len(other) or any(type(t) not in _PLAIN for t in (*one, *other)):
        return False
    alike = all(
        (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device) and a.device.type != "meta"
        for a, b in zip(one, other, strict=True)
    )
    return alike and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _size(tensors: list[Tensor]) -> int:
    return sum(t.untyped_storage().nbytes() for t in tensors)


def _known(t: Tensor, knows: Callable[[int], bool]) -> bool:
    return t.device.type != "meta" and type(t) in _PLAIN and knows(t.untyped_storage()._cdata)
