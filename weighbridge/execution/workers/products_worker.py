"""The process that lists a transcript's products of 16-bit matrices, confined as `replay_worker` is."""

from __future__ import annotations

from weighbridge.execution.narrow_products import MOST, largest, products_of
from weighbridge.execution.workers.serving import serve
from weighbridge.transcript.reader import Transcript


def main() -> None:
    """Answers one request."""
    serve(
        lambda request, confined, send: {
            "products": [str(each) for each in largest(products_of(Transcript.open(request["path"])), MOST)]
        },
        executes=False,
    )


if __name__ == "__main__":
    main()
