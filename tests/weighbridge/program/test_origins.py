"""Bits that come in through values: each way is tried with real recordings, and charged at least what it carries."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from redteam import numbers_beside
from support.forging import rewrite
from support.recordings import replay_here, train, verdict
from torch import Tensor, nn

from weighbridge.program.origins import TYPE_BITS, VALUE_BITS, TapeValues, analyse
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape

STEPS = 3
STOLEN = [torch.rand(4, generator=torch.Generator().manual_seed(step)) for step in range(STEPS)]
"""Positive weights made elsewhere: 31 bits each."""

WORDS = [[int(n) for n in numbers.view(torch.int32)] for numbers in STOLEN]


def values(path: Path) -> TapeValues:
    """What entered the tape that ran most often."""
    transcript = Transcript.open(path)
    found = analyse(transcript, lambda digest: Tape.decode(transcript.tape(digest))).values()
    return max(found, key=lambda each: each.steps)


def bits(path: Path) -> float:
    return sum(values(path).value_bits.values())


def recorded(path: Path, write: Callable[[Tensor, int], None], steps: int = STEPS, **formulas: str) -> Tensor:
    """Records steps that do what `write` does to the weights; returns these."""
    made: list[nn.Linear] = []

    def build() -> tuple[nn.Module]:
        made.append(nn.Linear(4, 1, bias=False))
        return (made[0],)

    def step(batch: Tensor, model: nn.Linear) -> None:
        with torch.no_grad():
            write(model.weight, int(batch[0, 0]))

    train(path, build, step, [torch.full((1, 4), float(number)) for number in range(steps)], formulas=formulas)
    return made[0].weight.detach().reshape(-1)


@pytest.fixture
def own_recorder() -> Iterator[None]:
    """A Recorder of the attacker's own, which executes operations with what the program says."""
    with numbers_beside.own_recorder():
        yield


def low_words(weights: Tensor, number: int) -> None:
    """Sets each weight to the low word of a float64 that is about 1."""
    numbers = (numbers_beside.double(word, numbers_beside.ONE) for word in WORDS[number % STEPS])
    numbers_beside.low_words(weights, (torch.full((1,), each, dtype=torch.float64) for each in numbers))


def test_weights_in_the_low_words_of_a_formula_with_a_wide_tolerance(tmp_path: Path, own_recorder: None) -> None:
    made = recorded(tmp_path / "run", low_words, w="(1e9 + 1) - 1e9")
    assert torch.equal(made, STOLEN[-1])
    result = replay_here(tmp_path / "run")
    assert result["verdict"] == "match"
    assert set(values(tmp_path / "run").changing.values()) == {"w"}
    assert bits(tmp_path / "run") > 31 * 4 * STEPS
    assert result["chosen"]["values"]["bits"] == pytest.approx(bits(tmp_path / "run"))


def test_the_recorder_takes_them_away(tmp_path: Path) -> None:
    """With the formula's value instead, every float64 is 1, whose low word is 0."""
    made = recorded(tmp_path / "run", low_words, w="(1e9 + 1) - 1e9")
    assert torch.equal(made, torch.zeros(4))
    assert verdict(tmp_path / "run") == "match"
    assert bits(tmp_path / "run") == 0


@pytest.mark.parametrize("shift", [23, 0], ids=["exponents", "fractions"])
def test_weights_in_integers_that_float64_cannot_tell_apart(tmp_path: Path, shift: int) -> None:
    """As floats, all of them are 2^62 + 2^40. Exponents repeat, and a number that was there before costs less."""
    told = [[word >> shift & 0xFF for word in words] for words in WORDS]  # eight bits of each, where float64 has none

    def write(weights: Tensor, number: int) -> None:
        for i, low in enumerate(told[number]):
            cell = torch.full((1,), (1 << 62) + (1 << 40) + low, dtype=torch.int64)
            weights.view(-1)[i : i + 1].copy_(cell.view(torch.float32)[:1])

    recorded(tmp_path / "run", write, n="4611686018427387904 + 1099511627776")
    assert verdict(tmp_path / "run") == "match"
    found = values(tmp_path / "run")
    unexplained = sum(name is None for name in found.changing.values())
    assert unexplained >= 1
    assert unexplained == 4
    new = len({low for each in told for low in each})
    assert bits(tmp_path / "run") > new * VALUE_BITS + (4 * STEPS - new)


def test_a_message_in_the_types_of_a_value(tmp_path: Path) -> None:
    """Each step's factor is 1, as one of three types."""

    def write(weights: Tensor, number: int) -> None:
        weights.mul_([1.0, 1, True][number])

    recorded(tmp_path / "run", write, one="1")
    assert "one" in values(tmp_path / "run").changing.values()
    assert bits(tmp_path / "run") >= 2 * TYPE_BITS


def entering(
    path: Path, numbers: Sequence[float], dtype: torch.dtype, *, host: float = 0.0, **formulas: str
) -> TapeValues:
    """Records steps that add a tensor of no operation's making to the weights, and read a number back."""

    def write(weights: Tensor, number: int) -> None:
        torch.full((), host).item()
        weights.copy_(weights + torch.tensor(numbers[number], dtype=dtype).to(torch.float32))

    recorded(path, write, **formulas)
    assert verdict(path) == "match"
    return values(path)


def test_payloads_of_nans(tmp_path: Path) -> None:
    """A program that reads NaN back has one NaN; the 51 bits of another are what someone chose."""

    def nan(payload: int, sign: int = 0) -> float:
        number: float = struct.unpack("<d", struct.pack("<Q", (sign << 15 | 0x7FF8) << 48 | payload))[0]
        return number

    other = entering(tmp_path / "other", [nan(word) for word in WORDS[0]], torch.float64, host=math.nan)
    assert all(64 <= bits < 68 for bits in other.value_bits.values())
    assert len(other.value_bits) == STEPS
    signs = entering(tmp_path / "signs", [nan(0, 1), nan(0), nan(0, 1)], torch.float64, host=math.nan)
    first, second, again = signs.value_bits.values()
    assert 64 <= first < 68
    assert 64 <= second < 68
    assert again == 2  # one of two numbers there, one of two ways to be new: log2((2 + 2) / 1)


@pytest.mark.parametrize(
    ("dtype", "width"), [(torch.float32, 32), (torch.float64, 64), (torch.float16, 16), (torch.int64, 64)]
)
def test_free_numbers_that_nothing_explains(tmp_path: Path, dtype: torch.dtype, width: int) -> None:
    found = entering(tmp_path / "run", (3.0, 1.0, 7.0), dtype)
    assert len(found.value_bits) == STEPS
    assert all(width <= bits < width + 4 for bits in found.value_bits.values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_messages_in_the_last_place_of_free_numbers(tmp_path: Path, dtype: torch.dtype) -> None:
    """In two steps of three the number lies one unit beside its formula's: charged; the formula's own is free."""
    exact = [0.7 * (t + 1) for t in range(STEPS)]
    honest = entering(tmp_path / "honest", exact, dtype, rate="0.7 * t")
    assert honest.value_bits == {}
    assert "rate" in honest.changing.values()
    above = [float(torch.tensor(each, dtype=dtype).nextafter(torch.tensor(9.0, dtype=dtype))) for each in exact]
    found = entering(tmp_path / "message", [exact[0], *above[1:]], dtype, rate="0.7 * t")
    assert "rate" in found.changing.values()
    assert set(found.value_bits) == {2, 3}
    assert all(2 < each < 8 for each in found.value_bits.values())


def test_counters_that_come_from_outside_are_explained(tmp_path: Path) -> None:
    found = entering(tmp_path / "run", range(1, STEPS + 1), torch.int64, number="t")
    assert (found.value_bits, set(found.changing.values())) == ({}, {"number"})


def test_the_sign_of_a_zero_that_was_read_back(tmp_path: Path) -> None:
    """A record that says -0 where the program computed 0 does not match, though the two are equal as numbers."""

    def write(weights: Tensor, number: int) -> None:
        weights.add_(torch.zeros(()).item())

    def negated(record: StepRecord) -> StepRecord:
        return replace(record, host=[-each for each in record.host], values=[-each for each in record.values])

    recorded(tmp_path / "run", write)
    assert verdict(tmp_path / "run") == "match"
    rewrite(tmp_path / "run", lambda record: negated(record) if record.step == 2 else record)
    assert verdict(tmp_path / "run").startswith("mismatch")
