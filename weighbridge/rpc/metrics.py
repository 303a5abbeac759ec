"""What a service counts about itself, for Prometheus: calls, seconds, inspections, findings.

Labels are names of methods, status codes, stages, finding ids and severities: nothing that a peer chooses, and nothing
that says who it is. Each process has one `Metrics`, and shows it at an address of its own, over HTTP and without TLS:
let it listen where only the monitoring system gets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
import prometheus_client

from weighbridge.core.errors import UsageError
from weighbridge.rpc.guards import wrap

STAGES_S = (0.1, 0.5, 1, 5, 15, 60, 300, 1800, 7200, 43200)
"""Bounds of the histogram of inspections' stages, in seconds."""


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        """Starts at zero."""
        self.registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self.registry)
        self._calls = prometheus_client.Counter(
            "weighbridge_calls",
            "Calls that ended, by method and status code.",
            ["method", "code"],
            registry=self.registry,
        )
        self._seconds = prometheus_client.Histogram(
            "weighbridge_call_seconds", "Seconds that calls took, streams included.", ["method"], registry=self.registry
        )
        self._open = prometheus_client.Gauge(
            "weighbridge_calls_open", "Calls that are being served.", ["method"], registry=self.registry
        )
        self._refused = prometheus_client.Counter(
            "weighbridge_calls_refused",
            "Calls that were refused before a worker took them: too many of one certificate.",
            registry=self.registry,
        )
        self._inspections = prometheus_client.Counter(
            "weighbridge_inspections", "Stages of inspections that began.", ["stage"], registry=self.registry
        )
        self._stages = prometheus_client.Histogram(
            "weighbridge_inspection_stage_seconds", "Seconds that stages of inspections took.", ["stage"],
            buckets=STAGES_S, registry=self.registry,
        )  # fmt: skip
        self._findings = prometheus_client.Counter(
            "weighbridge_findings",
            "Findings in reports, by id and severity.",
            ["id", "severity"],
            registry=self.registry,
        )

    def stage(self, stage: str, former: str | None = None, seconds: float = 0.0) -> None:
        """Counts that an inspection began a stage, `seconds` after it had begun the former one."""
        self._inspections.labels(stage).inc()
        if former is not None:
            self._stages.labels(former).observe(seconds)

    def refused(self) -> None:
        """Counts a call that got no worker."""
        self._refused.inc()

    def findings(self, findings: Iterable[Mapping[str, Any]]) -> None:
        """Counts a report's findings, each with `id` and `severity`."""
        for each in findings:
            self._findings.labels(each["id"], each["severity"]).inc()

    @contextmanager
    def call(self, method: str, code: Callable[[], str]) -> Iterator[None]:
        """Counts one call, which ends with the block; `code` then tells how."""
        begun = time.monotonic()
        with self._open.labels(method).track_inprogress():
            try:
                yield
            finally:
                self._seconds.labels(method).observe(time.monotonic() - begun)
                self._calls.labels(method, code()).inc()

    def text(self) -> str:
        """Returns all of it in Prometheus's text format."""
        return prometheus_client.generate_latest(self.registry).decode()


class Counting(grpc.ServerInterceptor):
    """Counts the calls of a server; the outermost interceptor, so that refused ones count, too."""

    def __init__(self, metrics: Metrics) -> None:
        """Counts into `metrics`."""
        self._metrics = metrics

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Wraps the method's handler; calls of methods that do not exist have none, and no label."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method

        def around(behaviour: Callable[..., Any], request: Any, context: grpc.ServicerContext) -> Any:
            if handler.response_streaming:
                return pieces(behaviour, request, context)
            with self._metrics.call(method, lambda: _code(context)):
                return behaviour(request, context)

        def pieces(behaviour: Callable[..., Any], request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with self._metrics.call(method, lambda: _code(context)):
                yield from behaviour(request, context)

        return wrap(handler, around)


def _code(context: Any) -> str:
    """Returns the name of a call's status: OK if no other was set and the client is still there."""
    code = context.code()
    if code is None:
        return "OK" if context.is_active() else "CANCELLED"
    return code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"


@contextmanager
def shown(metrics: Metrics, address: str | None) -> Iterator[str | None]:
    """Answers `GET /metrics` at an address until the block ends; yields it as host:port, or None where none is given.

    Raises:
        UsageError: The address is no host:port, or cannot be bound.
    """
    if address is None:
        yield None
        return
    host, _, port = address.rpartition(":")
    try:
        server, thread = prometheus_client.start_http_server(int(port), host.strip("[]"), registry=metrics.registry)
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(
            f"Cannot show metrics at {address!r}; give host:port with a free port of this host."
        ) from error
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        assert isinstance(thread, threading.Thread)
        thread.join()
