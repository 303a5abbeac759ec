"""Benchmarks: scripts that measure, and the committed results of their runs.

They share helpers with the tests (`support`), so `tests` is put on the path here; for tests, pytest does it.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))
