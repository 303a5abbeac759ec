"""One hostile certificate that floods a Verifier: `python -m benchmarks.flood_attacks --address A --credentials D ...`.

Each attack runs in a thread of its own with connections of its own, all at once, until the time is over. What each
tried is printed at the end, as JSON.
"""

from __future__ import annotations

import argparse
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos.weighbridge.v1 import verifier_pb2, verifier_pb2_grpc, witness_pb2, witness_pb2_grpc
from weighbridge.attest.identity import Credentials
from weighbridge.rpc import endpoints

AT_ONCE = 64
"""Calls that an attack keeps open on its connection."""

SERVICE = "/weighbridge.v1.WitnessService/"
MIB = bytes(1 << 20)


class Attacker:
    """A certificate, the address of its victim, and what it has tried so far.

    Attributes:
        tried: Calls by attack and, where they have ended, status.
    """

    def __init__(self, address: str, credentials: Credentials, seconds: float, victim: bytes, own: bytes) -> None:
        """Attacks for some seconds from now; `victim` and `own` are UEIDs of registered chips."""
        self.address, self.credentials, self.victim, self.own = address, credentials, victim, own
        self.end = time.monotonic() + seconds
        self.tried: Counter[str] = Counter()

    def left(self) -> float:
        """Returns the seconds until the end."""
        return self.end - time.monotonic()

    def keep_open(self, channel: grpc.Channel, begin: Callable[[grpc.Channel], Any], name: str) -> None:
        """Keeps as many calls open as gRPC lets one connection have, and begins another whenever one ends."""
        calls: list[Any] = []
        while self.left() > 0:
            ended = [call for call in calls if call.done()]
            for call in ended:
                self.tried[f"{name} {call.code().name}"] += 1
            calls = [call for call in calls if not call.done()]
            calls += [begin(channel) for _ in range(AT_ONCE - len(calls))]
            time.sleep(0.01)
        for call in calls:
            call.cancel()

    def slowly(self, begin: Callable[[Iterator[Any]], Any], piece: Any, pause_s: float) -> Any:
        """Begins a call that sends a message again and again, with pauses."""
        over = threading.Event()  # or else the thread that gRPC has for each stream would outlive its call

        def pieces() -> Iterator[Any]:
            while self.left() > 0 and not over.is_set():
                yield piece
                over.wait(pause_s)

        return _until_over(begin(pieces()), over)

    def silently(self, begin: Callable[[Iterator[Any]], Any]) -> Any:
        """Begins a call that sends nothing."""
        over = threading.Event()

        def nothing() -> Iterator[bytes]:
            over.wait(max(0.0, self.left()))
            yield from ()

        return _until_over(begin(nothing()), over)


def _until_over(call: Any, over: threading.Event) -> Any:
    if not call.add_callback(over.set):
        over.set()
    return call


def _witness(channel: grpc.Channel) -> Any:
    return witness_pb2_grpc.WitnessServiceStub(channel)  # type: ignore[no-untyped-call]


def watch_health(me: Attacker, channel: grpc.Channel) -> None:
    """Watches the health of the service."""
    me.keep_open(channel, lambda c: health_pb2_grpc.HealthStub(c).Watch(health_pb2.HealthCheckRequest()), "watch")


def reflect(me: Attacker, channel: grpc.Channel) -> None:
    """Opens streams of the reflection service, and says nothing."""

    def begin(channel: grpc.Channel) -> Any:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        wanted = reflection_pb2.ServerReflectionRequest(list_services="")
        return me.slowly(lambda pieces: stub.ServerReflectionInfo(pieces, timeout=600), wanted, 5)

    me.keep_open(channel, begin, "reflection")


def silent_calls(me: Attacker, channel: grpc.Channel) -> None:
    """Begins calls whose message never comes."""
    method = channel.stream_unary(SERVICE + "GetWitnessed")
    me.keep_open(channel, lambda _: me.silently(lambda it: method.future(it, timeout=600)), "silent call")


def steal_nonces(me: Attacker, channel: grpc.Channel) -> None:
    """Asks for nonces of the victim's chip as fast as it can."""
    request = witness_pb2.GetWitnessedRequest(ueid=me.victim)
    me.keep_open(channel, lambda c: _witness(c).GetWitnessed.future(request, timeout=60), "nonce of victim")


def use_up_nonces(me: Attacker, channel: grpc.Channel) -> None:
    """Reports for the victim's chip by nonces of its own, to have what its witness awaits voided."""
    request = witness_pb2.GetWitnessedRequest(ueid=me.own)

    def begin(channel: grpc.Channel) -> Any:
        try:
            nonce = bytes(_witness(channel).GetWitnessed(request, timeout=5).nonce)
        except grpc.RpcError:
            nonce = secrets.token_bytes(32)
        report = witness_pb2.AddCheckpointRequest(ueid=me.victim, checkpoint=nonce, token=nonce)
        return _witness(channel).AddCheckpoint.future(iter([report]), timeout=60)

    me.keep_open(channel, begin, "report of victim")


def own_nonces(me: Attacker, channel: grpc.Channel) -> None:
    """Asks for nonces of its own chip, which is registered."""
    request = witness_pb2.GetWitnessedRequest(ueid=me.own)
    me.keep_open(channel, lambda c: _witness(c).GetWitnessed.future(request, timeout=60), "nonce of own")


def fill_memory(me: Attacker, channel: grpc.Channel) -> None:
    """Reports entries without end: of the victim, of a chip that nobody knows, and of its own."""

    def report(ueid: bytes) -> Iterator[witness_pb2.AddCheckpointRequest]:
        yield witness_pb2.AddCheckpointRequest(ueid=ueid, checkpoint=b"x", token=b"y")
        while me.left() > 0:
            yield witness_pb2.AddCheckpointRequest(entries=[MIB])

    def begin(channel: grpc.Channel) -> Any:
        ueid = secrets.choice([me.victim, me.own, secrets.token_bytes(17)])
        return _witness(channel).AddCheckpoint.future(report(ueid), timeout=600)

    me.keep_open(channel, begin, "report")


def trickle(me: Attacker, channel: grpc.Channel) -> None:
    """Reports a few bytes every second."""
    piece = witness_pb2.AddCheckpointRequest(proof=[bytes(32)])

    def begin(channel: grpc.Channel) -> Any:
        return me.slowly(lambda pieces: _witness(channel).AddCheckpoint.future(pieces, timeout=600), piece, 1)

    me.keep_open(channel, begin, "trickle")


def faulty_requests(me: Attacker, channel: grpc.Channel) -> None:
    """Sends the largest requests that break a rule in every part."""
    data = witness_pb2.AddCheckpointRequest(proof=[b""] * 600_000).SerializeToString()
    method = channel.stream_unary(SERVICE + "AddCheckpoint")
    me.keep_open(channel, lambda _: method.future(iter([data]), timeout=60), "faulty request")


def cancel_at_once(me: Attacker, channel: grpc.Channel) -> None:
    """Begins calls and cancels them."""
    request = witness_pb2.GetWitnessedRequest(ueid=me.own)
    while me.left() > 0:
        for _ in range(AT_ONCE):
            _witness(channel).GetWitnessed.future(request, timeout=60).cancel()
            me.tried["cancelled at once"] += 1
        time.sleep(0.02)


def connect_often(me: Attacker, channel: grpc.Channel) -> None:
    """Opens connection after connection, with too large metadata on each, and keeps the last hundred."""
    kept: list[grpc.Channel] = []
    secure = grpc.ssl_channel_credentials(me.credentials.authority, me.credentials.key, me.credentials.certificate)
    while me.left() > 0:
        options = [("grpc.ssl_target_name_override", "verifier.role.weighbridge.internal"),
                   ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]  # fmt: skip
        kept.append(grpc.secure_channel(me.address, secure, options=options))
        with suppress(grpc.RpcError):
            request = witness_pb2.GetWitnessedRequest(ueid=me.own)
            _witness(kept[-1]).GetWitnessed(request, timeout=5, metadata=[("x", "y" * 20_000)])
        me.tried["connection"] += 1
        if len(kept) > 100:
            kept.pop(0).close()
    for each in kept:
        each.close()


def fill_disk(me: Attacker, channel: grpc.Channel) -> None:
    """Uploads manifests that are none, under ever new names."""

    def upload() -> Iterator[verifier_pb2.UploadTranscriptRequest]:
        name = secrets.token_hex(32)
        header = verifier_pb2.UploadHeader(id=name, path="manifest.json", size=64 << 20)
        yield verifier_pb2.UploadTranscriptRequest(file=header)
        while me.left() > 0:
            yield verifier_pb2.UploadTranscriptRequest(data=MIB)

    stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
    me.keep_open(channel, lambda _: stub.UploadTranscript.future(upload(), timeout=600), "upload")


def ask_uploads(me: Attacker, channel: grpc.Channel) -> None:
    """Asks for the state of uploads that are not there."""

    def begin(channel: grpc.Channel) -> Any:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        return stub.UploadStatus(verifier_pb2.UploadStatusRequest(id=secrets.token_hex(32)), timeout=60)

    me.keep_open(channel, begin, "upload status")


Attack = Callable[[Attacker, grpc.Channel], None]
COMMON: tuple[Attack, ...] = (watch_health, reflect, silent_calls, cancel_at_once, connect_often)
ATTACKS: dict[str, tuple[Attack, ...]] = {
    "chip": (*COMMON, steal_nonces, use_up_nonces, own_nonces, fill_memory, trickle, faulty_requests),
    "prover": (*COMMON, fill_disk, ask_uploads, steal_nonces),
}
"""What a certificate of each role may hope for; calls that its role may not make are tried, too."""


def flood(me: Attacker, attacks: Iterable[Attack]) -> None:
    """Runs attacks beside each other until the time is over."""

    def run(attack: Attack) -> None:
        with endpoints.channel(me.address, me.credentials, "verifier") as channel:
            attack(me, channel)

    threads = [threading.Thread(target=run, args=(attack,), daemon=True) for attack in attacks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, me.left()) + 10)


def main() -> None:
    """Attacks as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--credentials", type=Path, required=True)
    parser.add_argument("--role", choices=sorted(ATTACKS), required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--victim", type=bytes.fromhex, required=True)
    parser.add_argument("--own", type=bytes.fromhex, required=True)
    parser.add_argument("--only", nargs="*", default=(), help="names of attacks; by default all of the role")
    options = parser.parse_args()
    credentials = Credentials.load(options.credentials)
    me = Attacker(options.address, credentials, options.seconds, options.victim, options.own)
    flood(me, [each for each in ATTACKS[options.role] if not options.only or each.__name__ in options.only])
    print(json.dumps(dict(sorted(me.tried.items()))), flush=True)


if __name__ == "__main__":
    main()
