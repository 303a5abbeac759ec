"""Notices when a program calls a module or makes an optimizer, before any of PyTorch's own hooks does."""

from __future__ import annotations

import functools
from threading import get_ident
from types import TracebackType
from typing import Any, Protocol, Self

from torch import nn
from torch.optim import Optimizer


class Called(Protocol):
    """The part that is told of calls."""

    def calls(self, module: nn.Module) -> None:
        """A module is about to be called, by the program and not by another module."""

    def reads(self) -> None:
        """The program is about to ask a module or an optimizer for its tensors, perhaps to save them."""

    def made(self, optimizer: Optimizer) -> None:
        """An optimizer is about to be made."""


class Calls:
    """Watches all modules and optimizers while it is entered."""

    def __init__(self, owner: Called) -> None:
        self._owner = owner
        self._depth = 0
        self._call, self._make = nn.Module.__call__, Optimizer.__init__
        self._state_dicts = nn.Module.state_dict, Optimizer.state_dict

    def __enter__(self) -> Self:
        owner, plain, make, thread = self._owner, self._call, self._make, get_ident()

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if get_ident() != thread:
                return plain(module, *args, **kwargs)
            if not self._depth:
                owner.calls(module)
            self._depth += 1
            try:
                return plain(module, *args, **kwargs)
            finally:
                self._depth -= 1

        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            owner.made(optimizer)
            make(optimizer, *args, **kwargs)

        def reading(plain: Any) -> Any:
            @functools.wraps(plain)
            def state_dict(holder: Any, *args: Any, **kwargs: Any) -> Any:
                if get_ident() == thread:
                    owner.reads()
                return plain(holder, *args, **kwargs)

            return state_dict

        for kind, plain_dict in zip((nn.Module, Optimizer), self._state_dicts, strict=True):
            setattr(kind, "state_dict", reading(plain_dict))  # noqa: B010
        setattr(nn.Module, "__call__", call)  # noqa: B010 (for type checkers it cannot be assigned)
        setattr(Optimizer, "__init__", init)  # noqa: B010
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        setattr(nn.Module, "__call__", self._call)  # noqa: B010
        setattr(Optimizer, "__init__", self._make)  # noqa: B010
        for kind, plain in zip((nn.Module, Optimizer), self._state_dicts, strict=True):
            setattr(kind, "state_dict", plain)  # noqa: B010
