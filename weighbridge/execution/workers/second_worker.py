"""Replays a transcript with the second Executor in a worker process (`workers.serving`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weighbridge.execution.second import backend
from weighbridge.execution.second.replay import replay
from weighbridge.execution.workers.serving import serve


def answer(request: dict[str, Any], confined: list[str], send: Any) -> dict[str, Any]:
    """Answers one request."""
    steps = None if request["steps"] is None else (int(request["steps"][0]), int(request["steps"][1]))
    result = replay(
        Path(request["path"]), steps=steps, memory=int(request["memory"]),
        progress=lambda done, total: send({"progress": [done, total]}),
    )  # fmt: skip
    result.confinement = confined
    return result.to_json()


def main() -> None:
    """Answers one request for a replay."""
    backend.start()  # before files are out of reach
    serve(answer, executes=False)


if __name__ == "__main__":
    main()
