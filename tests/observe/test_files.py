"""What can be said of rules, dashboards and runbook without running a node."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from programs import ROOT
from stack import DEPLOY, RULES, engine_metrics, shortened

UNIT_TESTS = ROOT / "tests/observe/kvstore.rules.test.yml"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
ALERTS = re.findall(r"- alert: (\w+)", RULES.read_text())


def succeeds(*command: object) -> None:
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_shipped_rules(promtool: str) -> None:
    succeeds(promtool, "check", "rules", RULES)


def test_promtool_accepts_the_example_configuration(promtool: str) -> None:
    succeeds(promtool, "check", "config", DEPLOY / "prometheus/prometheus.yml")


def test_amtool_accepts_the_example_configuration(amtool: str) -> None:
    succeeds(amtool, "check-config", DEPLOY / "prometheus/alertmanager.yml")


def test_each_alert_fires_and_holds_as_its_unit_test_says(promtool: str) -> None:
    succeeds(promtool, "test", "rules", UNIT_TESTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_a_unit_test_in_which_it_fires_and_one_in_which_it_does_not(alert: str) -> None:
    text = UNIT_TESTS.read_text()
    assert re.search(rf"alertname: {alert}\n +exp_alerts:\n", text)
    assert f"alertname: {alert}}}" in text


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_says_how_bad_it_is_and_where_to_read_on(alert: str) -> None:
    rule = re.split(r"- alert: |- record: ", RULES.read_text().split(f"- alert: {alert}\n")[1])[0]
    assert re.search(r"severity: (critical|warning)\n", rule)
    assert re.search(r'summary: ".+"\n', rule)
    assert re.search(r'description: ".+"\n', rule)
    assert f"runbook_url: docs/runbook.md#{alert.lower()}\n" in rule


def test_the_runbook_has_a_section_for_each_alert_and_for_nothing_else() -> None:
    headings = re.findall(r"^## (Kvstore\w+)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    assert headings == ALERTS


def test_the_metrics_of_engines_are_those_of_the_connector() -> None:
    """vLLM's connector names them first; prometheus_client adds the `_total`."""
    source = (ROOT / "client/python/kvstore/vllm/stats.py").read_text()
    counters = re.findall(r'^    "(\w+)": "', source.split("COUNTERS = {")[1].split("\n}")[0], re.MULTILINE)
    told = engine_metrics()
    assert counters
    assert [name for name in counters if f"vllm:kvstore_{name}_total" not in told] == []
    assert 'sglang:kvstore_paused{calls="one"}' in told


def test_shortening_changes_times_and_nothing_else() -> None:
    assert shortened("  expr: rate(a:rate5m[5m]) > avg_over_time(b[1d] offset 1h)\n  for: 15m\n") == (
        "  expr: rate(a:rate5m[5s]) > avg_over_time(b[40s] offset 5s)\n  for: 6s\n"
    )


def test_the_dashboards_are_what_their_script_writes() -> None:
    succeeds(sys.executable, DEPLOY / "grafana/make_dashboards.py", "--check")


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_each_panel_asks_a_question_and_says_where_the_answer_turns_bad(file: Path) -> None:
    panels = json.loads(file.read_text())["panels"]
    assert panels
    for panel in panels:
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"].endswith("?")
        assert defaults["unit"]
        assert len(defaults["thresholds"]["steps"]) > 1, panel["title"]


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_panels_do_not_lie_on_each_other(file: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(file.read_text())["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        rows = range(place["y"], place["y"] + place["h"])
        cells = {(x, y) for x in columns for y in rows}
        assert not cells & taken, panel["title"]
        assert columns[-1] < 24
        taken |= cells
