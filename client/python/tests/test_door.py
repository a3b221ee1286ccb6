"""What all engines' connectors share: a gate's rules, a door's counters, and what never reaches an engine."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Node, pattern

import kvstore
from kvstore.doors.door import Door, take_ended, tell_untried
from kvstore.doors.gates import Gate
from kvstore.doors.options import StoreOptions
from kvstore.doors.results import held, landed, stored
from kvstore.errors import Cancelled, NotAdmitted, TimedOut, Unavailable

logger = logging.getLogger("test.kvstore")


def things(name: str) -> kvstore.Namespace:
    return kvstore.Namespace(kind="set", model=f"door-{name}", block_bytes_max=4096)


def names(count: int) -> list[bytes]:
    return [bytes([i]) * 32 for i in range(count)]


@pytest.fixture
def gate() -> Gate:
    return Gate("loads", logger)


def failing() -> Any:
    raise TimedOut("late")


def test_three_failures_shut_a_gate_and_are_logged_once(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert gate.allows()
        assert gate.begin(failing) is None
    assert not gate.allows() and gate.failures == 3
    assert gate.ask(failing) is None  # not called
    assert gate.failures == 3
    assert [each.getMessage() for each in caplog.records] == [
        "kvstore: loads fail: late. The engine does without meanwhile."
    ]


@pytest.mark.parametrize("answer", [None, NotAdmitted("worth more"), Cancelled("given up")])
def test_a_store_that_answers_is_no_failure(gate: Gate, answer: Any) -> None:
    for why in (Unavailable("away"), Unavailable("away"), answer, Unavailable("away"), Unavailable("away")):
        gate.ended(why)
    assert gate.allows() and gate.failures == 4


def test_a_bug_is_a_failure_too(gate: Gate) -> None:
    assert gate.begin(lambda: 1 // 0) is None  # type: ignore[arg-type,return-value]
    assert gate.failures == 1


def test_a_put_that_is_stored_in_part_is_no_failure(gate: Gate, node: Node) -> None:
    with kvstore.Client(node.endpoint, deadline=10) as client:
        space = client.open_set(things("part"))
        put = space.put(names(3), list(pattern(3)))
    assert gate.ask(lambda: put) is put and gate.failures == 0
    assert stored(put).tolist() == [True] * 3


def test_blocks_of_another_size_are_not_right(node: Node) -> None:
    with kvstore.Client(node.endpoint, deadline=10) as client:
        space = client.open_set(things("size"))
        space.put(names(2), [bytes(100), bytes(200)])
        match = space.match(names(3))
        got = space.get(names(3), [bytearray(200) for _ in range(3)])
    assert held(match, 100).tolist() == [True, False, False]
    assert held(match, np.array([100, 200, 0])).tolist() == [True, True, False]
    assert landed(got, 200).tolist() == [False, True, False]


@pytest.fixture
def door(node: Node) -> Any:
    made = Door(StoreOptions(endpoints=node.endpoint), "test", logger, of=" of things")
    yield made
    made.close()


def test_changes_are_told_once_and_pauses_while_they_last(door: Door) -> None:
    door.count("hits", 3)
    door.count("secrets", 1)
    assert door.changes(["hits"]) == {"hits": 3}
    assert door.changes(["hits"]) == {}
    for _ in range(3):
        door.lookups.failed("away")
    assert door.changes(["hits", "failures"]) == {"failures": 3, "paused_lookups": 1}
    assert door.changes(["hits", "failures"]) == {"paused_lookups": 1}
    door.lookups.succeeded()
    assert door.changes(["failures"]) == {"paused_lookups": 0}
    assert door.changes(["failures"]) == {}


def call_of_a_closed_client() -> None:
    raise kvstore.errors.BadRequest("the client is closed")


def test_no_exception_reaches_the_engine_and_none_is_told_after_the_end(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    def call() -> str:
        with door.guarded("a call"):
            raise ValueError("a bug")
        return "goes on"

    assert call() == "goes on"
    assert door.counters["errors"] == 1 and "a call: a bug" in caplog.text
    door.close()
    assert call() == "goes on" and door.counters["errors"] == 1
    for _ in range(4):
        assert door.loads.begin(call_of_a_closed_client) is None
    assert door.loads.failures == 0 and "loads" not in caplog.text
    with pytest.raises(KeyboardInterrupt), door.guarded("a call"):
        raise KeyboardInterrupt


def test_a_namespace_opens_though_nodes_refuse_it_or_are_away(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    door = Door(StoreOptions(endpoints=f"unix://{tmp_path}/nobody"), "test", logger)
    with caplog.at_level(logging.INFO):
        space = door.open(things("away"), "things")
    assert "things of up to 4096 bytes" in caplog.text
    door.lookups.ask(lambda: space.match(names(1), deadline=0.1))
    assert door.lookups.failures == 1
    door.close()


def test_calls_that_have_ended_leave_the_list_in_order(door: Door) -> None:
    space = door.open(things("order"), patience=10)
    calls = [SimpleNamespace(future=space.submit_match(names(1))) for _ in range(3)]
    for each in calls:
        each.future.wait()
    waiting = SimpleNamespace(future=SimpleNamespace(done=lambda: False))
    mixed = [calls[0], waiting, calls[1], SimpleNamespace(future=None)]
    assert take_ended(mixed) == [calls[0], calls[1], SimpleNamespace(future=None)]
    assert mixed == [waiting]


def test_saves_get_their_time_at_the_end(door: Door) -> None:
    space = door.open(things("end"), patience=10)
    saves = [space.submit_put(names(4), list(pattern(4)))]
    door.close(saves)
    assert saves[0].done() and saves[0].result().stored + saves[0].result().already_stored == 4


def test_an_untried_version_is_told(caplog: pytest.LogCaptureFixture) -> None:
    tell_untried(logger, "vLLM", "0.32.0", ("0.31.0", "0.32.0"))
    assert not caplog.records
    tell_untried(logger, "vLLM", "0.33.0", ("0.31.0", "0.32.0"))
    assert "vLLM 0.33.0 was not tried, only 0.31.0, 0.32.0" in caplog.text
