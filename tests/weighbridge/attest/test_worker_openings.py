"""What a chip opens to an attested worker, and what else is tried to have it opened."""

from __future__ import annotations

import io
import os
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sealed_orders import sealed_order
from support.worker_evidence import IMAGE, PROVER, Site, session_order

from weighbridge.attest import worker_openings
from weighbridge.attest.sealed_channel import SealedInputError, WorkerKey
from weighbridge.attest.sealed_order import NO_KEY, Referee
from weighbridge.attest.worker_openings import Box, decode, encode, opened, receive, seal, send
from weighbridge.core.errors import ChipError, FormatError

UEID = b"\x01" * 17
BOXES = st.lists(
    st.builds(
        Box, st.binary(min_size=17, max_size=33), st.sampled_from(worker_openings.KINDS), st.integers(0, 99),
        st.binary(max_size=9),
    ),
    max_size=5, unique_by=lambda each: (each.ueid, each.kind, each.index),
)  # fmt: skip


def sealed(site: Site, content: bytes = b"content", index: int = 3) -> Box:
    return seal(content, site.order, site.worker.public, UEID, "snapshot", index)


@pytest.mark.parametrize("content", [b"", b"x", b"\x00", os.urandom(10_000), b"tail\x00\x00"])
def test_the_worker_that_it_is_for_opens_it(content: bytes) -> None:
    site = Site()
    assert opened(sealed(site, content), site.order, site.worker) == content


def test_its_length_says_little() -> None:
    """A box has one of few lengths, so that the number of a model's tensors does not follow."""
    site = Site()
    sizes = {len(sealed(site, bytes(each)).data) for each in (0, 40, 400, 3000)}
    assert len(sizes) == 1
    assert len({len(sealed(site, bytes(each)).data) for each in range(5000, 8000, 100)}) == 1


def test_no_other_worker_opens_it_and_none_for_another_order_chip_or_place() -> None:
    site = Site()
    box = sealed(site)
    wrong = [
        (box, site.order, WorkerKey()),
        (box, session_order(), site.worker),
        (replace(box, index=4), site.order, site.worker),
        (replace(box, kind="token"), site.order, site.worker),
        (replace(box, ueid=b"\x02" * 17), site.order, site.worker),
        (replace(box, data=box.data[:-1]), site.order, site.worker),
        (replace(box, data=b""), site.order, site.worker),
    ]
    for each in wrong:
        with pytest.raises(SealedInputError):
            opened(*each)
    with pytest.raises(ChipError):
        seal(b"", site.order, bytes(31), UEID, "token", 1)


@given(BOXES)
def test_boxes_come_back(boxes: list[Box]) -> None:
    """Law: decode(encode(b)) are the same boxes, in order."""
    assert sorted(map(repr, decode(encode(boxes)))) == sorted(map(repr, boxes))


@given(BOXES, st.integers(0), st.integers(0, 255), st.integers(0))
def test_bytes_are_boxes_or_refused(boxes: list[Box], at: int, value: int, cut: int) -> None:
    """Law: encode(decode(data)) == data, or data is refused."""
    whole = encode(boxes)
    data = bytearray(whole)
    data[at % len(data)] = value
    for each in (bytes(data), whole[: cut % len(whole)], whole + b"\x00"):
        with suppress(FormatError):
            assert encode(decode(each)) == each


def test_what_does_not_open_is_left_out() -> None:
    """Its Prover cannot end the session by it: what it was to open is withheld."""
    site = Site()
    good, bad = sealed(site), replace(sealed(site, index=4), index=5)
    stream = io.BytesIO()
    send(stream, [bad, good])
    stream.seek(0)
    assert receive(stream, site.order, site.worker) == {(UEID, "snapshot", 3): b"content"}
    for data in (b"", b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x02\x80"):
        with pytest.raises(SealedInputError):
            receive(io.BytesIO(data), site.order, site.worker)
    doubled = encode([good, good])
    for data in (doubled, b"\xf6", encode([replace(good, ueid=b"short")])):
        with pytest.raises(FormatError):
            receive(io.BytesIO(len(data).to_bytes(4) + data), site.order, site.worker)


def test_evidence_of_a_trusted_worker_holds() -> None:
    site = Site()
    order, attested = site.trusted.check(*site.evidence())
    assert (order, attested.worker) == (site.order, site.worker.public)


@pytest.mark.finding("chip.worker")
def test_evidence_of_any_other_is_refused() -> None:
    """Above all of a worker that a Verifier or the site's host started for itself, and of one that is none."""
    site, other = Site(), Site()
    own = session_order(prover=b"v" * 32)  # ordered by another party, with a key of its own
    image = session_order(measurement=b"x" * 48)
    lent = Referee(
        terms=bytes(32), challenger=bytes(32), commitment=bytes(32), inputs=1 << 20, memory=1 << 20, leaves_after_s=60
    )  # fmt: skip
    dispute = session_order(session=None, referee=lent, aggregator=NO_KEY)  # workers of which take nothing from chips
    good, data = site.evidence()
    _, elsewhere = site.evidence(session_order())
    wrong = [
        other.evidence(site.order), site.evidence(own), site.evidence(image),
        site.evidence(measurement=b"x" * 48), (good, elsewhere), (good, data[:-1] + bytes([data[-1] ^ 1])),
        site.evidence(sealed_order(prover=PROVER, measurement=IMAGE)), site.evidence(dispute),
        (good, b""), (b"", data), (bytes(5000), data), (good, bytes(40_000)), (good[:-1], data),
    ]  # fmt: skip
    for evidence in wrong:
        with pytest.raises(ChipError) as caught:
            site.trusted.check(*evidence)
        assert caught.value.reason == "chip.worker"


def test_what_is_kept_names_authority_prover_and_images() -> None:
    """A boot that is told of more images opens what was kept for some of them; of other parties, none does."""
    site = Site()
    mine = site.trusted
    more = replace(mine, images=frozenset({IMAGE, b"j" * 48}))
    other = session_order(measurement=b"j" * 48)
    assert mine.permits(site.order, mine.kept)
    assert more.permits(site.order, mine.kept)
    assert not more.permits(other, mine.kept)
    assert more.permits(other, more.kept)
    assert not replace(mine, authority=bytes(32)).permits(site.order, mine.kept)
    assert not mine.permits(session_order(prover=b"v" * 32), mine.kept)
    assert not mine.permits(site.order, b"\xf6")
