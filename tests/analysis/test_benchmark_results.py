"""Result files of benchmarks: the committed ones are read, others are refused with the key that is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import benchmark_results
from analysis.benchmark_results import ResultError

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
READERS = {
    "steps": benchmark_results.step_times,
    "shapes": benchmark_results.log_sizes,
    "chip": benchmark_results.stalls,
    "logs_on_demand": benchmark_results.regenerations,
    "sketched_logs": benchmark_results.sketches,
}


def test_committed_results_are_read_as_they_are() -> None:
    machine, times = benchmark_results.step_times(RESULTS)
    content = json.loads((RESULTS / "steps.json").read_text())
    assert (machine.date, machine.processor) == (content["date"], content["processor"])
    assert str(machine).startswith(f"{content['date']}: {content['processor']}, ")
    by_name = {each.model: each for each in times}
    assert set(by_name) == set(content["models"])
    for name, model in content["models"].items():
        assert by_name[name].recorded == model["milliseconds"]["recorded"]["median"]
    _, sizes = benchmark_results.log_sizes(RESULTS)
    rows = json.loads((RESULTS / "shapes.json").read_text())["precisions"]
    assert {name: len(found) for name, found in sizes.items()} == {name: len(each) for name, each in rows.items()}
    first, row = sizes["fp32 strict"][0], rows["fp32 strict"][0]
    assert first.elements * row["steps"] == row["rounded"]
    assert first.shape.tokens == row["rows"] * row["context"]
    _, again = benchmark_results.regenerations(RESULTS)
    models = json.loads((RESULTS / "logs_on_demand.json").read_text())["models"]
    assert set(again) == set(models)
    for name, model in models.items():
        assert (
            again[name][1] == model["milliseconds"]["regenerated"]["median"] / model["milliseconds"]["plain"]["median"]
        )
    _, sketched = benchmark_results.sketches(RESULTS)
    models = json.loads((RESULTS / "sketched_logs.json").read_text())["models"]
    assert {name: round(1 / share, 1) for name, share in sketched.items()} == {
        name: model["smaller_by"] for name, model in models.items()
    }
    _, stalls = benchmark_results.stalls(RESULTS)
    assert all(seconds > 0 and memory >= 2**20 for memory, seconds in stalls)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in READERS:
        shutil.copy(RESULTS / f"{name}.json", tmp_path)
    return tmp_path


def _change(path: Path, *keys: Any, value: Any) -> None:
    content = json.loads(path.read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    if value is None:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("name", "keys", "value", "says"),
    [
        ("steps", ("models",), [], "no object 'models'"),
        ("steps", ("models", "gpt2", "milliseconds", "plain"), None, "no object 'plain'"),
        ("steps", ("models", "gpt2", "milliseconds", "plain", "median"), "fast", "no number 'median'"),
        ("steps", ("models", "gpt2", "milliseconds", "plain", "median"), -1, "median is -1"),
        ("steps", ("models", "gpt2", "milliseconds", "plain", "median"), True, "no number 'median'"),
        ("steps", ("models", "gpt2", "milliseconds", "plain", "median"), 10**400, "no positive number"),
        ("steps", ("processor",), None, "what it was measured on"),
        ("steps", ("threads",), "one", "no number 'threads'"),
        ("logs_on_demand", ("models", "gpt2, fp32", "milliseconds", "regenerated"), None, "no object 'regenerated'"),
        ("shapes", ("precisions", "fp32 strict", 0, "record_bytes"), None, "no number 'record_bytes'"),
        ("shapes", ("precisions", "fp32 strict"), {}, "no list of shapes"),
        ("shapes", ("precisions", "fp32 strict", 0), 3, "no number 'parameters'"),
        ("shapes", ("precisions", "fp32 strict", 0, "log_bytes"), 0, "log_bytes is 0"),
        ("chip", ("stalls",), [], "no list 'stalls'"),
        ("chip", ("stalls", 0), [], "no number 'mebibytes'"),
    ],
)
def test_results_that_are_wrong_name_the_key(
    name: str, keys: tuple[Any, ...], value: Any, says: str, directory: Path
) -> None:
    _change(directory / f"{name}.json", *keys, value=value)
    with pytest.raises(ResultError, match=says):
        READERS[name](directory)


@pytest.mark.parametrize("name", sorted(READERS))
def test_results_that_are_not_there_or_no_json(name: str, directory: Path) -> None:
    path = directory / f"{name}.json"
    for content, says in (
        (b"[]", "no JSON object"),
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 99999, "no JSON"),
    ):
        path.write_bytes(content)
        with pytest.raises(ResultError, match=says):
            READERS[name](directory)
    path.unlink()
    with pytest.raises(ResultError, match="make bench"):
        READERS[name](directory)


@settings(deadline=None, max_examples=40)
@given(content=st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["models", "precisions", "stalls", "date", "processor", "torch", "threads", "milliseconds"]),
        inner, max_size=4,
    ),
    max_leaves=12,
))  # fmt: skip
def test_hostile_json_raises_only_result_errors(content: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("results")
    for name, read in READERS.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
        try:
            read(directory)
        except ResultError:
            continue
