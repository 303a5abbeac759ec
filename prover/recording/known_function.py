"""What is known of a function whose calls are recorded steps: how its calls began, went on, and left Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from prover.capture.attached_objects import Attached
from prover.capture.python_objects import Look, Looking, TooMuchError
from prover.capture.step_capture import Capture
from prover.capture.without_modes import unseen
from prover.recording.compile_refusal import CompileError
from prover.recording.group_numbers import GroupNumbers
from prover.recording.known_structures import KnownStructures
from prover.recording.plain_arguments import names_of, without_tensors
from prover.recording.step_runner import StepRunner
from prover.recording.structure import NotPlainError, Shown, check

PATIENCE = 3
"""After how many calls in a row that cannot be programs a function is refused; first calls may set things up."""


class KnownFunction:
    """Such a function.

    Attributes:
        steps: The recording's steps.
        attached: What was attached to it.
        looking: Looks at what the function can decide by.
        structures: The structures of its calls.
        numbers: Numbers in the groups of optimizers.
        hindered: Why each of the last calls that were recorded could not have been a program.
    """

    def __init__(self, function: Callable[..., Any], steps: StepRunner, attached: Attached, *, derived: bool) -> None:
        """Prepares; see `prover.recording.compiled_step.CompiledStep`."""
        self.steps, self.attached = steps, attached
        self.looking = Looking(self._name_of)
        self.structures = KnownStructures()
        self.numbers = GroupNumbers()
        self.hindered: list[str] = []
        self._function, self._derived = function, derived
        self._names = names_of(function)

    def _name_of(self, address: int) -> str | None:
        name = self.steps.state.names.get(address)
        return None if name is None else self.steps.relative(name)

    def roots(self) -> list[Any]:
        """Returns where a look begins."""
        attached = self.attached
        modules, optimizers = ([each for _, each in found] for found in (attached.modules(), attached.optimizers()))
        return [self._function, *modules, *optimizers, *attached.others()]

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns parameters by the name of their gradients."""
        return {f"{prefix}.{name}.grad": p for prefix, m in self.attached.modules() for name, p in m.named_parameters()}

    @unseen
    def seen(self) -> Look | None:
        """Looks at what the function can decide by; None if that leads too far."""
        try:
            return self.looking.look(self.roots())
        except TooMuchError:
            return None

    def arguments(self, args: tuple[Any, ...], look: Look | None) -> tuple[list[Any], list[torch.Generator]]:
        """Returns what arguments have beside tensors, and the generators that a call reaches, the default one first.

        Args:
            args: The arguments.
            look: A look from the present moment.

        Raises:
            NotPlainError: They cannot be compared.
        """
        generators = [torch.default_generator, *(look.generators if look is not None else ())]
        return without_tensors(args, self._names, generators), generators

    def plain(self, args: tuple[Any, ...], look: Look | None) -> tuple[list[Any] | str, list[torch.Generator]]:
        """Returns as `arguments` does, or why they cannot be compared."""
        try:
            return self.arguments(args, look)
        except NotPlainError as error:
            plain = "pass tensors, generators, plain numbers and texts, and lists, dicts and dataclasses of these"
            return f"{error}; {plain}", []

    def problem(self, shown: Shown) -> str | None:
        """Returns why a call that was recorded cannot have a program, if that does not lie in its numbers.

        A text, since an error would keep the frames that it went through, and the tensors in these.
        """
        try:
            check(shown, shown.after.living(), derived=self._derived)
        except CompileError as error:
            return str(error.details["why"])
        return None

    def learn(self, shown: Shown, capture: Capture) -> None:
        """Takes in a recorded call."""
        step = self.steps.substitution.step
        problem = self.problem(shown)
        if (entry := self.numbers.follow(shown.before.numbers, step)) is not None:
            for each in self.structures:
                each.values.forget()
            problem = problem or (
                f"{entry} of an optimizer changes from step to step by no declared formula; let a scheduler of "
                "PyTorch's set it and attach() that scheduler, or declare it with Recorder(formulas=...)"
            )
        structure, hidden = self.structures.learn(shown)
        self.hinder(problem or hidden)
        structure.values.observe(capture.values, self.steps.substitution)

    def hinder(self, problem: str | None) -> None:
        """Notes why a recorded call could not have been a program, if it could not."""
        self.hindered = [] if problem is None else [*self.hindered[-PATIENCE:], problem]
