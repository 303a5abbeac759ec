"""A service's process ends when it is asked to, at whatever moment that is."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

ASKED = """
import random, signal
from weighbridge.rpc.serving import AskedToStop

signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(random.choice([signal.SIGTERM, signal.SIGINT])))
for _ in range(400):
    stop = AskedToStop()
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 3e-5))
    stop.wait()
print("always")
"""


def test_a_signal_at_any_moment_of_waiting_ends_it() -> None:
    """With a `threading.Event`, one of some hundred such signals blocks the process for ever."""
    done = subprocess.run([sys.executable, "-c", ASKED], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "always\n", done.stderr
