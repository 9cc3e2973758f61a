"""Alerts and dashboard: they parse, name metrics that the server has, and fire when they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest

from label_party.config.sections import load
from label_party.monitoring.calls import REASONS
from tests.deploy.documents import DEPLOY, documents
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
    renamed = [rule["replacement"] for rule in pods["relabel_configs"] if "target_label" in rule]
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


CASES = {
    # metric and its values, a minute each; the alert; the minute asked about
    "LabelPartyBudgetFell": ('label_party_budget_epsilon_spent{account="a"}', "2x20 1x20", 25),
    "LabelPartyLedgerUnreadable": ("label_party_ledger_readable", "1x5 0x20", 20),
    "LabelPartyDiskFull": ("label_party_store_free_bytes", "5e9x5 5e8x20", 20),
    "LabelPartyNotPermitted": (
        'label_party_refusals_total{reason="unknown_client"}', "0x9 1x10", 12,
    ),
    "LabelPartyInternalErrors": (
        'label_party_refusals_total{reason="internal_error"}', "0x9 1x10", 12,
    ),
}  # fmt: skip


@pytest.mark.parametrize("alert", CASES)
def test_they_fire_when_they_should(alert: str, tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    series, values, minute = CASES[alert]
    quiet = values.split()[0]

    def fires(values: str) -> bool:
        test = {
            "rule_files": [str(FILE)],
            "tests": [
                {
                    "interval": "1m",
                    "input_series": [{"series": series, "values": values}],
                    "promql_expr_test": [
                        {
                            "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                            "eval_time": f"{minute}m",
                            "exp_samples": [{"labels": "{}", "value": 1}],
                        }
                    ],
                }
            ],
        }
        path = tmp_path / "test.yaml"
        path.write_text(json.dumps(test))
        return not subprocess.run(
            ["promtool", "test", "rules", path], capture_output=True
        ).returncode

    assert fires(values)
    assert not fires(f"{quiet.partition('x')[0]}x60")


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
