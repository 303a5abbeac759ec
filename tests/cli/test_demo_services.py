"""The demo's services that audit each other: every party is a process, and one trains fewer steps than it claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weighbridge.cli.bench.processes import ProcessError
from weighbridge.cli.demo.party import Party
from weighbridge.cli.demo.services import STEPS, TRAINED, Served, judge, market

HONEST: dict[str, Any] = {"delivered": [], "claimed": [], "audit": [], "dispute": []}
LAZY: dict[str, Any] = {
    "delivered": ["order.steps"],
    "claimed": [],
    "audit": ["audit.segment"],
    "dispute": ["defender: false"],
}


@pytest.mark.slow
def test_who_trains_fewer_steps_is_found_and_loses_the_dispute(tmp_path: Path) -> None:
    with market(tmp_path / "market") as services:
        services.audit()
        served = services.settle()
    assert served == [
        Served("north", "south", STEPS, (), (), (), (), True),
        Served("south", "north", TRAINED, ("order.steps",), (), ("audit.segment",), ("defender: false",), True),
    ]


@pytest.mark.parametrize("service", ["north", "south"])
def test_the_demo_says_so_if_anything_else_comes_out(service: str) -> None:
    promised = HONEST if service == "north" else LAZY
    assert judge(service, **promised).as_said
    for name, codes in promised.items():
        for other in (["order.data"], [] if codes else ["order.steps"]):
            assert not judge(service, **{**promised, name: other}).as_said, name


def test_a_party_answers_each_command_and_says_which_one_failed(tmp_path: Path) -> None:
    party = Party("alice", tmp_path)
    try:
        made = party.call("rules", "key", "alice.key")
        assert made == party.call("rules", "key", "alice.key")
        with pytest.raises(ProcessError, match="audit accept of alice ended with 2"):
            party.call("audit", "accept", "none", "--key", "alice.key")
        assert made == party.call("rules", "key", "alice.key")
    finally:
        party.stop()
    with pytest.raises(ProcessError, match="the process of alice ended"):
        party.call("rules", "key", "alice.key")
