"""What Python holds that may decide what a function does: a look at it that can be compared with a later one.

A compiled step does not run its function. It is the function's own step only while all that the function can reach is
as it was: plain values, which tensor lies on which storage of the state, code, hooks, containers. A look walks from the
function and from what is attached to a Recorder, and writes down what it finds as a list without keeping any of it.

It does not see contents of tensors and of large arrays, what lies outside the process, what C code keeps to itself,
names that are looked up in modules by code of installed packages, and names that no code has as names.
"""

from __future__ import annotations

import array
import enum
import functools
import io
import random
import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
import xxhash
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import weighbridge
from prover.capture.native_values import NothingToldError, beside_items, contexts, drawing, held_by
from weighbridge.core.errors import WeighbridgeError

Tensor = torch.Tensor

MOST = 1 << 18
"""Most things that a look writes down."""
_SMALL = 1 << 20
"""Bytes of arrays whose content is looked at."""
_INSTALLED = tuple(
    str(each)
    for each in {
        Path(sys.prefix), Path(sys.base_prefix), Path(torch.__file__).parent, Path(weighbridge.__file__).parent,
        Path(__file__).parents[1], Path(enum.__file__).parent,
    }
)  # fmt: skip
_NUMBERS = (float, int, bool)
_ITSELF = frozenset({str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, CodeType})
_BASES: tuple[Any, ...] = (float, int, complex, str, bytes)
_HOLDERS = frozenset({dict, OrderedDict, list, tuple, set, frozenset})
_ORDERED = (list, tuple, deque, set, frozenset)
_DRAWING = (random.Random, np.random.Generator, np.random.RandomState)
_OF_ALL = frozenset({"__dict__", "__weakref__", "__doc__", "__annotations__", "__abstractmethods__", "_abc_impl"})
"""What every class has, of which nothing depends."""
_STEPS = ("_step_count", "last_epoch")
_OF_SCHEDULERS = frozenset({*_STEPS, "_last_lr", "_get_lr_called_within_step", "_is_initial", "optimizer"})
"""What every scheduler of PyTorch's has, of which its own steps change most."""

Entry = tuple[int, int, str]
"""A number in an optimizer's groups: which optimizer, which group, which key."""


class TooMuchError(WeighbridgeError):
    """There is more to look at than a look before each step is worth."""

    code = "record.compile.refused"


@dataclass(slots=True)
class Look:
    """What was found at one moment.

    Attributes:
        found: Everything in a fixed order, but for what follows.
        grads: Where gradients lie, which steps make and let go of.
        numbers: Floats in the groups of optimizers, which schedules change.
        schedules: How far each scheduler of PyTorch's is, by its identity: its own count and its epoch.
        schedulers: The same schedulers.
        optimizers: Identities of the optimizers.
        kinds: Their types.
        generators: PyTorch's generators that were met, but for its default one.
        iterator: Where an iterator was met, whose state nothing tells; None if none was.
        tensors: The tensors on storages of the state; to be cleared by who keeps a look.
    """

    found: list[Any] = field(default_factory=list)
    grads: list[Any] = field(default_factory=list)
    numbers: dict[Entry, float] = field(default_factory=dict)
    schedules: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    schedulers: list[weakref.ref[LRScheduler]] = field(default_factory=list)
    optimizers: list[int] = field(default_factory=list)
    kinds: set[type[Optimizer]] = field(default_factory=set)
    generators: list[torch.Generator] = field(default_factory=list)
    iterator: str | None = None
    tensors: list[Tensor] = field(default_factory=list)

    def living(self) -> dict[int, LRScheduler]:
        """Returns the schedulers by identity."""
        found = [each() for each in self.schedulers]
        return {id(each): each for each in found if each is not None}


class Looking:
    """Looks at Python objects."""

    def __init__(self, name_of: Callable[[int], str | None]) -> None:
        """Prepares.

        Args:
            name_of: Returns the name of a storage that is state, by its address, or None.
        """
        self._name_of = name_of
        self._codes: dict[CodeType, tuple[str, ...] | None] = {}

    def look(self, roots: Iterable[Any]) -> Look:
        """Looks at objects and all that they lead to.

        Raises:
            TooMuchError: They lead too far.
        """
        walk = _Walk(self._name_of, self._codes, named=False)
        walk.start(roots)
        return walk.look

    def place(self, roots: Iterable[Any], at: int) -> str:
        """Returns in words where entry `at` of a look at the same objects comes from."""
        walk = _Walk(self._name_of, self._codes, named=True)
        walk.start(roots)
        return walk.places[at] if at < len(walk.places) else "what follows the last of it"

    def difference(self, roots: Iterable[Any], before: Look, now: Look) -> str | None:
        """Returns in words where two looks at the same objects differ, the second being the present one."""
        if before.found == now.found:
            return None
        for at, (one, other) in enumerate(zip(before.found, now.found, strict=False)):
            if one is not other and one != other:
                return self.place(roots, at)
        return self.place(roots, min(len(before.found), len(now.found)))


class _Walk:
    def __init__(
        self, name_of: Callable[[int], str | None], codes: dict[CodeType, tuple[str, ...] | None], *, named: bool
    ) -> None:
        self.look = Look()
        self.places: list[str] = []
        self._out = self.look.found
        self._name_of, self._codes, self._named = name_of, codes, named
        self._met: dict[int, int] = {}
        self._classes: set[int] = set()
        self._path: list[str] = []
        self._made: list[Any] = []  # during the walk: what is met is known by where it lies

    def start(self, roots: Iterable[Any]) -> None:
        self._out += switches()
        self._note("PyTorch's switches")
        self._made.append(contexts())
        self._within("PyTorch's hooks and modes", self._made[-1])
        for number, root in enumerate(roots):
            self._within("the function" if not number else type(root).__name__, root)

    def _note(self, where: str | None = None) -> None:
        """Says where what was written down since it was last said comes from."""
        if self._named:
            here = where or "".join(self._path)
            self.places += [here] * (len(self._out) - len(self.places))

    def _within(self, name: str, value: Any) -> None:
        if self._named:
            self._note()
            self._path.append(name)
        self._walk(value)
        if self._named:
            self._note()
            self._path.pop()

    def _walk(self, value: Any) -> None:
        out, kind = self._out, type(value)
        if kind in _ITSELF:
            out.append(value)
            return
        out.append(kind)
        if kind in _NUMBERS:
            out.append((value or repr(value)) if value == value else "nan")  # 0.0 == -0.0
            return
        if kind in _HOLDERS and not value:
            out.append(0)
            return
        if isinstance(value, Tensor):
            self._tensor(value)
            return
        if id(value) in self._met:
            out.append(self._met[id(value)])  # which one: a name may come to mean another thing that was there
            return
        if kind is MethodType:
            self._within("", value.__func__)
            self._within("'s object", value.__self__)
            return
        if len(out) > MOST:
            raise TooMuchError(
                "the function leads to more Python objects than can be looked at before each step; let it refer to "
                "model and optimizer only, not to a data set or to what holds one"
            )
        self._met[id(value)] = len(self._met)
        self._object(value, kind)

    def _object(self, value: Any, kind: type) -> None:
        out = self._out
        if isinstance(value, dict):
            self._items(value)
            self._beside(value, kind)
        elif isinstance(value, _ORDERED):
            out.append(len(value))
            for number, each in enumerate(value):
                self._within(f"[{number}]", each)
            self._beside(value, kind)
        elif isinstance(value, Optimizer):
            self._optimizer(value)
        elif isinstance(value, LRScheduler):
            out.append(id(value))
            self.look.schedulers.append(weakref.ref(value))
            self.look.schedules[id(value)] = tuple([getattr(value, name, None) for name in _STEPS])
            if _is_own(_file_of(kind)):
                self._class(kind)
                self._parts(vars(value), _OF_SCHEDULERS)
        elif kind is FunctionType:
            self._function(value)
        elif isinstance(value, functools.partial):
            self._within(".func", value.func)
            self._within(".args", value.args)
            self._within(".keywords", value.keywords)
            self._beside(value, kind)
        elif isinstance(value, type):
            out.append(id(value))
            self._class(value)
        elif isinstance(value, ModuleType):
            self._plainly(value)
        elif isinstance(value, torch.Generator):
            self._generator(value)
        elif isinstance(value, enum.Enum):
            out.append(value)
        elif isinstance(value, np.generic):
            out += [value.dtype.str, value.tobytes()]
        elif (base := next((each for each in _BASES if isinstance(value, each)), None)) is not None:
            out.append(base.__repr__(value))  # a number or text of a class of the program's, which may hold more
            if hasattr(value, "__dict__"):
                self._instance(value, kind)
        elif isinstance(value, weakref.ref):
            self._within("'s object", value())
        elif kind is bytearray or isinstance(value, array.array):
            out.append(bytes(value))
        elif isinstance(value, _DRAWING):
            out.append(drawing(value))
        elif isinstance(value, Iterator) and not isinstance(value, io.IOBase):
            out.append(id(value))
            self.look.iterator = kind.__name__
        elif kind.__module__.startswith(("prover.", "weighbridge.", "firmware_sim.")):
            out.append(id(value))  # a program may use its Recorder
        elif isinstance(value, np.ndarray):
            out += [id(value), value.shape, value.dtype.str, _content(value)]
        elif isinstance(value, (staticmethod, classmethod)):
            self._within("", value.__func__)
        elif isinstance(value, property):
            self._within("", value.fget)
            self._within("", value.fset)
        else:
            self._instance(value, kind)

    def _instance(self, value: Any, kind: type) -> None:
        parts = getattr(value, "__dict__", None)
        slots = [name for base in kind.__mro__ for name in _slots(base) if hasattr(value, name)]
        if parts is None and not slots:
            try:
                self._made.append(held_by(value, kind))
            except NothingToldError:
                self._out.append(id(value))
            else:
                self._within("", self._made[-1])
            return
        if isinstance(value, torch.nn.Module):
            self._within(".forward", kind.forward)  # type: ignore[attr-defined]
        self._class(kind)
        self._parts({**(parts or {}), **{name: getattr(value, name) for name in slots}})

    def _beside(self, value: Any, kind: type) -> None:
        """Looks at what a container has beside its items."""
        if kind in _HOLDERS:
            return
        self._class(kind)
        for each in beside_items(value):
            self._within("", each)
        slots = {name: getattr(value, name) for base in kind.__mro__ for name in _slots(base) if hasattr(value, name)}
        if parts := {**getattr(value, "__dict__", {}), **slots}:
            self._parts(parts)

    def _class(self, kind: type) -> None:
        """Looks at what classes of the program have, methods included; those of installed packages stay."""
        meta: type = type(kind)
        for base in (*kind.__mro__, *meta.__mro__):
            if id(base) in self._classes:
                continue
            self._classes.add(id(base))
            if _is_own(_file_of(base)):
                for name, each in base.__dict__.items():
                    if name not in _OF_ALL:
                        self._out.append(name)
                        self._within(f"'s {base.__name__}.{name}", each)

    def _at_once(self, value: Any) -> bool:
        """Writes down what leads nowhere, which most values are, as `_walk` does."""
        kind = type(value)
        if kind in _ITSELF:
            self._out.append(value)
        elif kind is bool or kind is int:
            self._out += (kind, value)
        elif kind in _HOLDERS and not value:
            self._out += (kind, 0)
        else:
            return False
        return True

    def _items(self, value: dict[Any, Any]) -> None:
        self._out.append(len(value))
        for key, each in value.items():
            if self._named or not self._at_once(key):
                self._walk(key)
            if not self._named:
                if not self._at_once(each):
                    self._walk(each)
                continue
            self._within(f"[{key!r}]" if type(key) in (str, int) else "[...]", each)

    def _parts(self, parts: dict[str, Any], leave: Iterable[str] = ()) -> None:
        self._out.append(len(parts))
        for key, each in parts.items():
            if key not in leave:
                self._out.append(key)
                if self._named:
                    self._within(f".{key}", each)
                elif not self._at_once(each):
                    self._walk(each)

    def _tensor(self, t: Tensor) -> None:
        out = self._out
        if t.layout is not torch.strided:
            out.append(id(t))
            return
        lies = self._lies(t)
        out.append(lies)
        if lies[0] is not None:
            self.look.tensors.append(t)
        if id(t) in self._met:
            return
        self._met[id(t)] = len(self._met)
        if t.is_leaf:
            self.look.grads.append(self._lies(t.grad))
            hooks = getattr(t, "_post_accumulate_grad_hooks", None)
            if t._backward_hooks or hooks:
                self._within("'s hooks", t._backward_hooks)
                self._within("'s hooks", hooks)
        if t.__dict__:
            self._parts(t.__dict__)

    def _lies(self, t: Tensor | None) -> Any:
        """Returns where a tensor lies, and as what."""
        if t is None or t.layout is not torch.strided:
            return None if t is None else id(t)
        name = self._name_of(t.untyped_storage()._cdata)
        return name, t.dtype, t.shape, t.stride(), t.storage_offset(), t.requires_grad

    def _generator(self, value: torch.Generator) -> None:
        self._out.append(id(value))
        if value is not torch.default_generator:
            self.look.generators.append(value)
        if hasattr(value, "__dict__"):  # of a class of the program's
            self._instance(value, type(value))

    def _optimizer(self, value: Optimizer) -> None:
        number = len(self.look.optimizers)
        self.look.optimizers.append(id(value))
        self.look.kinds.add(type(value))
        self._parts(value.__dict__, ("param_groups", "state"))
        for index, group in enumerate(value.param_groups):
            self._out.append(len(group))
            for key, each in group.items():
                self._out.append(key)
                if type(each) is float:
                    self.look.numbers[number, index, key] = each
                elif type(each) is tuple and each and all([type(v) is float for v in each]):
                    for at, part in enumerate(each):
                        self.look.numbers[number, index, f"{key}[{at}]"] = part
                else:
                    self._within(f".param_groups[{index}][{key!r}]", each)
        self._out.append(len(value.state))
        for parameter, held in value.state.items():
            self._walk(parameter)
            self._within(".state[...]", held)

    def _function(self, value: FunctionType) -> None:
        code = value.__code__
        self._out.append(code)
        for cell in value.__closure__ or ():
            try:
                self._within("'s closure", cell.cell_contents)
            except ValueError:  # not assigned yet
                self._out.append(None)
        if value.__defaults__ or value.__kwdefaults__:
            self._within("'s defaults", value.__defaults__)
            self._within("'s defaults", value.__kwdefaults__)
        if value.__dict__:
            self._parts(value.__dict__)
        names = self._names(code)
        if names is None:
            return
        for name in names:
            if name in value.__globals__:
                found = value.__globals__[name]
            elif (found := sys.modules.get(name)) is None or not _is_own(getattr(found, "__file__", None) or "<"):
                continue  # neither its own nor a module that it imports itself
            if isinstance(found, ModuleType):
                self._module(found, names, {id(found)})
            else:
                self._within(f"'s {name}", found)

    def _module(self, module: ModuleType, names: tuple[str, ...], met: set[int]) -> None:
        """Looks at the members of a module that a function of the program may name; of installed ones, at which."""
        self._out.append(id(module))
        own = _is_own(getattr(module, "__file__", None) or "<")
        for name in names:
            if name not in module.__dict__:
                continue
            member = module.__dict__[name]
            if isinstance(member, ModuleType):
                self._out.append(id(member))
                if id(member) not in met:
                    met.add(id(member))
                    self._module(member, names, met)
            elif own or isinstance(member, (*_BASES, torch.Generator)):
                self._within(f"'s {module.__name__}.{name}", member)
            else:
                self._out.append(id(member))

    def _plainly(self, module: ModuleType) -> None:
        """Looks at a module of the program's that something holds: at its numbers, texts and containers."""
        self._out.append(id(module))
        if _is_own(getattr(module, "__file__", None) or "<"):
            for name, each in module.__dict__.items():
                if isinstance(each, (*_BASES, dict, *_ORDERED)) and not name.startswith("__"):
                    self._within(f".{name}", each)

    def _names(self, code: CodeType) -> tuple[str, ...] | None:
        """Returns the names that a function of the program uses; None for one of an installed package."""
        if code not in self._codes:
            self._codes[code] = tuple(dict.fromkeys(_used(code))) if _is_own(code.co_filename) else None
        return self._codes[code]


def _is_own(file: str) -> bool:
    """Whether a file is the program's, and not of an installed package; code that was typed in has none."""
    return not file.startswith((*_INSTALLED, "<frozen")) and file != "<"


def _file_of(kind: type) -> str:
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or "<"


def _slots(kind: type) -> tuple[str, ...]:
    own = kind.__dict__.get("__slots__", ())
    return () if not _is_own(_file_of(kind)) else tuple([own] if isinstance(own, str) else own)


def _content(value: np.ndarray[Any, Any]) -> bytes | None:
    return xxhash.xxh3_128_digest(value.tobytes()) if value.nbytes <= _SMALL and not value.dtype.hasobject else None


def _used(code: CodeType) -> list[str]:
    names = list(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names += _used(inner)
    return names


def switches() -> list[Any]:
    """Returns PyTorch's settings that decide which operations a program makes."""
    return [
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled(), torch.get_default_dtype(),
        torch.is_anomaly_enabled(), torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack(),
        torch.are_deterministic_algorithms_enabled(),
    ]  # fmt: skip
