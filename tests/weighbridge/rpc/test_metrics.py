"""Services' counters: what calls, stages and findings add to them, and what an address shows of them."""

from __future__ import annotations

import threading
import urllib.request

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from protos.weighbridge.v1 import prover_pb2, prover_pb2_grpc
from prover.service import serve
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import UsageError
from weighbridge.rpc import endpoints
from weighbridge.rpc.metrics import Metrics, shown

SERVICE = "/weighbridge.v1.ProverService/"


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Name and label values, in order of labels' names, to value."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_calls_are_counted_by_method_and_code(tmp_path_factory: pytest.TempPathFactory) -> None:
    authority, metrics = CertificateAuthority.create("Station"), Metrics()
    runs = tmp_path_factory.mktemp("runs")
    with (
        serve(runs, authority.issue_role("prover", "p"), metrics=metrics) as address,
        shown(metrics, "127.0.0.1:0") as where,
        endpoints.channel(address, authority.issue_role("verifier", "secret-name"), "prover") as channel,
        endpoints.channel(address, authority.issue_role("operator", "o"), "prover") as refused,
    ):
        stub = prover_pb2_grpc.ProverServiceStub(channel)  # type: ignore[no-untyped-call]
        for _ in range(3):
            endpoints.call(stub.ListTranscripts, prover_pb2.ListTranscriptsRequest())
        other = prover_pb2_grpc.ProverServiceStub(refused)  # type: ignore[no-untyped-call]
        for each, identifier in ((stub, "no id"), (stub, "0" * 64), (other, "0" * 64)):
            with pytest.raises(grpc.RpcError):
                list(each.FetchTranscript(prover_pb2.FetchTranscriptRequest(id=identifier), timeout=10))
        with pytest.raises(grpc.RpcError):
            channel.unary_unary(SERVICE + "Invented")(b"", timeout=10)
        text = urllib.request.urlopen(f"http://{where}/metrics", timeout=10).read().decode()
    seen = samples(text)
    calls = {key[1:]: value for key, value in seen.items() if key[0] == "weighbridge_calls_total"}
    assert calls == {
        ("OK", SERVICE + "ListTranscripts"): 3,
        ("INVALID_ARGUMENT", SERVICE + "FetchTranscript"): 1,
        ("NOT_FOUND", SERVICE + "FetchTranscript"): 1,
        ("PERMISSION_DENIED", SERVICE + "FetchTranscript"): 1,
    }
    assert seen["weighbridge_call_seconds_count", SERVICE + "ListTranscripts"] == 3
    assert seen["weighbridge_calls_open", SERVICE + "FetchTranscript"] == 0
    assert "secret-name" not in text
    assert "Invented" not in text
    assert not [thread for thread in threading.enumerate() if "wsgiref" in thread.name]


def test_stages_and_findings() -> None:
    metrics = Metrics()
    metrics.stage("log")
    metrics.stage("replay", "log", 4.0)
    metrics.findings([{"id": "chip.unreachable", "severity": "violation", "subject": "chip x"}] * 2)
    seen = samples(metrics.text())
    assert seen["weighbridge_inspections_total", "replay"] == 1
    assert seen["weighbridge_inspection_stage_seconds_bucket", "5.0", "log"] == 1
    assert seen["weighbridge_inspection_stage_seconds_bucket", "1.0", "log"] == 0
    assert seen["weighbridge_findings_total", "chip.unreachable", "violation"] == 2
    assert "chip x" not in metrics.text()


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:x", "127.0.0.1:99999999", "203.0.113.1:80"])
def test_an_address_that_cannot_be_is_refused(address: str) -> None:
    with pytest.raises(UsageError), shown(Metrics(), address):
        pass


def test_none_is_shown_unless_somebody_asks() -> None:
    with shown(Metrics(), None) as where:
        assert where is None
