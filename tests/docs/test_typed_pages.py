"""The tutorials say what happens: each is typed into an empty directory, and its output compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.typed_pages import differs, typed

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["record", "analyse"])
@pytest.mark.soak
def test_a_tutorial_does_what_it_says(name: str, tmp_path: Path) -> None:
    known: dict[str, str] = {}
    done = typed((TUTORIALS / f"{name}.md").read_text(), tmp_path, seconds=300)
    assert done
    for each in done:
        if each.said is not None:
            assert differs(each.said, each.printed, known) is None, each.printed


SAID = "loss 0.6876, weights a3fac8763ad389b1\nloss 0.6876, weights c47c0d0ab9280393\n"


@pytest.mark.parametrize(
    ("printed", "as_said"),
    [
        (SAID, True),
        (SAID.replace("a3fac8763ad389b1", "99fac8763ad389b1"), True),
        (SAID.replace("a3fac8763ad389b1", "c47c0d0ab9280393"), False),
        (SAID.replace("0.6876", "0.7876"), False),
        (SAID.replace("weights", "weight"), False),
        (SAID + "a warning\n", False),
        (SAID.splitlines()[0], False),
    ],
)
def test_output_is_compared(printed: str, as_said: bool) -> None:
    assert (differs(SAID, printed, {}) is None) is as_said


def test_an_ellipsis_is_any_lines() -> None:
    assert differs("a\n...\nd\n", "a\nb\nc\nd\n", {}) is None
    assert differs("a\n...\n", "a\nb\n", {}) is None
    assert differs("a\n...\nd\n", "a\nb\n", {}) == "d"


def test_the_same_digest_must_come_again() -> None:
    page = "state 00112233aa\nstate 00112233aa\n"
    assert differs(page, "state 99112233aa\nstate 99112233aa\n", {}) is None
    assert differs(page, "state 99112233aa\nstate 98112233aa\n", {}) is not None
