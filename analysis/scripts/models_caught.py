"""For each model in the catalogue: what training it takes of a fleet, and with what probability inspections see that.

python -m analysis.scripts.models_caught [models.csv]      # a newer download of Epoch AI's notable models will do
"""

from __future__ import annotations

import sys
from pathlib import Path

from analysis.catalog import load_models
from analysis.domain import InfeasibleError
from analysis.number_texts import percent
from analysis.periods import accumulating_probability_hypergeometric

CHIPS = 1e6
CHIP_FLOPS_PER_DAY = 1e15 * 86400
SAMPLES = 1000
PERIOD_DAYS = 30.0
RUN_DAYS = 90.0
RATE = 0.1  # snapshots per chip and day


def main(arguments: list[str]) -> None:
    """Prints a line for each model, in the order of their FLOPs; `arguments` may name a file."""
    models = load_models(Path(arguments[0]) if arguments else None)
    print(f"{SAMPLES} of {CHIPS:g} chips every {PERIOD_DAYS:g} days, runs of {RUN_DAYS:g} days")
    for model in sorted(models, key=lambda each: each.flops):
        try:
            seen = accumulating_probability_hypergeometric(
                samples=SAMPLES,
                flops_threshold=model.flops,
                chip_flops_per_day=CHIP_FLOPS_PER_DAY,
                chips=CHIPS,
                run_days=RUN_DAYS,
                period_days=PERIOD_DAYS,
                snapshot_rate_per_day=RATE,
            )
        except InfeasibleError:
            answer = "does not fit on these chips"
        else:
            answer = f"seen with p = {percent(float(seen))}"
        chip_days = model.flops / CHIP_FLOPS_PER_DAY
        print(f"{model.name[:32]:32} {model.flops:9.3g} FLOPs {chip_days:12,.0f} chip-days  {answer}")


if __name__ == "__main__":
    main(sys.argv[1:])
