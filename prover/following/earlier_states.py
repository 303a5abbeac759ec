"""State that a program saved and reads again: what comes back is recognised by its digest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from torch import Tensor

from prover.capture.storages import HostCopy
from prover.capture.without_modes import storage_bytes, unseen
from prover.recording.state_tracker import StateTracker
from weighbridge.core.digests import bytes_digest
from weighbridge.transcript.returned_state import Held, Returned, places
from weighbridge.transcript.tape import Tape

_MOST = 256
"""States that are remembered, the latest ones: a program saves some and not all."""


class EarlierStates:
    """Remembers what state held when the program asked for it, as it does to save it."""

    def __init__(
        self, state: StateTracker, step: Callable[[], int], keep: Callable[[int, Held], None] = lambda *_: None
    ) -> None:
        """Prepares; there is no state yet.

        Args:
            state: The state of the recording.
            step: Returns the number of the step in progress.
            keep: Called with a step and what state held before it, if the program asked for that.
        """
        self._state, self._step, self._keep = state, step, keep
        self._held: dict[int, Held] = {}
        self._sources: dict[tuple[int, bytes], list[tuple[int, str]]] = {}
        self._asked = False
        self._now = (0, Held({}, {}))
        self._states: dict[int, Held] = {}
        self._tensors: dict[tuple[int, str], tuple[int, str]] = {}

    @property
    def returned(self) -> Returned:
        """What came back so far."""
        return Returned(self._states, self._tensors)

    def read(self) -> None:
        """To be called when the program asks for its state: that before this step, or that after it."""
        if self._step() > 0:
            self._remember()
            self._asked = True

    def settle(self) -> None:
        """To be called after each step: notes what state holds now, which the step's record says too."""
        state = self._state
        counters = {str(number): counter for number, counter in state.rng.items()}
        self._now = self._step(), Held(dict(state.digests), counters)
        if self._asked:
            self._asked = False
            self._remember()

    @unseen
    def holds(self, t: Tensor) -> bool:
        """True if the memory of a tensor is what some state held that is remembered."""
        if not self._sources:
            return False
        data = storage_bytes(t.untyped_storage())
        return (data.size, bytes_digest(data.data)) in self._sources

    def cut(self, tape: Tape, undeclared: Mapping[str, HostCopy], step: int) -> bool:
        """To be called after a step: looks for earlier state among what entered it.

        Args:
            tape: Of the step.
            undeclared: What entered, by name.
            step: Its number.

        Returns:
            Whether some did.
        """
        sources = {name: self._sources.get(copy.digest(), []) for name, copy in undeclared.items()}
        counts = Counter(before for found in sources.values() for before in {before for before, _ in found})
        became = places(tape, step) if counts else {}
        for name, found in sources.items():
            if found:
                source = max(
                    found, key=lambda each: (counts[each[0]], each[0], each[1] in became.get(name, ()), each[1])
                )
                self._tensors[step, name] = source
                self._states[source[0]] = self._held[source[0]]
        self.settle()
        return bool(counts)

    def _remember(self) -> None:
        step, held = self._now
        if step in self._held:
            return
        self._held[step] = held
        self._keep(step, held)
        for name, entry in held.storages.items():
            self._sources.setdefault(entry, []).append((step, name))
        if len(self._held) > _MOST:
            self._forget(min(self._held))

    def _forget(self, step: int) -> None:
        for entry in self._held.pop(step).storages.values():
            left = [source for source in self._sources.get(entry, []) if source[0] != step]
            if left:
                self._sources[entry] = left
            else:
                self._sources.pop(entry, None)
