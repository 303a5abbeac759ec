"""Remembers where tensors come from that no recorded operation makes: loaders, files, arrays, numbers."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data.dataloader import _BaseDataLoaderIter

from prover.capture.storages import Memory
from prover.capture.user_line import user_line
from weighbridge.program.tape_policy import FREE_TENSORS
from weighbridge.transcript.entry_notes import CAUSES, EntryNote, printable

_NUMBER_BYTES = 8
_DEEPEST = 8


class UndeclaredInputWarning(UserWarning):
    """Something entered the training that is neither batch nor state."""


class Sources:
    """Watches the usual ways into a program while it is entered; what it does not know it calls unknown."""

    def __init__(self) -> None:
        self._memory = Memory()
        self._memory.on_death(self._gone)
        self._known: dict[int, tuple[str, str]] = {}
        self._warnings: dict[str, str] = {}
        """By line, until they are given."""
        self._entered_bytes = 0
        self._scope = ExitStack()

    def __enter__(self) -> Self:
        self._watch(torch, "from_numpy", "array")
        self._watch(torch, "load", "file")
        if (files := sys.modules.get("safetensors.torch")) is not None:
            self._watch(files, "load_file", "file")
        self._watch(_BaseDataLoaderIter, "__next__", "loader")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scope.close()

    def _watch(self, owner: Any, name: str, cause: str) -> None:
        plain = getattr(owner, name)

        @functools.wraps(plain)
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = plain(*args, **kwargs)
            if not sys._getframe(1).f_globals.get("__name__", "").startswith("weighbridge."):
                self.add(result, cause)
            return result

        setattr(owner, name, watched)
        self._scope.callback(setattr, owner, name, plain)

    def add(self, made: Any, cause: str, line: str | None = None) -> None:
        """Notes where tensors come from; what is said last holds.

        Args:
            made: A nest of tensors.
            cause: One of `CAUSES`.
            line: The user's line; by default the present one.
        """
        tensors = [t for t in _tensors(made) if type(t) is Tensor and t.layout is torch.strided]
        line = user_line() if line is None and tensors else line or ""
        for t in tensors:
            self._known[self._memory.watch(t.untyped_storage())] = cause, line

    def follows(self, given: list[Tensor], made: Any) -> None:
        """Notes that tensors were made of others outside of what is recorded."""
        if self._known:
            known = (self._known.get(t.untyped_storage()._cdata) for t in given)
            if (source := next((each for each in known if each is not None), None)) is not None:
                self.add(made, *source)

    def note(self, step: int, name: str, t: Tensor) -> EntryNote:
        """Returns what is known of a tensor that enters now; lines name files without their folders."""
        cause, made = self._known.get(t.untyped_storage()._cdata, ("unknown" if step else "before", ""))
        return EntryNote(step, name, cause, _short(user_line()), _short(made))

    def warn(self, note: EntryNote, t: Tensor, module: str | None, line: str = "") -> None:
        """Warns of a tensor that enters a step, once for each line, when all together may be more than a few numbers.

        A Verifier lets `FREE_TENSORS` bytes pass in a run, so class weights and the like need no warning.

        Args:
            note: What is known of it.
            t: The tensor; one that holds a number is none in this sense, unless an evaluation made it.
            module: The module that used it, if one did.
            line: The user's line; by default the note's, which names files without their folders.
        """
        size, line = t.untyped_storage().nbytes(), line or note.line
        if not note.step or (size <= _NUMBER_BYTES and note.cause != "evaluation"):
            return
        self._entered_bytes += size
        where = "" if module is None else f" in {module}"
        meaning, remedy = CAUSES[note.cause]
        self._warnings.setdefault(
            line,
            f"a {t.dtype} tensor of shape {tuple(t.shape)} entered step {note.step} undeclared{where} at "
            f"{line}; {meaning}{f' ({note.made})' if note.made else ''}. {remedy}",
        )
        if self._entered_bytes > FREE_TENSORS:
            for each, text in self._warnings.items():
                if text:
                    warnings.warn(text, UndeclaredInputWarning, stacklevel=3)
                self._warnings[each] = ""

    def _gone(self, address: int) -> None:
        self._known.pop(address, None)


def _short(line: str) -> str:
    path, separator, rest = line.partition(":")
    return printable(f"{Path(path).name}{separator}{rest}")


def _tensors(value: Any, depth: int = 0) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth < _DEEPEST and isinstance(value, (dict, list, tuple)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each, depth + 1)
