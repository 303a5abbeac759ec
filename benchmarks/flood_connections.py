"""What one certificate gets by opening connections: `python -m benchmarks.flood_connections`.

A Verifier runs as a process. A hostile Prover opens connections to it, completes each handshake, and calls nothing. At
several counts the Verifier's memory is read, and an operator lists chips over a connection that stood before, and over
a new one. gRPC for Python counts connections of all callers together and tells nothing of those without a call, so
there is no share for each certificate.
"""

from __future__ import annotations

import json
import socket
import ssl
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.soak_flood import Site
from protos.weighbridge.v1 import verifier_pb2, verifier_pb2_grpc
from weighbridge.attest.peers import role_domain
from weighbridge.core.errors import WeighbridgeError
from weighbridge.rpc import endpoints

COUNTS = (0, 1000, 2000, 4000, endpoints.MAX_CONNECTIONS + 100)
REFUSALS = 20
"""Connections that are refused in a row until the attacker has all that it can have."""

DEADLINE_S = 10.0
_BEGIN = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]) + bytes([0, 0, 0, 4, 1, 0, 0, 0, 0])
"""What an HTTP/2 client says first: its preface, no settings, and that it takes the server's."""


class Hoarder:
    """Opens connections and keeps them.

    Attributes:
        held: Those that stand, or stood until the server closed them.
    """

    def __init__(self, address: str, credentials: Path) -> None:
        """Takes the credentials in a directory."""
        host, _, port = address.rpartition(":")
        self._at = host, int(port)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.load_verify_locations(credentials / "authority.pem")
        self._context.load_cert_chain(credentials / "certificate.pem", credentials / "key.pem")
        self._context.set_alpn_protocols(["h2"])
        self.held: list[ssl.SSLSocket] = []

    def until(self, count: int) -> None:
        """Opens connections up to a count, or until no more are taken."""
        refused = 0
        while len(self.held) < count and refused < REFUSALS:
            try:
                raw = socket.create_connection(self._at, timeout=DEADLINE_S)
                secure = self._context.wrap_socket(raw, server_hostname=role_domain("verifier"))
                secure.sendall(_BEGIN)
            except OSError:
                refused += 1
            else:
                self.held.append(secure)

    def close(self) -> None:
        """Closes all of them."""
        for each in self.held:
            each.close()


def answered(channel: Any) -> str:
    """Lists the chips, as the operator; returns how long it took, or that it failed."""
    begun = time.monotonic()
    stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
    try:
        endpoints.call(stub.ListChips, verifier_pb2.ListChipsRequest(), deadline_s=DEADLINE_S)
    except WeighbridgeError as error:
        return error.reason
    return f"{1e3 * (time.monotonic() - begun):.0f} ms"


def measure(path: Path, counts: tuple[int, ...] = COUNTS) -> list[dict[str, Any]]:
    """Returns, for each count of connections, what was measured."""
    with ExitStack() as stack:
        site = Site(path, stack)
        standing = stack.enter_context(endpoints.channel(site.address, site.operator, "verifier"))
        answered(standing)
        hoarder, begun, rows = Hoarder(site.address, path / "hostile-prover"), time.monotonic(), []
        stack.callback(hoarder.close)
        for count in counts:
            hoarder.until(count)
            with endpoints.channel(site.address, site.operator, "verifier") as fresh:
                rows.append({
                    "connections": len(hoarder.held),
                    "seconds": round(time.monotonic() - begun, 1),
                    "resident_mib": site.resident_mib(),
                    "standing": answered(standing),
                    "fresh": answered(fresh),
                })  # fmt: skip
        return rows


def main() -> None:
    """Measures, and prints a line for each count."""
    with tempfile.TemporaryDirectory() as name:
        for row in measure(Path(name)):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
