"""A network that breaks or is slow: connections that are cut after so many bytes, and that bring so many a second."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def breaking(
    address: str, budgets: list[int], *, upwards: bool = False, per_s: float | None = None
) -> Iterator[tuple[str, list[int]]]:
    """Forwards to an address; cuts each connection after so many bytes to the client, later ones never.

    Args:
        address: The server's.
        budgets: Of each connection, in bytes; used up as they come.
        upwards: Whether bytes to the server are meant instead.
        per_s: Bytes that it brings a second in either direction; by default it is as fast as it can be.

    Yields:
        Where to connect to, and what each cut connection had sent.
    """
    host, _, port = address.rpartition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    cut: list[int] = []

    def forward(source: socket.socket, target: socket.socket, budget: int | None) -> None:
        sent = 0
        with suppress(OSError):
            while data := source.recv(1 << 14):
                time.sleep(0 if per_s is None else len(data) / per_s)
                target.sendall(data)
                sent += len(data)
                if budget is not None and sent >= budget:
                    cut.append(sent)
                    break
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection((host, int(port)))
                budget = budgets.pop(0) if budgets else None
                up, down = (budget, None) if upwards else (None, budget)
                threading.Thread(target=forward, args=(client, server, up), daemon=True).start()
                threading.Thread(target=forward, args=(server, client, down), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", cut
    finally:
        listener.close()
