"""Files for containers and dashboards name commands, options, metrics and labels that there are."""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import typer.main

from firmware_sim import chip
from weighbridge.cli.main import application
from weighbridge.rpc.metrics import Metrics

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CONTAINERS = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
COMMANDS = {
    target: json.loads(command)
    for target, command in re.findall(r"^FROM base AS (\w+)\n(?:EXPOSE .*\n)?CMD (\[.*\])$", CONTAINERS, re.MULTILINE)
}
DASHBOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
_FUNCTIONS = {"sum", "rate", "increase", "histogram_quantile", "sort_desc", "by", "or", "vector", "label_values"}


def shown() -> dict[str, set[str]]:
    """The series that a service shows, with their labels and those that Prometheus adds."""
    metrics = Metrics()
    metrics.stage("draw")
    metrics.stage("done", "draw", 1.0)
    metrics.findings([{"id": "replay.mismatch", "severity": "violation"}])
    metrics.refused()
    with metrics.call("Get", lambda: "OK"):
        pass
    series: dict[str, set[str]] = defaultdict(lambda: {"job", "instance"})
    for line in metrics.text().splitlines():
        if found := re.match(r"(\w+)(?:\{(.*)\})? ", line):
            series[found[1]] |= set(re.findall(r'(\w+)="', found[2] or ""))
    return series


def expressions() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    variables = [each["query"]["query"] for each in DASHBOARD["templating"]["list"] if isinstance(each["query"], dict)]
    return panels + variables


def test_there_is_an_image_for_every_service() -> None:
    services = set(typer.main.get_command(application()).commands["serve"].commands)  # type: ignore[attr-defined]
    assert set(COMMANDS) == services | {"chip", "console"}


@pytest.mark.parametrize("target", sorted(COMMANDS))
def test_commands_of_containers_parse(target: str) -> None:
    words, command = list(COMMANDS[target]), typer.main.get_command(application())
    while words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
    command.make_context(target, list(words))
    if target == "chip":
        chip.parser().parse_args(words)


def test_containers_run_pinned_as_nobody_in_particular() -> None:
    assert "--require-hashes" in CONTAINERS
    assert "-c constraints.txt" in CONTAINERS
    assert ":latest" not in CONTAINERS
    base = CONTAINERS.split(" AS base")[1]
    assert re.search(r"^USER 10001$", base, re.MULTILINE)
    assert "USER root" not in base
    for name in re.findall(r"([\w.-]+\.(?:lock|txt))\b", CONTAINERS):
        assert (DEPLOY.parent / Path(name).name).is_file(), name


@pytest.mark.parametrize("expression", expressions())
def test_the_dashboard_asks_for_what_services_show(expression: str) -> None:
    series = shown()
    bare = re.sub(r'"[^"]*"', '""', expression)
    assert bare.count("(") == bare.count(")")
    assert bare.count("{") == bare.count("}")
    named = set(re.findall(r"\b(?:weighbridge|process)_\w+", bare))
    assert named, expression
    assert named <= set(series), expression
    labels = set(re.findall(r'(\w+)(?:=|!=|=~)""', bare))
    for several in re.findall(r"by \(([^)]*)\)", bare):
        labels |= set(re.split(r",\s*", several))
    for name in named:
        assert labels <= series[name], expression
    words = set(re.findall(r"\b([a-z_]+) ?\(", bare))
    assert words <= _FUNCTIONS, expression


def test_every_metric_of_ours_is_on_the_dashboard_and_panels_do_not_overlap() -> None:
    text = " ".join(expressions())
    families = {name.removesuffix("_bucket") for name in shown() if name.startswith("weighbridge_")}
    families = {each for each in families if not each.endswith(("_created", "_count", "_sum"))}
    assert {each for each in families if each not in text} == set()
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at: dict[str, Any] = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places, panel["title"]
        places |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_what_the_page_says_of_ports_and_mounts_is_in_the_file() -> None:
    page = (DEPLOY.parent / "docs" / "containers.md").read_text(encoding="utf-8")
    ports = {
        row[0].lower(): row[1] for row in re.findall(r"^\| (chip|Prover|Verifier|console) \| (\d+) \|", page, re.M)
    }
    assert ports == {target: re.findall(r":(\d+)", shlex.join(words))[0] for target, words in COMMANDS.items()}
    for mount in ("/data", "/run/credentials", "/run/trust", "/run/weighbridge", "/var/cache/weighbridge"):
        assert f"`{mount}`" in page
        assert mount in CONTAINERS
