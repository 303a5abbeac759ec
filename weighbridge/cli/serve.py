"""`weighbridge serve ...`: run a Prover's or a Verifier's service in the foreground until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from weighbridge.cli._exits import print_json
from weighbridge.cli._grouped import GroupedCommand
from weighbridge.cli._inputs import read_file
from weighbridge.core import secret_files
from weighbridge.rpc import serving
from weighbridge.rpc.guards import CallLimits

app = typer.Typer(help="Services: a Prover's, a Verifier's.", no_args_is_help=True)

_CALLS = CallLimits()


def _option(group: str, help_: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help_, rich_help_panel=group, **more)


_LISTENING, _CALLERS = "Listening", "Limits of each caller's certificate"
_CHIPS, _EVIDENCE, _WITNESS, _REPLAYS = "Limits of chips' options", "Rules and reports", "Witness and draws", "Replays"
_CACHE = "Cache of transcripts"

_Address = Annotated[str, _option(_LISTENING, "host:port to listen at; port 0 picks a free one.")]
_AddressFile = Annotated[Path | None, _option(_LISTENING, "Write the address here once the service answers.")]
_Metrics = Annotated[str | None, _option(_LISTENING, "host:port for Prometheus metrics over plain HTTP.")]
_CallsPerSecond = Annotated[float, _option(_CALLERS, "Calls a second.")]
_Burst = Annotated[float, _option(_CALLERS, "Calls at once after a rest.")]
_Streams = Annotated[int, _option(_CALLERS, "Streaming calls open at the same time.")]
_Concurrent = Annotated[int, _option(_CALLERS, "Calls served at the same time; others of it wait.")]
_RequestMemory = Annotated[int, _option(_CALLERS, "MiB of requests in memory, of all callers; each a quarter.")]
_IdleSeconds = Annotated[float, _option(_CALLERS, "Time that a stream may wait for its client.")]
_Json = Annotated[bool, _option(_LISTENING, "Print the address as a JSON object.", "--json")]


@app.command(cls=GroupedCommand)
def prover(
    runs: Annotated[Path, typer.Option(help="Directory with the transcripts.")],
    credentials: Annotated[Path, typer.Option(help="Directory of the Prover's role certificate.")],
    device: Annotated[str, typer.Option(help="Device to replay jobs on when a Verifier asks for a cell.")] = "cpu",
    regenerations: Annotated[
        int, typer.Option(help="Processes that may make rounding logs on demand at a time.", min=1)
    ] = 1,
    key: Annotated[
        Path | None, typer.Option(help="Key file that signs these logs of recordings that keep none beside them.")
    ] = None,
    trees: Annotated[
        bool, typer.Option("--trees", help="Sign the root of each step's tree with these logs, for disputes.")
    ] = False,
    address: _Address = "127.0.0.1:0",
    address_file: _AddressFile = None,
    metrics: _Metrics = None,
    as_json: _Json = False,
    calls_per_second: _CallsPerSecond = _CALLS.rate_per_s,
    burst: _Burst = _CALLS.burst,
    streams: _Streams = _CALLS.streams,
    concurrent_calls: _Concurrent = _CALLS.calls,
    request_memory: _RequestMemory = _CALLS.memory >> 20,
    idle_seconds: _IdleSeconds = _CALLS.idle_s,
) -> None:
    """Serve transcripts to Verifiers: explain snapshots, hand out files, open records and collectives, make logs."""
    from prover.service import serve
    from weighbridge.attest.identity import Credentials
    from weighbridge.rpc.metrics import Metrics, shown

    logging.basicConfig(level=logging.WARNING)
    secret_files.keep_to_owner()
    stop, counted = serving.AskedToStop(), Metrics()
    calls = CallLimits(
        rate_per_s=calls_per_second, burst=burst, streams=streams, calls=concurrent_calls, idle_s=idle_seconds,
        memory=request_memory << 20,
    )  # fmt: skip
    with shown(counted, metrics):
        service = serve(
            runs, Credentials.load(credentials), address, device, limits=calls, metrics=counted,
            regenerations=regenerations, key=key, trees=trees,
        )  # fmt: skip
        until_stopped("Prover", service, stop, address_file, as_json)


@app.command(cls=GroupedCommand)
def verifier(
    db: Annotated[str, typer.Option(help="The registry: an SQLite file, made if missing, or a database's URL.")],
    cache: Annotated[Path, typer.Option(help="Directory for fetched transcripts.")],
    credentials: Annotated[Path, typer.Option(help="Directory of the Verifier's role certificate.")],
    manufacturer: Annotated[Path, typer.Option(help="PEM file of the chip manufacturer's root.")],
    firmware: Annotated[list[Path], typer.Option(help="Firmware image that chips may run; repeatable.")],
    minimal_svn: Annotated[int, typer.Option(help="Lowest security version number that is trusted.")] = 0,
    max_hold: Annotated[
        int, _option(_CHIPS, "Kernels that an interrupt of a chip may wait for a safepoint.", min=0)
    ] = 4096,
    max_clock_speed: Annotated[
        float, _option(_CHIPS, "Seconds of a chip's clock per second; above 1 for simulated chips only.", min=1)
    ] = 1.0,
    allow_forced: Annotated[
        bool, _option(_CHIPS, "Accept chips whose workload may ask for interrupts: in tests.", "--allow-forced")
    ] = False,
    clock_slack: Annotated[
        float, _option(_CHIPS, "Seconds that a chip's clock may lose on the Verifier's.", min=0)
    ] = 60.0,
    max_unproven: Annotated[
        float,
        _option(_CHIPS, "Share of the period that no two contacts of one boot need enclose.", min=0, max=1),
    ] = 1.0,
    rule_set: Annotated[Path | None, _option(_EVIDENCE, "Signed rule set that inspections apply.")] = None,
    parties: Annotated[Path | None, _option(_EVIDENCE, "TOML file with the keys of the parties that sign it.")] = None,
    policy: Annotated[Path | None, _option(_EVIDENCE, "TOML file with severities and the ledger's settings.")] = None,
    benchmarks: Annotated[Path | None, _option(_EVIDENCE, "Directory with the files of the benchmarks.")] = None,
    criteria: Annotated[
        Path | None, _option(_EVIDENCE, "Secret criteria, written by `weighbridge inspect criteria`.")
    ] = None,
    witness_key: Annotated[
        Path | None, _option(_WITNESS, "The witness's key, made if missing; by default beside --db.")
    ] = None,
    beacon: Annotated[
        Path | None,
        _option(_WITNESS, "Directory with a beacon's info and public/<round>, e.g. drand's; by default its own."),
    ] = None,
    replay_devices: Annotated[
        str, _option(_REPLAYS, "Devices, one replay at a time on each, e.g. cpu,cpu or cuda:*.")
    ] = "",
    replay_memory: Annotated[int, _option(_REPLAYS, "GiB that one replay may use.", min=1, max=1 << 20)] = 16,
    replay_seconds: Annotated[int, _option(_REPLAYS, "Time that one replay may take.", min=1, max=1 << 30)] = 6 * 3600,
    farm: Annotated[str, _option(_REPLAYS, "Where: local, ray (on this machine), ray:HOST:PORT.")] = "local",
    trust_ray_network: Annotated[
        bool,
        _option(_REPLAYS, "Use a Ray without tokens that other machines may reach.", "--trust-ray-network"),
    ] = False,
    cache_bytes: Annotated[
        int, _option(_CACHE, "Bytes of fetched transcripts to keep; the longest unused are removed.", min=1)
    ] = 1 << 40,
    cache_reserve: Annotated[
        int, _option(_CACHE, "Bytes to leave free on that disk; nothing is fetched below.", min=0)
    ] = 1 << 30,
    upload_gib: Annotated[int, _option("Uploads", "GiB that each Prover may upload and keep here.")] = 1024,
    upload_files: Annotated[int, _option("Uploads", "Files that each Prover may keep here.")] = 1_000_000,
    address: _Address = "127.0.0.1:0",
    address_file: _AddressFile = None,
    metrics: _Metrics = None,
    as_json: _Json = False,
    calls_per_second: _CallsPerSecond = _CALLS.rate_per_s,
    burst: _Burst = _CALLS.burst,
    streams: _Streams = _CALLS.streams,
    concurrent_calls: _Concurrent = _CALLS.calls,
    request_memory: _RequestMemory = _CALLS.memory >> 20,
    idle_seconds: _IdleSeconds = _CALLS.idle_s,
) -> None:
    """Run a Verifier: it keeps the registry, runs inspections, and hands out reports."""
    from verifier.contact.uploads import Quota
    from verifier.farm.ray_farm import chosen
    from verifier.model.reference_values import ChipLimits, FirmwarePolicy
    from verifier.model.segments import Secret
    from verifier.report import regime
    from verifier.service import serve
    from verifier.store.cache_room import Budget
    from weighbridge.attest.certificates import load_certificate
    from weighbridge.attest.identity import Credentials
    from weighbridge.execution.worker_process import Limits
    from weighbridge.rpc.metrics import Metrics, shown

    logging.basicConfig(level=logging.WARNING)
    secret_files.keep_to_owner()
    stop, counted = serving.AskedToStop(), Metrics()
    own, root = Credentials.load(credentials), load_certificate(read_file(manufacturer))
    calls = CallLimits(
        rate_per_s=calls_per_second, burst=burst, streams=streams, calls=concurrent_calls, idle_s=idle_seconds,
        memory=request_memory << 20,
    )  # fmt: skip
    allowed = ChipLimits(
        hold=max_hold,
        clock_speed=max_clock_speed,
        forced=allow_forced,
        clock_slack_s=clock_slack,
        unproven_share=max_unproven,
    )
    with shown(counted, metrics):
        service = serve(
            db=db,
            cache=cache,
            credentials=own,
            manufacturer=root,
            firmware=FirmwarePolicy.of(firmware, root, minimal_svn=minimal_svn, limits=allowed),
            address=address,
            witness_key=witness_key,
            beacon=beacon,
            regime=regime.load(rules=rule_set, parties=parties, policy=policy, benchmarks=benchmarks),
            farm=chosen(farm, replay_devices, trusted=trust_ray_network),
            limits=Limits(memory=replay_memory << 30, seconds=replay_seconds),
            call_limits=calls,
            metrics=counted,
            secret=None if criteria is None else Secret.load(criteria),
            quota=Quota(total=upload_gib << 30, files=upload_files),
            budget=Budget(total=cache_bytes, reserve=cache_reserve),
        )
        until_stopped("Verifier", service, stop, address_file, as_json)


def until_stopped(
    role: str, service: AbstractContextManager[str], stop: serving.AskedToStop, address_file: Path | None, as_json: bool
) -> None:
    """Enters a service, says where it answers, and leaves it once the process is asked to stop."""
    with service as bound:
        if address_file is not None:
            serving.write_address(address_file, bound)
        if as_json:
            print_json({"address": bound})
        else:
            print(f"{role} serves at {bound}")
        sys.stdout.flush()
        stop.wait()
