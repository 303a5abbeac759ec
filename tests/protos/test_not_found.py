"""What a caller names and is not there: NOT_FOUND from every service, with a `ResourceInfo` for clients of any make."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from support.station import ROOT, Station, service

from protos.weighbridge.v1 import (
    chip_pb2,
    chip_pb2_grpc,
    prover_pb2,
    prover_pb2_grpc,
    verifier_pb2,
    verifier_pb2_grpc,
)
from weighbridge.core.errors import NotFoundError
from weighbridge.rpc import endpoints


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    with Station(tmp_path_factory.mktemp("station")) as station:
        yield station


def missing(call: Callable[[], Any]) -> tuple[str, str]:
    """Makes a call that must find nothing; returns (type, name) of what it says is missing."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND  # type: ignore[attr-defined]
    info = error_details_pb2.ResourceInfo()
    assert any(each.Unpack(info) for each in rpc_status.from_call(caught.value).details)
    ours = endpoints.from_rpc_error(caught.value)
    assert isinstance(ours, NotFoundError)
    assert (ours.details["resource"], ours.details["name"]) == (info.resource_type, info.resource_name)
    return info.resource_type, info.resource_name


@contextmanager
def stub_of(station: Station, address: str, own: str, role: str, kind: Any) -> Iterator[Any]:
    with endpoints.channel(address, station.authority.issue_role(own, "x"), role) as channel:
        yield kind(channel)


def test_a_prover_without_the_transcript(station: Station) -> None:
    with stub_of(station, station.prover(), "verifier", "prover", prover_pb2_grpc.ProverServiceStub) as stub:
        fetch = prover_pb2.FetchTranscriptRequest(id="0" * 64)
        assert missing(lambda: list(stub.FetchTranscript(fetch, timeout=20))) == ("transcript", "0" * 64)
        records = prover_pb2.OpenRecordsRequest(id="1" * 64, records=[1])
        assert missing(lambda: list(stub.OpenRecords(records, timeout=20))) == ("transcript", "1" * 64)
        results = prover_pb2.FetchResultsRequest(id="2" * 64, ranks=["2" * 64], begin=0, end=1)
        assert missing(lambda: list(stub.FetchResults(results, timeout=20))) == ("transcript", "2" * 64)


def test_a_chip_without_the_snapshot(station: Station) -> None:
    chip = station.chip("chip")
    with stub_of(station, chip.address, "verifier", "chip", chip_pb2_grpc.ChipServiceStub) as stub:
        for index, kind in ((0, "snapshot"), (99, "entry")):  # the first entry is that of the boot
            request = chip_pb2.OpenSnapshotRequest(index=index)
            assert missing(lambda request=request: list(stub.OpenSnapshot(request, timeout=20))) == (kind, str(index))


def test_a_fleet_without_the_chip(station: Station) -> None:
    root = station.root
    station.manufacturer.save(root / "maker")
    address_file = root / "fleet.address"
    arguments = [
        *("--dir", str(root / "fleet"), "--count", "1", "--manufacturer", str(root / "maker")),
        *("--credentials", str(root / "chip")),
    ]
    with (
        service("chip fleet", arguments, address_file) as address,
        stub_of(station, address, "verifier", "chip", chip_pb2_grpc.ChipServiceStub) as stub,
    ):
        request, named = chip_pb2.GetHeadRequest(nonce=b"fresh nonce"), [(endpoints.CHIP, b"u" * 17)]
        assert missing(lambda: stub.GetHead(request, timeout=20, metadata=named)) == ("chip", (b"u" * 17).hex())


def test_a_verifier_without_the_inspection(station: Station) -> None:
    root = station.root
    arguments = [
        *("--db", str(root / "v.db"), "--cache", str(root / "cache"), "--credentials", str(root / "verifier")),
        *("--manufacturer", str(root / "manufacturer.pem"), "--firmware", str(root / "firmware.img")),
    ]
    with (
        service("serve verifier", arguments, root / "v.address") as address,
        stub_of(station, address, "operator", "verifier", verifier_pb2_grpc.VerifierServiceStub) as stub,
    ):
        for method, kind in (
            ("GetReport", verifier_pb2.GetReportRequest),
            ("GetDraw", verifier_pb2.GetDrawRequest),
            ("WatchInspection", verifier_pb2.WatchInspectionRequest),
        ):
            call = getattr(stub, method)
            found = missing(lambda call=call, kind=kind: list(call(kind(inspection_id="none"), timeout=20)))
            assert found == ("inspection", "none")
        done = subprocess.run(
            [
                *(sys.executable, "-m", "weighbridge.cli", "inspect", "report", "none", "--out", str(root / "out")),
                *("--verifier", address, "--credentials", str(root / "operator")),
            ],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert "there is no inspection" in done.stderr
