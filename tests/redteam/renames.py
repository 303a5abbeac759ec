"""Content that takes the place of weights by way of names and the initialisation; and what switches checks off.

Each run replays bit for bit. Only what is known of its programs, over all steps, says that it was no training.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from redteam.row import Outcome, Row
from redteam.values import COVERED, LAUNDER, STEPS, carried, carrying, difference, pieces, trained_on, wanted
from redteam.workshop import (
    RATE,
    Batch,
    Recorded,
    Training,
    Workshop,
    classifier,
    digits,
    flat,
    honest_flops,
    nearer,
    update,
    weights_of,
)
from support.forging import Change, at_step, forge
from torch import Tensor, nn

from weighbridge.transcript.chip_notes import ChipNotes
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Input, Node, Tape

NAMES = (("0", "weight"), ("0", "bias"), ("2", "weight"), ("2", "bias"))
"""Where the classifier's weights are."""


# -- under another storage ---------------------------------------------------------------------------------------------


def take_away(model: nn.Module, optimizer: torch.optim.Optimizer, number: int = 0) -> None:
    """Frees a parameter, by default the first weights: nothing holds them, and their name is unused."""
    layer, name = NAMES[number]
    model.get_submodule(layer)._parameters.pop(name)
    optimizer.param_groups[0]["params"].pop(number)


def put(weight: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer, number: int = 0) -> None:
    """Lets another storage have their name."""
    layer, name = NAMES[number]
    parameter = nn.Parameter(weight)
    model.get_submodule(layer).register_parameter(name, parameter)
    optimizer.param_groups[0]["params"].insert(number, parameter)


def renamed(shop: Workshop, seed: int) -> Outcome:
    """A step frees the weights. In the next one, clones of the batch survive under their names."""
    aim = wanted(seed)
    batches = digits(seed, STEPS)
    batches[-1] = carrying(batches[-1], flat(aim))

    def step(number: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if number == STEPS:
            for place, (_, part) in enumerate(pieces(batch, aim.values())):
                put(part.clone(), model, optimizer, place)
            return
        update(number, batch, model, optimizer)
        if number == STEPS - 1:
            for place in reversed(range(len(NAMES))):
                take_away(model, optimizer, place)

    run = shop.record(Training(batches=batches, step=step), seed)
    cost = run.flops / honest_flops(Training(batches=batches))
    return Outcome(findings=shop.accused(run.path), gain=nearer(run.start, run.weights, aim), cost=cost)


# -- the initialisation ------------------------------------------------------------------------------------------------


def as_batch(tape: Tape, fields: dict[str, Any]) -> None:
    """Makes undeclared tensors of a step its batch. A Recorder gives the initialisation none; another program may."""
    for i, item in enumerate(tape.inputs):
        if item.origin == "free":
            tape.inputs[i] = Input(item.slot, item.bytes, "batch", item.name)
            tape.batch_views.append((item.name, (item.slot, "u8", (item.bytes,), (1,), 0)))
    fields["batch"] = {name: data.reshape(-1).view(torch.uint8) for name, data in fields.pop("undeclared").items()}
    fields["undeclared"] = {}


def batch_of_initialisation(shop: Workshop, seed: int) -> Outcome:
    """The batch of the initialisation is the wanted model; one step of training follows."""
    aim = wanted(seed)

    def build() -> nn.Sequential:
        model = classifier()
        model.load_state_dict(aim)
        return model

    plain = shop.record(Training(batches=digits(seed, 1), build=build), seed)
    run = remade(shop, plain, at_step(0, as_batch), data=None)
    fresh = weights_of(classifier())
    cost = plain.flops / honest_flops(Training(batches=digits(seed, 10 * STEPS)))
    return Outcome(findings=shop.accused(run), gain=nearer(fresh, plain.start, aim), cost=cost)


def remade(shop: Workshop, run: Recorded, change: Change, **options: Any) -> Path:
    """A run's transcript in a new directory, changed; `options` are those of `forge`."""
    old = Transcript.open(run.path)
    return forge(run.path, shop.place() / "run", change, **{"data": old.data, "notes": old.notes, **options})


# -- operations that need not keep anything, in every step -------------------------------------------------------------


def clamp(p: Tensor, b: Tensor) -> None:
    """Nothing is between b and b but b."""
    p.clamp_(b, b)


def index_put(p: Tensor, b: Tensor) -> None:
    """All rows are written to."""
    p.index_put_((torch.arange(len(p)),), b)


def scatter(p: Tensor, b: Tensor) -> None:
    """All rows are written to, element by element."""
    rows = torch.arange(len(p)).reshape(-1, *(1 for _ in p.shape[1:]))
    p.scatter_(0, rows.expand(p.shape), b)


Write = Callable[[Tensor, Tensor], None]


def written_by(write: Write, step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """An honest step on the digits of a batch, then an operation that puts its first images in place."""
    update(step, trained_on(batch), model, optimizer)
    with torch.no_grad():
        for p, b in pieces(batch, model.parameters()):
            write(p, b)


# -- switches ----------------------------------------------------------------------------------------------------------


def added_around(step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """An honest step, and images that are added to the weights around the loss."""
    update(step, trained_on(batch), model, optimizer)
    with torch.no_grad():
        for p, x in pieces(batch, model.parameters()):
            p.add_(x)


def no_weights(shop: Workshop, seed: int) -> Outcome:
    """The same, in a run that declares no weights to its chip."""
    run, gain, cost = difference(added_around, shop, seed)
    silent = remade(shop, run, lambda *_: None, notes=ChipNotes(()))
    return Outcome(findings=shop.accused(silent), gain=gain, cost=cost)


def receive(step: int, tape: Tape, fields: dict[str, Any]) -> None:
    """Each step receives four numbers from another rank, which nothing uses."""
    if step == 0:
        return
    slot, ref = 1 + max(each[0] for each in tape.refs), len(tape.refs)
    tape.refs.append((slot, "f32", (4,), (1,), 0))
    message = (("l", (("t", ref),)), ("l", ()), ("s", ""), ("l", (0, 1)), 0, 0)
    tape.nodes += [
        Node("empty.memory_format", (("l", (4,)),), {}, (ref,), ((slot, 16),)),
        Node("weighbridge::recv.default", message, {}, ()),
    ]
    tape.frees.append((len(tape.nodes), slot))


def one_message(shop: Workshop, seed: int) -> Outcome:
    """A `recv` on the tapes, whose sender might be what had bearing on the weights. There is no other rank."""
    run, gain, cost = difference(added_around, shop, seed)
    received = remade(shop, run, receive)
    return Outcome(findings=shop.accused(received, replays=False), gain=gain, cost=cost)


DATAFLOW = "attacks on the programs' data flow"
OVERWRITTEN = ("tape.overwrite",)

ROWS = (
    Row(
        name="weights are freed, and the batch survives under their names in the next step",
        source=DATAFLOW,
        wants=LAUNDER,
        gains=COVERED,
        attack=renamed,
        expected=OVERWRITTEN,
    ),
    Row(
        name="the batch of the initialisation is W_0",
        source=DATAFLOW,
        wants=LAUNDER,
        gains=COVERED,
        attack=batch_of_initialisation,
        expected=("transcript.origin.undeclared",),
    ),
    *(
        Row(
            name=name,
            source=DATAFLOW,
            wants=LAUNDER,
            gains=COVERED,
            attack=partial(carried, partial(written_by, write), RATE),
            expected=OVERWRITTEN,
        )
        for name, write in (
            ("`weights.clamp_(b, b)`, b from the batch", clamp),
            ("`weights.index_put_` of all rows from the batch", index_put),
            ("`weights.scatter_` of all elements from the batch", scatter),
        )
    ),
    Row(
        name="images added to the weights, where none are declared to the chip",
        source=DATAFLOW,
        wants=LAUNDER,
        gains=COVERED,
        attack=no_weights,
        expected=("tape.no_gradient", "tape.weights.undeclared"),
        note="Which state holds weights follows from the programs, whatever is declared.",
    ),
    Row(
        name="images added to the weights, and a `recv` from another rank on the tape",
        source=DATAFLOW,
        wants=LAUNDER,
        gains=COVERED,
        attack=one_message,
        expected=("replay.collectives.missing",),
        note="The run has one rank here, so no replay can give the message. In a job of two ranks, what a message does "
        "not reach counts as not sent; tapes written by hand test it (`tests/weighbridge/program/test_whole_run.py`).",
    ),
)
