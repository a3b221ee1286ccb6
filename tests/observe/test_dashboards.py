"""Each query of the rules and dashboards, asked of a real Prometheus that scrapes real nodes under load."""

from __future__ import annotations

import json
import re
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import query_seconds
from programs import ROOT, eventually, get
from stack import DEPLOY, RULES, Stack

RECORDED = re.findall(r"- record: (\S+)", RULES.read_text())
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
#: What Grafana puts in, at a scrape a second, with all nodes chosen.
VARIABLES = {"$__rate_interval": "5s", "$node": ".*"}


@dataclass(frozen=True)
class Query:
    name: str
    expr: str


def queries() -> list[Query]:
    found = []
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                expr = target["expr"]
                for variable, value in VARIABLES.items():
                    expr = expr.replace(variable, value)
                found.append(Query(f"{file.stem}: {panel['title']} {target['refId']}", expr))
    return found


def has_number(series: list[dict[str, Any]]) -> bool:
    return any(value != "NaN" for each in series for _, value in each.get("values", [each.get("value")]))


@pytest.mark.parametrize("rule", RECORDED)
def test_each_recording_rule_has_data(stack: Stack, rule: str) -> None:
    # The longest wait: the average over a day leaves the last hour out, here some seconds.
    eventually(f"{rule} has data", lambda: has_number(stack.prometheus.query(rule)), 60)


@pytest.mark.parametrize("query", queries(), ids=lambda query: query.name)
def test_each_query_of_a_dashboard_has_data(stack: Stack, query: Query) -> None:
    assert "$" not in query.expr, "a variable that the test does not know"
    eventually(f"data for {query.expr}", lambda: has_number(stack.prometheus.query_range(query.expr)))
    took = []
    for _ in range(5):
        began = time.perf_counter()
        stack.prometheus.query_range(query.expr)
        took.append(time.perf_counter() - began)
    query_seconds[query.name] = statistics.median(took)


def test_no_rule_fails_and_all_targets_are_up(stack: Stack) -> None:
    for group in stack.prometheus.api("rules")["groups"]:
        assert [(rule["name"], rule["lastError"]) for rule in group["rules"] if rule["health"] != "ok"] == []
    instances = {each["metric"]["instance"] for each in stack.prometheus.query('up{job="kvstore"} == 1')}
    assert instances == {node.instance for node in (*stack.nodes, stack.rdma)}


@pytest.mark.parametrize("file", [RULES, ROOT / "docs/runbook.md", *DASHBOARDS], ids=lambda file: file.name)
def test_each_metric_that_is_named_is_exported(stack: Stack, file: Path) -> None:
    text = (
        stack.disk.metrics()
        + stack.cluster.metrics()
        + get(f"http://{stack.rdma.instance}/")
        + get(f"http://{stack.worker.instance}/metrics")
        + get(f"http://{stack.engine.instance}/metrics")
    )
    exported = set(re.findall(r"^(?:# TYPE )?((?:vllm:|sglang:)?kvstore_\w+)", text, re.MULTILINE))
    named = set(re.findall(r"(?<![\w:])(?:vllm:|sglang:)?kvstore_\w+", file.read_text()))
    assert named <= exported, f"unknown: {sorted(named - exported)}"
