"""The dashboard, the alert rules and the page name what there is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from ferryman.cli.app import app
from ferryman.intake.states import JobState
from ferryman.monitoring.metrics import FAMILIES, metrics
from tests.servers.cache import Missing
from tests.servers.debian import unpacked
from tests.servers.registry import require
from tests.support.plan_world import PlanWorld

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = json.loads((DOCS / "monitoring" / "grafana.json").read_text("utf-8"))
ALERTS = yaml.safe_load((DOCS / "monitoring" / "alerts.yml").read_text("utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
TARGETS = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
EXPRESSIONS = [*(rule["expr"] for rule in RULES), *(target["expr"] for target in TARGETS)]
ENDS = ("_bucket", "_count", "_sum")


def family(name: str) -> str:
    """Return the name in ``FAMILIES`` of a series."""
    stem = next((name.removesuffix(end) for end in ENDS if name.endswith(end)), name)
    return stem if stem in FAMILIES else name


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_each_name_and_label_exists(expression: str) -> None:
    """In expressions, and in what is grouped by."""
    names = re.findall(r"\bferryman_\w+", expression)
    assert names
    assert {family(name) for name in names} <= FAMILIES.keys()
    known = {"plan", "version", "le", *(label for name in names for label in FAMILIES[family(name)].labels)}
    selected = {label for each in re.findall(r"\{([^}]*)\}", expression) for label in re.findall(r"(\w+)\s*[=!]", each)}
    grouped = {label for each in re.findall(r"by \(([^)]*)\)", expression) for label in each.split(", ")}
    assert selected | grouped <= known


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_alert_shows_labels_that_it_has(rule: dict[str, Any]) -> None:
    texts = " ".join(rule["annotations"].values())
    shown = set(re.findall(r"\$labels\.(\w+)", texts))
    grouped = re.findall(r"by \(([^)]*)\)", rule["expr"])
    [name, *_] = re.findall(r"\bferryman_\w+", rule["expr"])
    has = set(grouped[0].split(", ")) if grouped else {"plan", "version", *FAMILIES[family(name)].labels}
    assert shown <= has


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target["expr"][:60])
def test_each_legend_shows_labels_that_it_has(target: dict[str, Any]) -> None:
    shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
    [name, *_] = re.findall(r"\bferryman_\w+", target["expr"])
    has = set(grouped[0].split(", ")) if grouped else {"plan", "version", *FAMILIES[family(name)].labels}
    assert shown <= has


@pytest.mark.parametrize("command", re.findall("`(ferryman [^`]*)`", json.dumps(ALERTS)))
def test_commands_of_alerts_exist(command: str) -> None:
    """With their options."""
    found: Any = typer.main.get_command(app)
    words = command.split()[1:]
    while commands := getattr(found, "commands", {}):
        found = commands[words.pop(0)]
    known = {option for parameter in found.params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known


def test_values_of_labels_exist() -> None:
    """A state of a job, a bucket, a status."""
    from ferryman.records.rows import DISPLAY_STATUSES

    texts = " ".join(EXPRESSIONS)
    assert set(re.findall(r'state="(\w+)"', texts)) <= {state.value for state in JobState}
    statuses = {word for each in re.findall(r'status=~?"([^"]*)"', texts) for word in each.split("|")}
    assert statuses <= DISPLAY_STATUSES.keys()
    assert set(re.findall(r'le="([^"]*)"', texts)) == {"1.0"}


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {family(name) for target in TARGETS for name in re.findall(r"\bferryman_\w+", target["expr"])}
    assert shown == FAMILIES.keys()


def test_the_page_lists_every_metric_with_its_labels() -> None:
    page = (DOCS / "how-to" / "metrics-and-alerts.md").read_text("utf-8")
    rows = re.findall(r"^\| `(ferryman_\w+)` \|([^|]*)\|", page, re.MULTILINE)
    assert {name: re.findall(r"`(\w+)`", labels) for name, labels in rows} == {
        name: list(each.labels) for name, each in FAMILIES.items()
    }


def test_panels_do_not_overlap() -> None:
    places = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24


@pytest.fixture(scope="module")
def promtool() -> str:
    """Prometheus' own checker; where it cannot be had, its test is skipped, and fails in CI."""
    if found := shutil.which("promtool"):
        return found
    try:
        return str(unpacked("prometheus-debian", ["prometheus"]) / "usr" / "bin" / "promtool")
    except Missing as e:
        require(str(e))


def test_prometheus_takes_rules_and_metrics(trial: PlanWorld, promtool: str) -> None:
    trial.put("a")
    trial.run()
    text = metrics(trial.plan, state=trial.state)

    subprocess.run([promtool, "check", "rules", DOCS / "monitoring" / "alerts.yml"], check=True)
    subprocess.run([promtool, "check", "metrics"], input=text, text=True, check=True)


def test_a_plan_that_does_not_succeed_any_more_is_an_alert(tmp_path: Path, promtool: str) -> None:
    """A day and two hours after the last success, and not before."""
    test = {
        "rule_files": [str(DOCS / "monitoring" / "alerts.yml")],
        "tests": [
            {
                "interval": "1h",
                "input_series": [
                    {
                        "series": 'ferryman_run_last_success_timestamp_seconds{plan="notes",version="1"}',
                        "values": "0x30",
                    }
                ],
                "promql_expr_test": [
                    {
                        "expr": 'count(ALERTS{alertname="FerrymanNoSuccess",alertstate="firing"}) or vector(0)',
                        "eval_time": at,
                        "exp_samples": [{"value": number}],
                    }
                    for at, number in (("26h", 0), ("27h", 1))
                ],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))

    subprocess.run([promtool, "test", "rules", tmp_path / "test.yml"], check=True)
