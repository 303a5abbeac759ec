"""What an initialisation looks at chooses nothing if it goes nowhere; whatever way it goes, it counts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from prover import Recorder
from weighbridge.program.chosen_bits import ChosenBits
from weighbridge.program.chosen_counts import count
from weighbridge.program.idle_inputs import idle_leftovers, idle_names, idle_slots
from weighbridge.program.origins import analyse
from weighbridge.transcript.parentage import entered
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

FOREIGN = torch.randn(8, 6, generator=torch.Generator().manual_seed(5))
Kept = list[Tensor]


def no_way(_: nn.Module, __: Tensor, ___: Kept) -> None:
    pass


def record(
    path: Path,
    begin: Callable[[nn.Module, Tensor, Kept], None],
    later: Callable[[nn.Module, Tensor, Kept], None] = no_way,
    *,
    attach: bool = False,
) -> Transcript:
    """Trains a net whose initialisation was given a tensor that no program made; `later` is done in step 3."""
    kept: Kept = []
    with Recorder(path, seed=1) as recorder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is undeclared
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
            begin(model, FOREIGN.clone(), kept)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder.attach(model, optimizer, *(kept if attach else ()))
        for step in range(1, 5):
            with recorder.step({"x": torch.full((4, 6), 0.5)}):
                model(torch.full((4, 6), 0.5)).square().mean().backward()
                if step == 3:
                    with torch.no_grad():
                        later(model, FOREIGN, kept)
                optimizer.step()
                optimizer.zero_grad()
    return Transcript.open(path)


def found(transcript: Transcript) -> tuple[int, float]:
    """How many inputs of step 0 are idle, and the bits that are charged for the others."""
    tapes = cache(lambda digest: Tape.decode(transcript.tape(digest)))
    ledger = ChosenBits()
    count(transcript, tapes, analyse(transcript, tapes), ledger)
    names = idle_names(transcript, tapes)
    content = entered(transcript, bytes(32), names)
    assert (ledger.total("origin") > 0) == (content.total() > 0), "both say the same"
    assert len(names) == len(idle_slots(transcript, tapes))
    return len(names), ledger.total("origin")


def tries(model: nn.Module, given: Tensor, _: Kept) -> None:
    assert model(given).shape == (8, 3)


def tries_and_prints(model: nn.Module, given: Tensor, kept: Kept) -> None:
    kept += [given, model(given).sum()]
    assert kept[1].item() != 0.1


@pytest.mark.parametrize("begin", [tries, tries_and_prints])
def test_a_model_that_was_tried_is_made_of_nothing(
    tmp_path: Path, begin: Callable[[nn.Module, Tensor, Kept], None]
) -> None:
    transcript = record(tmp_path / "run", begin)
    assert transcript.undeclared(0)
    assert found(transcript) == (1, 0)
    tapes = cache(lambda digest: Tape.decode(transcript.tape(digest)))
    assert "adopted/0" in idle_leftovers(transcript, tapes), "it stays in memory, and is nothing that the run made"


def by_copy(model: nn.Module, given: Tensor, _: Kept) -> None:
    with torch.no_grad():
        model[0].weight.copy_(given)


def by_numbers(model: nn.Module, given: Tensor, _: Kept) -> None:
    """Element by element, by way of Python's own numbers."""
    with torch.no_grad():
        for row in range(8):
            model[0].weight[row].fill_(given[row, 0].item())


def by_nan(model: nn.Module, given: Tensor, _: Kept) -> None:
    """Bits as NaN or not, which even equal bounds let through."""
    marks = torch.where(given > 0, given, torch.nan)
    one = torch.ones(())
    with torch.no_grad():
        model[0].weight.add_(torch.nan_to_num(marks.clamp(one, one)))


def by_keeping(_: nn.Module, given: Tensor, kept: Kept) -> None:
    kept.append(given)


def by_places(model: nn.Module, given: Tensor, _: Kept) -> None:
    """As indices into a table of the program's own."""
    with torch.no_grad():
        model[0].weight.copy_(torch.linspace(-2, 2, 256)[((given.clamp(-2, 2) + 2) / 4 * 255).long()])


def by_mask(model: nn.Module, given: Tensor, _: Kept) -> None:
    with torch.no_grad():
        model[0].weight.masked_fill_(given > 0, 1.0)


def by_chance(model: nn.Module, given: Tensor, _: Kept) -> None:
    """As the mean of draws without spread."""
    with torch.no_grad():
        model[0].weight.copy_(torch.normal(given, 0.0))


def by_seed(model: nn.Module, given: Tensor, _: Kept) -> None:
    torch.manual_seed(int(given.abs().sum().item() * 1e6))
    with torch.no_grad():
        model[0].weight.normal_()


def by_storage(model: nn.Module, given: Tensor, _: Kept) -> None:
    with torch.no_grad():
        model[0].weight.set_(given)


def rescales(model: nn.Module, _: Tensor, kept: Kept) -> None:
    """As a number that the host reads in a later step."""
    model[0].weight.mul_(1.0 + kept[0].sum().item())


def takes_over(model: nn.Module, _: Tensor, kept: Kept) -> None:
    model[0].weight.data = kept[0]


def adds_kept(model: nn.Module, _: Tensor, kept: Kept) -> None:
    model[0].weight.add_(kept[0])


@pytest.mark.parametrize(
    ("begin", "later", "attach"),
    [
        (by_copy, no_way, False), (by_numbers, no_way, False), (by_nan, no_way, False), (by_keeping, adds_kept, False),
        (by_keeping, no_way, True), (by_places, no_way, False), (by_mask, no_way, False), (by_chance, no_way, False),
        (by_seed, no_way, False), (by_storage, no_way, False), (by_keeping, rescales, False),
        (by_keeping, takes_over, False),
    ],
    ids=[
        "copy", "numbers", "NaN", "kept for a step", "attached", "places", "mask", "chance", "seed", "storage",
        "read later", "named later",
    ],
)  # fmt: skip
def test_whatever_reaches_the_state_counts(
    tmp_path: Path,
    begin: Callable[[nn.Module, Tensor, Kept], None],
    later: Callable[[nn.Module, Tensor, Kept], None],
    attach: bool,
) -> None:
    number, bits = found(record(tmp_path / "run", begin, later, attach=attach))
    assert number == 0
    assert bits == 8 * FOREIGN.nbytes
