"""A real chip whose power is taken away at random moments: nothing that it acknowledged is ever lost.

`make soak` does the same 200 times (benchmarks/soak_chip.py).
"""

import random
from pathlib import Path

from benchmarks.soak_chip import Acknowledged, Rig, kill_once

KILLS = 20


def test_what_was_acknowledged_survives_power_cuts(tmp_path: Path) -> None:
    rig, known, choose = Rig(tmp_path), Acknowledged(), random.Random()
    with rig.both_modes() as chips:
        for number in range(KILLS):
            running, then = chips[number % 2], chips[(number + 1) % 2]
            assert kill_once(rig, known, running, choose.uniform(0.0, 0.3), then) == ""
    assert known.sizes[-1][0] > KILLS
    assert rig.witness.held(rig.ueid).size > 0
    assert rig.witness.refused(rig.ueid) == []
