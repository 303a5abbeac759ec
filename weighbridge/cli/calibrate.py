"""`weighbridge calibrate`: measure the calibrated bounds of this machine's device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from weighbridge.cli._exits import one_line, print_json
from weighbridge.cli._inputs import Json, write_file
from weighbridge.core.errors import UsageError


def command(
    out: Annotated[Path, typer.Option("--out", help="Table to write, a .json file.")],
    device: Annotated[str, typer.Option(help="Device to measure: cpu, cuda, cuda:1.")] = "cpu",
    only: Annotated[
        list[str] | None, typer.Option(help="Only this training; may be repeated. A wrong name prints all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure how far this device's float32 kernels are off, and write a table of calibrated bounds for it.

    Recordings on such a device use the table if it lies in the directory that WEIGHBRIDGE_CALIBRATIONS names; so must
    replays of them, wherever they run.
    """
    import torch

    from weighbridge.cli.gpu_evidence.commands import progress_bar
    from weighbridge.cli.gpu_evidence.making import measure, software
    from weighbridge.cli.gpu_evidence.measured_trainings import TRAININGS
    from weighbridge.cli.gpu_evidence.places import CPU, PLAIN, Place
    from weighbridge.cli.replay import require_device
    from weighbridge.numerics.conformance import calibration_tables
    from weighbridge.numerics.conformance.bound_policy import calibrated
    from weighbridge.numerics.conformance.device_kind import device_model
    from weighbridge.numerics.measured_errors import SAFETY

    require_device(device)
    if out.suffix != ".json":
        raise UsageError(f"{out} would not be found as a table; name a file that ends with .json")
    unknown = [name for name in only or () if name not in TRAININGS]
    if unknown:
        raise UsageError(f"--only takes {', '.join(TRAININGS)}, not {unknown[0]!r}")
    places = [CPU, PLAIN] if device == "cpu" else [Place(device, device)]
    found: dict[str, dict[str, float]] = {}
    with progress_bar(quiet=as_json) as progress:
        for place in places:
            task = {"task": "errors", "device": place.device, "trainings": only or list(TRAININGS)}
            for name, each in measure(place, [task], progress)[0].items():
                known = found.setdefault(name, {"ratio": 0.0, "elements": 0})
                known["ratio"] = max(known["ratio"], each["ratio"])
                known["elements"] += each["elements"]
    table = {
        "about": "Largest observed |float32 - float64| over bound per operation, and that times the safety factor.",
        "device": device_model(device),
        "software": software(),
        "settings": [place.name for place in places],
        "threads": torch.get_num_threads(),
        "safety": SAFETY,
        "operations": {
            name: {"factor": float(f"{SAFETY * each['ratio']:.3g}"), **each}
            for name, each in sorted(found.items())
            if each["ratio"] > 0
        },
    }
    made = calibration_tables.parse(table)
    write_file(out, (json.dumps(table, indent=1) + "\n").encode())
    committed = calibration_tables.committed()
    elsewhere = calibrated(committed)
    wider = [name for name, factor in made.factors.items() if factor > elsewhere.factor(name)]
    if as_json:
        print_json({"file": str(out), "digest": made.digest, "device": made.device, "wider": wider})
        return
    print(one_line(f"{out}: {len(made.factors)} operations of {made.device}, table {made.digest[:16]}"))
    print(one_line(f"wider than the committed table ({committed.device}): {', '.join(wider) or 'none'}"))
