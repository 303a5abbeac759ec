"""Attribute sampling of any population, as nuclear safeguards do it: the exact sample size beside approximations.

Population N, of which d or more items are defective; the sample must contain at least one defect with probability p.
The exact size is hypergeometric. The IAEA's planning formula is n = N (1 - (1 - p)^(1/d)); a refinement of it replaces
N by N - (d - 1)/2. Binomial sampling is with replacement. Detection probabilities of 90 % ("high") and 20 % ("low") are
the IAEA's usual levels.
"""

from __future__ import annotations

import numpy as np

from analysis.domain import FloatArray, Numbers, plain, refuse, share, together, whole
from analysis.domain import probability as checked_probability
from analysis.hypergeometric import least_drawn


def _checked(population: Numbers, defects: Numbers, probability: Numbers) -> list[FloatArray]:
    total, bad, wanted = together(
        whole("population", population, 1),
        whole("defects", defects, 1),
        checked_probability("probability", probability),
    )
    refuse(bad > total, bad, lambda v: f"{float(v):.0f} defects cannot be among fewer items; lower defects")
    return [total, bad, wanted]


def _rounded_up(size: FloatArray, population: FloatArray) -> FloatArray:
    # A size that exceeds a whole number by rounding errors only is that number.
    return plain(np.clip(np.ceil(size * (1 - 16 * np.finfo(float).eps)), 1.0, population))


def sample_size_exact(
    *, population: Numbers, defects: Numbers, probability: Numbers, identified: Numbers = 1.0
) -> FloatArray:
    """Returns the smallest sample, without replacement, that shows a defect with probability `probability`.

    Args:
        population: Number of items (N), whole.
        defects: Number of defective items (d), whole, 1 to `population`.
        probability: Wanted detection probability (p), between 0 and 1.
        identified: Probability that a sampled defect is recognised, 0 to 1.

    Returns:
        Whole numbers as float64, in the broadcast shape.

    Raises:
        DetectionDomainError: An argument is out of range, or sampling everything is not enough.
    """
    total, bad, wanted = _checked(population, defects, probability)
    return least_drawn(population=total, marked=bad, shown=identified, wanted=wanted)


def sample_size_iaea(*, population: Numbers, defects: Numbers, probability: Numbers) -> FloatArray:
    """Returns N (1 - (1 - p)^(1/d)), rounded up: the IAEA's planning formula, never below the exact size.

    Arguments and errors as `sample_size_exact`.
    """
    total, bad, wanted = _checked(population, defects, probability)
    return _rounded_up(-total * np.expm1(np.log1p(-wanted) / bad), total)


def sample_size_iaea_refined(*, population: Numbers, defects: Numbers, probability: Numbers) -> FloatArray:
    """Returns (N - (d - 1)/2) (1 - (1 - p)^(1/d)), rounded up.

    Arguments and errors as `sample_size_exact`.
    """
    total, bad, wanted = _checked(population, defects, probability)
    return _rounded_up(-(total - (bad - 1) / 2) * np.expm1(np.log1p(-wanted) / bad), total)


def sample_size_binomial(
    *, population: Numbers, defects: Numbers, probability: Numbers, identified: Numbers = 1.0
) -> FloatArray:
    """Returns log(1 - p) / log(1 - d/N identified), rounded up: sampling with replacement; it may exceed N.

    Arguments and errors as `sample_size_exact`.
    """
    total, bad, wanted = _checked(population, defects, probability)
    total, bad, wanted, seen = together(total, bad, wanted, share("identified", identified))
    refuse(seen == 0, seen, lambda v: f"identified must be above 0, not {v}: no sample would show a defect")
    with np.errstate(divide="ignore"):
        size = np.log1p(-wanted) / np.log1p(-bad / total * seen)
    return _rounded_up(size, np.full(total.shape, np.inf))
