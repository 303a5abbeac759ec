"""WitnessService over the wire: a chip's own process reports to a Verifier's own process, and roles are kept apart."""

from pathlib import Path

import pytest
from support.station import service

from benchmarks.soak_chip import COUNTERS, NOTHING, Rig, ask, connect
from firmware_sim.device import builtin_image
from protos.weighbridge.v1 import verifier_pb2, verifier_pb2_grpc, witness_pb2, witness_pb2_grpc
from weighbridge.attest import tlog
from weighbridge.attest.firmware_image import FirmwareSigner
from weighbridge.core.errors import IdentityError, UsageError, WeighbridgeError
from weighbridge.rpc import endpoints


def test_a_chip_reports_to_the_verifiers_process(tmp_path: Path) -> None:
    (tmp_path / "rig").mkdir()
    rig = Rig(tmp_path / "rig")
    rig.credentials.save(tmp_path / "verifier")
    (tmp_path / "root.pem").write_bytes(rig.manufacturer.pem)
    (tmp_path / "firmware.img").write_bytes(FirmwareSigner.issue(rig.manufacturer).sign(builtin_image()))
    arguments = [
        *("--db", str(tmp_path / "registry.db"), "--credentials", str(tmp_path / "verifier")),
        *("--manufacturer", str(tmp_path / "root.pem"), "--firmware", str(tmp_path / "firmware.img")),
        *("--cache", str(tmp_path / "cache")),
    ]
    operator = rig.authority.issue_role("operator", "operator")
    with service("serve verifier", arguments, tmp_path / "address") as verifier:
        key = tmp_path / "registry.db.witness-key.pub"
        with endpoints.channel(verifier, operator, "verifier") as channel:
            stub = witness_pb2_grpc.WitnessServiceStub(channel)
            with pytest.raises(UsageError):  # The chip is not registered yet.
                endpoints.call(stub.GetWitnessed, witness_pb2.GetWitnessedRequest(ueid=rig.ueid))
            with rig.chip(report="wait", witness=verifier, witness_key=key) as chip:
                request = verifier_pb2.RegisterChipRequest(ueid=rig.ueid, chip_address=chip.address)
                endpoints.call(verifier_pb2_grpc.VerifierServiceStub(channel).RegisterChip, request)
                connection = connect(chip)
                ask(connection, {"do": "force"})
                answer = ask(connection, {"do": "snapshot", **NOTHING, **COUNTERS})
                assert answer is not None
                assert answer["ok"]
            known = endpoints.call(stub.GetWitnessed, witness_pb2.GetWitnessedRequest(ueid=rig.ueid))
            assert known.size == 2
            assert tlog.parse_note(known.checkpoint).verify(tlog.parse_key(key.read_text().strip()))
            compared = endpoints.call(
                stub.CompareCheckpoint, witness_pb2.CompareCheckpointRequest(checkpoint=known.checkpoint)
            )
            assert (compared.consistent, compared.checkpoint) == (True, known.checkpoint)
            with pytest.raises(WeighbridgeError) as caught:
                endpoints.call(stub.CompareCheckpoint, witness_pb2.CompareCheckpointRequest(checkpoint=b"garbage"))
            assert caught.value.reason == "chip.note"
            with pytest.raises(IdentityError):  # An operator is no chip.
                endpoints.call(stub.AddCheckpoint, iter([witness_pb2.AddCheckpointRequest()]))
        rival = rig.authority.issue_role("chip", "rival", ueids=[b"the rival's own chip"])
        with endpoints.channel(verifier, rival, "verifier") as channel:
            stub = witness_pb2_grpc.WitnessServiceStub(channel)
            for attempt in (
                lambda: endpoints.call(stub.GetWitnessed, witness_pb2.GetWitnessedRequest(ueid=rig.ueid)),
                lambda: endpoints.call(stub.AddCheckpoint, iter([witness_pb2.AddCheckpointRequest(ueid=rig.ueid)])),
            ):
                with pytest.raises(IdentityError) as refused:
                    attempt()
                assert refused.value.reason == "identity.ueid"
        chips = rig.authority.issue_role("chip", "other", ueids=[rig.ueid])
        with endpoints.channel(verifier, chips, "verifier") as channel:
            stub = witness_pb2_grpc.WitnessServiceStub(channel)
            reports: list[list[witness_pb2.AddCheckpointRequest]] = [
                [],
                [witness_pb2.AddCheckpointRequest(ueid=rig.ueid, checkpoint=b"x", token=b"y")],
                [witness_pb2.AddCheckpointRequest(ueid=rig.ueid, proof=[b""] * 1000)],
                [witness_pb2.AddCheckpointRequest(), witness_pb2.AddCheckpointRequest(entries=[bytes(1 << 17)])],
            ]
            for report in reports:
                with pytest.raises(WeighbridgeError) as caught:
                    endpoints.call(stub.AddCheckpoint, iter(report))
                assert caught.value.reason != "rpc.failed"  # There is a reason.
            with pytest.raises(IdentityError):
                endpoints.call(stub.CompareCheckpoint, witness_pb2.CompareCheckpointRequest(checkpoint=b"x"))
