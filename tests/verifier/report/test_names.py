"""Short names for chips and transcripts: one name for one thing, and the full identifier never lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from verifier.report.finding_groups import group, subjects_in_words
from verifier.report.names import Names

UEIDS = [f"01{digits}{'00' * 8}" for digits in ("11" * 8, "22" * 8, "22" * 7 + "23", "44" * 8)]
CHIPS = [{"ueid": ueid, "name": name} for ueid, name in zip(UEIDS, ("rack-1", "twin", "twin", ""), strict=True)]
RUN = "ab" * 32
NAMES = Names(CHIPS, [{"id": RUN, "name": "<b>gpt2</b>"}, {"id": "cd" * 32, "name": ""}])


def test_chips_of_one_name_are_told_apart() -> None:
    called = [NAMES.of(chip["ueid"]) for chip in CHIPS]
    assert called[0] == f"rack-1 ({CHIPS[0]['ueid'][:8]})"
    assert len(set(called)) == 4
    assert called[1] == f"twin {CHIPS[1]['ueid'][:20]}", "the first digits are not enough for these two"
    assert NAMES.of("01" + "ef" * 16) == "01efefef", "a chip that the report does not have"


def test_an_earlier_report_knows_no_names() -> None:
    names = Names([{"ueid": "01" + "12" * 16}], [])
    assert names.of("01" + "12" * 16) == "01121212"


def test_names_are_escaped_on_the_page() -> None:
    assert NAMES.marked_text(f"transcript {RUN} <i>") == (
        f'transcript <abbr title="{RUN}">&lt;b&gt;gpt2&lt;/b&gt; (abababababab)</abbr> &lt;i&gt;'
    )
    assert NAMES.marked_text({"chips": ["a", ["b"]]}) == "chips = a, (b)"


@given(st.lists(st.sampled_from([*(chip["ueid"] for chip in CHIPS), RUN, "ff" * 32, " and ", "<", "x"])))
def test_no_identifier_is_lost(pieces: list[str]) -> None:
    """Law: whatever a text says, each identifier in it is on the page, as text or as a title."""
    page = NAMES.marked_text(" ".join(pieces))
    for piece in pieces:
        assert len(piece) < 34 or piece in page


def test_equal_findings_are_one_group_and_the_gravest_come_first() -> None:
    def finding(severity: str, message: str, subject: str, found: str = "") -> dict[str, str]:
        return {
            "id": "a.b",
            "severity": severity,
            "message": message,
            "subject": subject,
            "expected": "1",
            "found": found,
        }

    groups = group([finding("info", "m", "x"), *(finding("violation", "m", f"chip {n}", str(n)) for n in range(6))])
    assert [(each.severity, len(each.cases)) for each in groups] == [("violation", 6), ("info", 1)]
    assert groups[0].shared() == ["id", "severity", "message", "expected"]
    assert subjects_in_words(groups[0].cases, 4) == "chip 0, chip 1, chip 2, chip 3, and 2 more"
    assert group([]) == []
