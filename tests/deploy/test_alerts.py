"""Alerts and dashboard: they parse, name metrics that the server has, and fire when they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import promql_parser as promql
import pytest

from labelveil.label_party.config.sections import load
from labelveil.label_party.monitoring.calls import REASONS
from tests.deploy.documents import DEPLOY, documents
from tests.deploy.promql import Series, firing, seconds
from tests.label_party.conftest import Party
from tests.label_party.serving import get, serving

FILE = DEPLOY / "label-party" / "prometheus" / "alerts.yaml"
DASHBOARD = DEPLOY / "label-party" / "grafana" / "dashboard.json"
RUNBOOK = DEPLOY / "RUNBOOK.md"
OF_PROMETHEUS = {"up"}


def rules() -> list[dict[str, Any]]:
    [document] = documents(FILE)
    return [rule for group in document["groups"] for rule in group["rules"]]


def queries() -> list[str]:
    """Every query of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def selectors(expression: str) -> Iterator[promql.VectorSelector]:
    """Yield every selector of a metric in an expression, which must be one."""
    found: list[promql.Expr] = []
    promql.walk(promql.parse(expression), found.append)
    yield from (node for node in found if isinstance(node, promql.VectorSelector))


@pytest.mark.slow
def test_they_name_metrics_that_the_server_has(party: Party) -> None:
    assert party.release().code == 0
    with serving(party) as server:
        status, text = get(server.observed_at, "/metrics")
    assert status == 200
    # a family is named even before it has a sample
    families = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    names = {name for name in families if not name.endswith("_created")}
    asked = [*queries(), *(rule["expr"] for rule in rules())]
    used = {re.sub("_bucket$", "", found.name) for one in asked for found in selectors(one)}
    assert used - OF_PROMETHEUS <= names
    # what the operator's tables speak of
    spoken = set(re.findall(r"`(label_party_\w+)", RUNBOOK.read_text()))
    assert spoken == {name for name in names if name.startswith("label_party")}
    for rule in rules():
        for found in selectors(rule["expr"]):
            for matcher in found.matchers.matchers:
                if matcher.name == "reason":
                    assert set(matcher.value.split("|")) <= set(REASONS)
                elif matcher.name == "outcome":
                    assert f'{matcher.name}="{matcher.value}"' in text


def test_the_scrape_configuration_finds_server_and_rules() -> None:
    [scrape] = documents(FILE.parent / "scrape.yaml")
    assert [FILE.parent / name for name in scrape["rule_files"]] == [FILE]
    config = load(DEPLOY / "label-party" / "label_party.toml")
    [host, pods] = scrape["scrape_configs"]
    assert host["static_configs"] == [{"targets": [config.observability.listen]}]
    # both come under the name that the rules ask for
    renamed = [r["replacement"] for r in pods["relabel_configs"] if r.get("target_label") == "job"]
    asked = {
        matcher.value
        for rule in rules()
        for found in selectors(rule["expr"])
        for matcher in found.matchers.matchers
        if matcher.name == "job"
    }
    assert {host["job_name"], *renamed} == asked


def test_the_runbook_says_what_each_one_asks() -> None:
    text = RUNBOOK.read_text()
    named = re.findall(r"^\| `(LabelParty\w+)` \|", text, re.MULTILINE)
    assert sorted(named) == sorted(rule["alert"] for rule in rules())


[TESTS] = documents(FILE.parent / "alerts_test.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("case", TESTS["tests"], ids=lambda case: case["name"].replace(" ", "_"))
def test_they_fire_when_they_should(case: dict[str, Any]) -> None:
    """The same file that ``promtool`` runs, evaluated by ourselves: CI need not have it."""
    interval = seconds(case["interval"])
    series = Series(case["input_series"], interval)
    for asked in case["promql_expr_test"]:
        assert asked["expr"] == 'count by (alertname) (ALERTS{alertstate="firing"})'
        expected = {
            promql.parse(each["labels"]).matchers.matchers[0].value: each["value"]
            for each in asked["exp_samples"]
        }
        until = seconds(asked["eval_time"])
        every = seconds(TESTS["evaluation_interval"])
        assert firing(rules(), series, until, every) == expected, asked["eval_time"]


def test_each_one_is_tested() -> None:
    text = (FILE.parent / "alerts_test.yaml").read_text()
    assert set(re.findall(r'alertname="(\w+)"', text)) == {rule["alert"] for rule in rules()}


@pytest.mark.slow
def test_promtool_says_the_same() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    for command in (["test", "rules", "alerts_test.yaml"], ["check", "rules", FILE.name]):
        done = subprocess.run(
            ["promtool", *command], cwd=FILE.parent, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_has_every_panel_once_and_in_its_place() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
