"""What an operator leaves out of a request has its default; above all, segments are replayed whole."""

from __future__ import annotations

from typing import Any

import pytest

from protos.weighbridge.v1 import verifier_pb2
from verifier.model.facts import Plan
from verifier.model.policies import NO_SEGMENTS, SEGMENTS_AS_DESIGNED, SegmentPolicy
from verifier.plan_requests import plan_of
from weighbridge.core.errors import UsageError


def request(**fields: Any) -> verifier_pb2.StartInspectionRequest:
    sent = verifier_pb2.StartInspectionRequest(
        samples=1, flops_threshold=1.0, chip_flops_per_day=1.0, period_days=1.0, snapshot_rate_per_day=1.0, **fields
    )
    return verifier_pb2.StartInspectionRequest.FromString(sent.SerializeToString())


def segments(**fields: Any) -> SegmentPolicy:
    return plan_of(request(**fields)).segments


def test_one_segment_at_random_and_the_one_that_moved_most_are_replayed_whole_by_default() -> None:
    assert segments() == SEGMENTS_AS_DESIGNED
    assert (SEGMENTS_AS_DESIGNED.random, SEGMENTS_AS_DESIGNED.largest) == (1, 1)
    assert segments(random_segments=None, largest_segments=None) == SEGMENTS_AS_DESIGNED  # as the command line asks


@pytest.mark.parametrize(("random", "largest"), [(0, 0), (0, 1), (3, 0), (2, 7)])
def test_what_a_request_says_counts_zero_included(random: int, largest: int) -> None:
    found = segments(random_segments=random, largest_segments=largest)
    assert (found.random, found.largest) == (random, largest)
    assert bool(found) is (random + largest > 0)


def test_nothing_is_replayed_whole_only_if_both_are_switched_off() -> None:
    assert segments(random_segments=0, largest_segments=0) == NO_SEGMENTS
    assert segments(random_segments=0).largest == 1
    assert segments(memorisation=2, records=3) == SegmentPolicy(memorisation=2, records=3)
    assert segments(sensitivity=4) == SegmentPolicy(sensitivity=4)


@pytest.mark.parametrize(("asked", "found"), [({}, 2), ({"recognise": 0}, 0), ({"recognise": 5}, 5)])
def test_two_steps_of_each_segment_are_recognised_unless_a_request_says_otherwise(
    asked: dict[str, int], found: int
) -> None:
    assert segments(**asked).recognise == found


def test_a_plan_of_a_version_that_recognised_nothing_recognises_nothing() -> None:
    plan = plan_of(request())
    stored = plan.to_json()
    del stored["segments"]["recognise"]
    assert plan.segments.recognise == 2
    assert Plan.from_json(stored).segments.recognise == 0


@pytest.mark.parametrize("count", [-1, 1_001, True, 2.0])
def test_a_number_of_steps_that_is_none_is_refused(count: Any) -> None:
    with pytest.raises(UsageError, match="steps to recognise"):
        SegmentPolicy(recognise=count)
