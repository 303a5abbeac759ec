"""Formulas of common optimizers and schedules, to declare in `Recorder(formulas=...)`.

A formula says how a number that changes from step to step follows from `t`, the number of the recorded training step
(1 for the first). Optimizers hand the dispatcher numbers such as `-(lr / (1 - 0.9 ** t))`: the functions below write
those down for the optimizers of `torch.optim`, given the learning rate as the formula `lr`. Combine them with `|`:

    formulas = warmup(3e-4, 100) | adamw(betas=(0.9, 0.95), weight_decay=0.1)

Where t does not count updates, pass what does: `t="floor(t / 4)"` if gradients are accumulated over four recorded
steps, or `t="host"`, the counter that PyTorch's Adam reads back itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from weighbridge.core.digests import DIGEST_SIZE
from weighbridge.core.errors import TapeError, UsageError
from weighbridge.transcript.formula_terms import Formulas

__all__ = [
    "adafactor",
    "adagrad",
    "adam",
    "adamw",
    "constant",
    "cosine",
    "cosine_annealing",
    "decay",
    "nadam",
    "sgd",
    "step_decay",
    "warmup",
]

Declared = dict[str, str]


def constant(lr: float) -> Declared:
    """Returns `lr` for a rate that never changes."""
    return {"lr": repr(float(lr))}


def warmup(lr: float, steps: int, *, t: str = "t") -> Declared:
    """Returns `lr` for `LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / steps))`."""
    return {"lr": f"{float(lr)!r} * min(1, ({t}) / {_positive(steps)})"}


def cosine(lr: float, steps: int, *, warmup: int = 0, minimum: float = 0.0, t: str = "t") -> Declared:
    """Returns `lr` for a linear warm-up and half a cosine, in closed form.

    Update t has the rate `lr * t / warmup` before t = warmup, then goes down from `lr` to `minimum` at t = steps.

    Args:
        lr: Highest rate.
        steps: Updates in all.
        warmup: Updates until the highest rate.
        minimum: Rate of the last update and of all after it.
        t: What counts updates.

    Raises:
        UsageError: The warm-up leaves no steps for the cosine.
    """
    down = (
        f"{float(minimum)!r} + ({float(lr)!r} - {float(minimum)!r}) * 0.5"
        f" * (1 + cos(pi * min(1, ({t} - {warmup}) / {_positive(steps - warmup)})))"
    )
    return {"lr": down if warmup < 1 else f"{float(lr)!r} * {t} / {warmup} if {t} < {warmup} else {down}"}


def cosine_annealing(lr: float, t_max: int, *, eta_min: float = 0.0, t: str = "t") -> Declared:
    """Returns `lr` for `CosineAnnealingLR(optimizer, t_max, eta_min)`, stepped after every update.

    PyTorch computes each rate from the one before, so that its rounding errors add up; `drift` allows for that.
    """
    half = f"0.5 * ({float(lr)!r} - {float(eta_min)!r}) * (1 + cos(pi * ({t} - 1) / {_positive(t_max)}))"
    return {"lr": f"drift({float(eta_min)!r} + {half})"}


def step_decay(lr: float, every: int, gamma: float = 0.1, *, t: str = "t") -> Declared:
    """Returns `lr` for `StepLR(optimizer, every, gamma)`, stepped after every update; `ExponentialLR` has `every=1`."""
    return {"lr": f"drift({float(lr)!r} * {float(gamma)!r} ** floor(({t} - 1) / {_positive(every)}))"}


def sgd() -> Declared:
    """Returns what `torch.optim.SGD` and `RMSprop` make of `lr`; their other numbers do not change."""
    return {"step_size": "-lr"}


def adagrad(*, lr_decay: float = 0.0, t: str = "t") -> Declared:
    """Returns what `torch.optim.Adagrad` makes of `lr`."""
    return {"step_size": f"-lr / (1 + ({t} - 1) * {float(lr_decay)!r})"}


def adam(*, betas: tuple[float, float] = (0.9, 0.999), t: str = "t", name: str = "adam") -> Declared:
    """Returns what `torch.optim.Adam` makes of `lr`: the root of the second bias correction and the size of a step.

    Args:
        betas: As given to Adam.
        t: What counts its updates.
        name: Begins the formulas' names, should there be several.
    """
    first, second = betas
    return {
        f"{name}_step": f"-(lr / (1 - {first!r} ** ({t})))",
        f"{name}_root": f"sqrt(1 - {second!r} ** ({t}))",
    }


def adamw(
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float | Sequence[float] = 0.01,
    t: str = "t",
    name: str = "adamw",
) -> Declared:
    """Returns what `torch.optim.AdamW` makes of `lr`: as `adam`, and how each parameter group decays."""
    return adam(betas=betas, t=t, name=name) | decay(weight_decay, name=f"{name}_decay")


def nadam(*, betas: tuple[float, float] = (0.9, 0.999), momentum_decay: float = 0.004, t: str = "t") -> Declared:
    """Returns what `torch.optim.NAdam` makes of `lr` and of the product of momenta, which it reads back."""
    first, second = betas
    return {
        "mu": f"{first!r} * (1 - 0.5 * 0.96 ** (({t}) * {momentum_decay!r}))",
        "mu_next": f"{first!r} * (1 - 0.5 * 0.96 ** (({t} + 1) * {momentum_decay!r}))",
        "nadam_second": f"1 - {second!r} ** ({t})",
        "nadam_gradient": "-lr * (1 - mu) / (1 - host)",
        "nadam_momentum": "-lr * mu_next / (1 - host * mu_next)",
    }


def adafactor(
    sizes: Collection[int],
    *,
    beta2_decay: float = -0.8,
    eps2: float = 1e-3,
    d: float = 1.0,
    weight_decay: float = 0.0,
    t: str = "t",
) -> Declared:
    """Returns what `torch.optim.Adafactor` makes of `lr` and of the norms that it reads back.

    Args:
        sizes: How many elements the parameters have; each size once is enough.
        beta2_decay: As given to Adafactor.
        eps2: The second of its `eps`.
        d: As given to Adafactor.
        weight_decay: As given to Adafactor.
        t: What counts its updates.
    """
    formulas = {"rho": f"min(lr, 1 / sqrt({t}))", "adafactor_decay": f"({t}) ** {beta2_decay!r}"}
    for size in sorted(set(sizes)):
        scaled = f"max({eps2!r}, host / sqrt({size})) * rho"
        formulas[f"adafactor_{size}"] = f"-({scaled}) / max(1, host1 / (sqrt({size}) * {d!r}))"
    return formulas | decay(weight_decay)


def decay(weight_decay: float | Sequence[float], *, name: str = "decay") -> Declared:
    """Returns by what decoupled weight decay multiplies the weights, for each parameter group with another one."""
    several = [weight_decay] if isinstance(weight_decay, (int, float)) else list(weight_decay)
    return {f"{name}{i or ''}": f"1 - lr * {float(each)!r}" for i, each in enumerate(several) if each}


def declaration(formulas: Mapping[str, str], programs: Iterable[bytes] | None) -> dict[str, Any]:
    """Returns what a draft says of formulas and programs.

    Args:
        formulas: Name to text, each using only earlier names.
        programs: Digests of the tapes that may run (32 bytes each); None if any may.

    Raises:
        UsageError: A formula is not in the language, or a digest is none.
    """
    try:
        declared: dict[str, Any] = {"formulas": Formulas.parse(formulas).to_list()}
    except TapeError as error:
        raise UsageError(error.message) from None
    if programs is not None:
        wanted = list(programs)
        declared["programs"] = sorted({digest for digest in wanted if type(digest) is bytes})
        if not all(type(digest) is bytes and len(digest) == DIGEST_SIZE for digest in wanted):
            raise UsageError(
                "programs are digests of tapes, 32 bytes each; take a rehearsal: Transcript.open(RUN).programs()"
            )
    return declared


def _positive(number: int) -> int:
    if number < 1:
        raise UsageError(f"a schedule needs a positive number of steps, not {number}")
    return number
