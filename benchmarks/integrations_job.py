"""Runs an example's `main` and says how long it took: `python -m benchmarks.integrations_job SCRIPT OUT`.

Imports are not in the time. The last line is JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from pathlib import Path

import torch


def main() -> None:
    """Runs one script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("script", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    specification = importlib.util.spec_from_file_location("example", options.script)
    if specification is None or specification.loader is None:
        raise SystemExit(f"there is no script {options.script}")
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    torch.ones(2, 2) @ torch.ones(2, 2)  # what the first operation of a process loads
    begin = time.perf_counter()
    example.main(options.out)
    told = json.dumps({"seconds": time.perf_counter() - begin})
    print(f"\n{told}\n", end="", flush=True)  # at once, since other ranks may print too


if __name__ == "__main__":
    main()
