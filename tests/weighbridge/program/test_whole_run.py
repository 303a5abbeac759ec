"""What state holds over a whole run, on tapes written by hand."""

from __future__ import annotations

from weighbridge.program.dataflow import flow
from weighbridge.program.gradients import around
from weighbridge.program.roles import roles
from weighbridge.program.whole_run import Course, Followed, Ran, follow
from weighbridge.transcript.tape import Input, Node, Ref, Tape

WHOLE: Ref = (0, "f32", (4, 4), (4, 1), 0)
W, X, G, P, Q = (("t", i) for i in range(5))
REFS: list[Ref] = [(slot, *WHOLE[1:]) for slot in range(5)]
INIT = Tape(
    refs=[WHOLE], nodes=[Node("empty.memory_format", (("l", (4, 4)),), {}, (0,), ((0, 64),))], survivors=[(0, "w")]
)
INPUTS = [Input(0, 64, "state", "w"), Input(1, 64, "batch", "x")]
MADE = Node("empty.memory_format", (("l", (4, 4)),), {}, (2,), ((2, 64),))
SENT = Node("weighbridge::recv.default", (("l", (G,)), ("l", ()), ("s", ""), ("l", (0, 1)), 0, 0), {}, ())
PRODUCT = Node("mm.default", (X, G), {}, (3,), ((3, 64),))
UPDATE = Node("sub_.Tensor", (W, P), {}, (0,))
FORWARD = Node("mm.default", (X, W), {}, (4,), ((4, 64),))
TRAIN = Node("sub_.Tensor", (W, Q), {}, (0,))


def run(*nodes: Node) -> tuple[Followed, bytes]:
    """One step of these operations after the initialisation."""
    tapes = {b"init": INIT, b"step": Tape(inputs=INPUTS, refs=REFS, nodes=list(nodes))}
    course = Course([Ran(0, b"init", True), Ran(1, b"step", False), Ran(2, b"step", False)])
    found = roles(course, tapes.__getitem__, {b"step": flow(tapes[b"step"])}, ("w",))
    return follow(course, tapes.__getitem__, found), b"step"


def strangers(*nodes: Node) -> dict[str, str]:
    followed, digest = run(*nodes)
    return around(followed.writes[digest], ("w",))


def test_a_stage_of_a_pipeline_calculates_gradients_from_what_it_is_sent() -> None:
    """x.T @ g with a g that another rank sent: only that rank knows what had bearing on it."""
    assert strangers(MADE, PRODUCT, UPDATE) == {"w": "the batch"}
    assert strangers(MADE, SENT, PRODUCT, UPDATE) == {}


def test_a_message_hides_only_what_it_reaches() -> None:
    added = Node("add_.Tensor", (W, X), {}, (0,))
    assert strangers(MADE, SENT, PRODUCT, UPDATE, added) == {"w": "the batch"}


def test_a_message_as_it_came_is_no_gradient() -> None:
    followed, digest = run(FORWARD, TRAIN, MADE, SENT, Node("copy_.default", (W, G), {}, (0,)))
    assert [each.why() for each in followed.replaced[digest].values()] == ["what another rank sent"]


def test_a_shape_is_no_content() -> None:
    """What is made in the shape of weights follows from nothing."""
    like = Node("zeros_like.default", (W,), {}, (2,), ((2, 64),))
    filled = Node("add_.Tensor", (G, X), {}, (2,))
    followed, digest = run(FORWARD, TRAIN, like, filled, Node("copy_.default", (W, G), {}, (0,)))
    assert [each.why() for each in followed.replaced[digest].values()] == ["the batch"]
