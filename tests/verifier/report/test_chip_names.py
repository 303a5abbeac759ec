"""What chips are called in text for people."""

from __future__ import annotations

from verifier.report.chip_names import named, names, short

ONE, TWO = "01" + "a1" * 16, "01" + "b2" * 16


def test_ueids_of_named_chips_become_names_and_all_else_stays() -> None:
    called = names({"chips": [{"ueid": ONE, "name": "gpu-0"}, {"ueid": TWO, "name": ""}, {"ueid": TWO}]})
    assert called == {ONE: "gpu-0 (01a1a1a1)"}
    assert named(f"chip {ONE} entry 3, chip {TWO}", called) == f"chip gpu-0 (01a1a1a1) entry 3, chip {TWO}"
    assert named(f"digest {ONE}00", called) == f"digest {ONE}00"
    assert short(TWO) == "01b2b2b2"
