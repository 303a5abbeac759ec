"""`weighbridge analysis`: the keys that programs read, agreement with the library, one clear error for bad input."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from pyarrow import parquet
from support.command_line import answer

from analysis.detection import detection_probability_hypergeometric, samples_needed
from weighbridge.cli.main import run

FLEET = ["--chips", "1e5", "--flops", "5.76e23"]


def test_table_1_as_printed() -> None:
    rows = answer("analysis", "table1", "--mode", "printed")["rows"]
    assert [row["model"] for row in rows][:2] == ["GPT-3", "Chinchilla"]
    assert rows[0] == {
        "model": "GPT-3", "flops": 3.14e23, "chip_days": 3640, "chips_one_year": 10,
        "samples": {"1000": 243, "100000": 24300, "10000000": 2430000},
    }  # fmt: skip
    numbers = [row[key] for row in rows for key in ("chip_days", "chips_one_year")]
    numbers += [value for row in rows for value in row["samples"].values()]
    assert (len([n for n in numbers if n is not None]), numbers.count(None)) == (27, 3)


@pytest.mark.parametrize(("mode", "gpt3"), [("exact", 229.08), ("hypergeometric", 231.17)])
def test_table_1_otherwise(capsys: pytest.CaptureFixture[str], mode: str, gpt3: float) -> None:
    rows = answer("analysis", "table1", "--mode", mode)["rows"]
    assert rows[0]["samples"]["1000"] == pytest.approx(gpt3, abs=0.01)
    assert rows[3]["samples"]["1000"] is None
    assert run(["analysis", "table1", "--mode", mode]) == 0
    assert "Chinchilla-10T" in capsys.readouterr().out


def test_samples_reach_the_probability_and_one_fewer_does_not() -> None:
    found = answer(
        "analysis",
        "samples",
        *FLEET,
        "--period-days",
        "30",
        "--rate",
        "0.1",
        "--probability",
        "0.9",
        "--chip-flops",
        "1e15",
    )
    assert set(found) == {"per_period", "per_year", "method", "detection_probability"}
    assert found["method"] == "hypergeometric"
    assert found["per_year"] == pytest.approx(found["per_period"] * 365 / 30)
    model = {"flops_threshold": 5.76e23, "chip_flops_per_day": 8.64e19, "chips": 1e5, "run_days": 30}
    for samples, reached in ((found["per_period"], True), (found["per_period"] - 1, False)):
        p = float(detection_probability_hypergeometric(samples=samples, snapshot_rate_per_day=0.1, **model))
        assert (p >= 0.9) is reached
        assert answer("analysis", "probability", *FLEET, "--samples", str(samples))["detection_probability"] == p
    eq1 = answer("analysis", "samples", *FLEET, "--probability", "0.9", "--method", "eq1")
    assert eq1["per_period"] - 1 < samples_needed(
        probability=0.9, period_days=30, snapshot_rate_per_day=0.1, **model
    ) <= eq1["per_period"]  # fmt: skip


def test_probability_by_every_method_and_without_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer("analysis", "probability", *FLEET, "--samples", "1080", "--run-days", "90")
    by_method = found["by_method"]
    assert by_method["linearised"] < by_method["eq1"] < by_method["accumulating"] < by_method["hypergeometric"]
    assert answer("analysis", "probability", *FLEET, "--samples", "9", "--run-days", "9")["by_method"]["eq1"] is None
    assert run(["analysis", "probability", *FLEET, "--samples", "1080"]) == 0
    assert "p = 0.900017 (hypergeometric)" in capsys.readouterr().out


def test_the_smallest_run_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    for method in ("hypergeometric", "eq1"):
        found = answer(
            "analysis",
            "smallest-run",
            "--chips",
            "1e5",
            "--samples",
            "1080",
            "--probability",
            "0.9",
            "--method",
            method,
        )
        assert found["detection_probability"] == pytest.approx(0.9, abs=2e-3)
        assert found["run_flops"] == 2 * found["flops"]
        assert found["flops"] == pytest.approx(5.8e23, rel=0.01)
    assert run(["analysis", "smallest-run", "--chips", "1e5", "--samples", "1080", "--probability", "0.9"]) == 0
    assert "223 chips" in capsys.readouterr().out


def test_attribute(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["attribute", "--population", "1000", "--defects", "10", "--probability", "0.9"]
    assert answer("analysis", *arguments) == {"exact": 205, "iaea": 206, "iaea_refined": 205, "binomial": 230}
    assert run(["analysis", *arguments]) == 0
    assert "iaea refined  205" in capsys.readouterr().out


def test_plan(capsys: pytest.CaptureFixture[str]) -> None:
    one = answer("analysis", "plan", "--budget", "1e6", *FLEET)
    assert one["costs"]["total"] <= 1e6
    assert one["samples"] > 0
    assert answer("analysis", "plan", "--budget", "1e7", *FLEET)["detection_probability"] > one["detection_probability"]
    strata = ["--stratum", "new:chips=1e5", "--stratum", "old:chips=3e4,chip-flops=3e14,missed=0.2,cost=400"]
    legacy = ["--stratum", "legacy:chips=50,missed=1"]
    two = answer("analysis", "plan", "--budget", "1e6", "--flops", "5.76e23", *strata, *legacy)
    assert [each["name"] for each in two["strata"]] == ["new", "old", "legacy"]
    assert two["strata"][2]["samples"] == 0
    assert two["strata"][2]["worst_share"] == pytest.approx(50 * 8.64e19 * 30 / 5.76e23)
    assert run(["analysis", "plan", "--budget", "1e6", *FLEET]) == 0
    assert "against a Prover who knows the plan" in capsys.readouterr().out


def test_sweeps_to_csv_parquet_and_standard_output_agree(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sweep = ["sweep", "--quantity", "samples", "--vary", "rate=0.01:1:3:log", "--vary", "chips=100,1e5"]
    sweep += ["--flops", "5.76e23", "--probability", "0.9"]
    columns = answer("analysis", *sweep)["columns"]
    assert columns["samples"] == [None, 3963, None, 1080, None, 1027]
    assert columns["run-days"] == [30] * 6
    for name in ("table.csv", "table.parquet"):
        summary = answer("analysis", *sweep, "--out", str(tmp_path / name))
        assert (summary["points"], summary["infeasible"]) == (6, 3)
    with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["samples"]) if row["samples"] else None for row in rows] == columns["samples"]
    assert [float(row["rate"]) for row in rows] == columns["rate"]
    table = parquet.read_table(tmp_path / "table.parquet").to_pydict()
    assert table == columns
    assert run(["analysis", *sweep]) == 0
    assert capsys.readouterr().out == (tmp_path / "table.csv").read_text(encoding="utf-8")


def test_ranges_of_counts_are_whole_and_named_ones_must_be(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer("analysis", "sweep", "--vary", "samples=1:1000:7:log", *FLEET)
    assert found["columns"]["samples"] == [1, 3, 10, 32, 100, 316, 1000]
    assert answer("analysis", "sweep", "--vary", "samples=1:3:9", *FLEET)["points"] == 3
    assert run(["analysis", "sweep", "--vary", "samples=1.5,2", *FLEET]) == 2
    assert "samples must be a whole number" in capsys.readouterr().err


def test_every_quantity_can_be_swept_over_every_parameter() -> None:
    given = {"flops": "5.76e23", "chips": "1e5", "samples": "1080", "probability": "0.9"}
    names = {"chip-flops": "1e15", "period-days": "30", "run-days": "30", "rate": "0.1"} | given
    unused = {"probability": "probability", "samples": "samples", "smallest-run": "flops"}
    for quantity, spare in unused.items():
        for name, value in names.items():
            if name == spare:
                continue
            others = [word for key, text in given.items() if key != name for word in (f"--{key}", text)]
            found = answer("analysis", "sweep", "--quantity", quantity, "--vary", f"{name}={value}", *others)
            single = answer(
                "analysis",
                quantity,
                *(word for key, text in given.items() if key != spare for word in (f"--{key}", text)),
            )
            expected = single.get("per_period", single.get("flops", single["detection_probability"]))
            assert found["columns"][quantity] == [pytest.approx(expected, rel=1e-12)]


BAD: list[tuple[list[str], str]] = [
    (["samples", "--chips", "1e5", "--flops", "5.76e23", "--probability", value], "probability")
    for value in ("0", "1", "-0.1", "nan", "2")
]
BAD += [
    (["samples", "--chips", value, "--flops", "5.76e23", "--probability", "0.9"], "chips")
    for value in ("0", "-5", "nan", "inf", "1000.5")
]
BAD += [
    (["samples", *FLEET, "--probability", "0.9", option, value], name)
    for option, name in (
        ("--rate", "snapshot_rate_per_day"), ("--period-days", "period_days"), ("--chip-flops", "chip_flops"),
        ("--run-days", "run_days"),
    )
    for value in ("0", "-1", "nan", "inf")
]  # fmt: skip
BAD += [
    (["samples", "--chips", "1e3", "--flops", "9.9e24", "--probability", "0.9"], "3820 chips, or 114.6 days"),
    (["samples", "--chips", "many", "--flops", "9.9e24", "--probability", "0.9"], "--chips"),
    (["samples", *FLEET, "--probability", "0.9", "--method", "eq1", "--run-days", "9"], "period_days"),
    (["samples", *FLEET, "--probability", "0.9", "--rate", "1e-9"], "sampling every chip"),
    (["samples", *FLEET, "--probability", "0.9", "--rate", "1e-9", "--method", "eq1"], "more different chips"),
    (["probability", *FLEET, "--samples", "100001"], "more different chips"),
    (["probability", *FLEET, "--samples", "1.5"], "samples"),
    (["probability", *FLEET, "--samples", "-1"], "samples"),
    (["probability", *FLEET, "--samples", "100001", "--method", "eq1"], "more different chips"),
    (["smallest-run", "--chips", "1e5", "--samples", "1", "--probability", "0.99"], "raise samples"),
    (["smallest-run", "--chips", "9", "--samples", "1", "--probability", "0.9", "--method", "linearised"], "methods"),
    (["attribute", "--population", "10", "--defects", "11", "--probability", "0.9"], "defects"),
    (["attribute", "--population", "10", "--defects", "0", "--probability", "0.9"], "defects"),
    (["attribute", "--population", "10.5", "--defects", "1", "--probability", "0.9"], "population"),
    (["plan", "--budget", "-1", *FLEET], "budget"),
    (["plan", "--budget", "1", *FLEET], "does not pay"),
    (["plan", "--budget", "1", "--flops", "1e24"], "--chips"),
    (["plan", "--budget", "1", *FLEET, "--stratum", "a:chips=1"], "not both"),
    (["plan", "--budget", "1", "--flops", "1e24", "--stratum", "a"], "NAME:chips"),
    (["plan", "--budget", "1", "--flops", "1e24", "--stratum", "a:chips=x"], "NAME:chips"),
    (["plan", "--budget", "1", "--flops", "1e24", "--stratum", "a:cost=1"], "how many chips"),
    (["sweep", "--vary", "rate=-1,1", *FLEET, "--samples", "3"], "snapshot_rate_per_day"),
    (["sweep", "--vary", "rate=a", *FLEET, "--samples", "3"], "names no values"),
    (["sweep", "--vary", "speed=1", *FLEET, "--samples", "3"], "does not name one parameter"),
    (["sweep", "--vary", "rate=1", "--vary", "rate=2", *FLEET, "--samples", "3"], "does not name one parameter"),
    (["sweep", "--vary", "rate=1", *FLEET], "needs --samples"),
    (["sweep", "--vary", "rate=1", *FLEET, "--samples", "3", "--out", "table.xlsx"], ".csv or .parquet"),
    (["sweep", "--vary", "rate=1", *FLEET, "--samples", "3", "--out", "/nowhere/table.csv"], "cannot write"),
    (["table1", "--mode", "guessed"], "guessed"),
]


@pytest.mark.parametrize(("arguments", "says"), BAD)
def test_bad_input_is_one_clear_error(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analysis", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert run(["analysis", *arguments, "--json"]) == 2
    assert says in json.loads(capsys.readouterr().out)["error"]["message"]
