"""How many chips to inspect every month, for fleets of several sizes and rates of snapshots. Copy it, change the top.

python -m analysis.scripts.samples_for_a_fleet
"""

from __future__ import annotations

import numpy as np

from analysis.catalog import load_chips, load_models, named
from analysis.periods import accumulating_samples_hypergeometric

MODEL = "Chinchilla"  # a violation as large as its training; see analysis/data/models.csv
CHIP = "NVIDIA H100 SXM5 80GB"  # see analysis/data/chips.csv
CHIPS = np.array([1e4, 1e5, 1e6, 1e7])
RATES = np.array([0.01, 0.1, 1.0])  # snapshots per chip and day
PROBABILITY = 0.9
RUN_DAYS = 30.0
PERIOD_DAYS = 30.0


def main() -> None:
    """Prints the table."""
    flops = named(load_models(), MODEL).flops
    speed = named(load_chips(), CHIP).flops_per_second
    needed = accumulating_samples_hypergeometric(
        probability=PROBABILITY,
        flops_threshold=flops,
        chip_flops_per_day=speed * 86400,
        chips=CHIPS[:, None],
        run_days=RUN_DAYS,
        period_days=PERIOD_DAYS,
        snapshot_rate_per_day=RATES[None, :],
    )
    print(f"samples every {PERIOD_DAYS:g} days to see {flops:g} FLOPs in {RUN_DAYS:g} days with p = {PROBABILITY:g}")
    print(f"{'chips':>12}" + "".join(f"{f'f = {rate:g}':>12}" for rate in RATES))
    for chips, row in zip(CHIPS, needed, strict=True):
        print(f"{chips:12,.0f}" + "".join(f"{count:12,.0f}" for count in row))


if __name__ == "__main__":
    main()
