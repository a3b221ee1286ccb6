"""A node speaks with clients and nodes of the build before, and both read each other's files: what docs/operating.md promises for
upgrades, with the programs of both builds."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import CURRENT, Build, Node, write_trace
from programs import Etcd, eventually

ASKED_FOR, BLOCKS = 2304, 512  # by the trace
HITS = ASKED_FOR - BLOCKS


@pytest.fixture(params=["previous node", "previous client"])
def builds(request: pytest.FixtureRequest, previous: Build) -> tuple[Build, Build]:
    """Node's and client's."""
    return (previous, CURRENT) if request.param == "previous node" else (CURRENT, previous)


@pytest.mark.parametrize("transport", ["tcp", "unix", "shm"])
def test_replay_hits_as_with_one_build(builds: tuple[Build, Build], folder: Path, trace: Path, transport: str) -> None:
    node = Node(builds[0], folder, "node", "--capacity-blocks=4000")
    try:
        endpoint = node.tcp if transport == "tcp" else node.unix
        told = builds[1].replay(trace, [endpoint], f"--transport={transport}")
        assert (told["references"], told["hits"], told["stored"]) == (ASKED_FOR, HITS, BLOCKS)
    finally:
        node.stop()


def test_small_node_evicts_as_with_one_build(builds: tuple[Build, Build], folder: Path, trace: Path) -> None:
    told = []
    for name, build in (("mixed", builds[0]), ("own", builds[1])):
        node = Node(build, folder, name, "--capacity-blocks=300")
        try:
            told.append(builds[1].replay(trace, [node.unix]))
        finally:
            node.stop()
    assert 0 < told[0]["hits"] < HITS
    assert told[0]["hits"] == told[1]["hits"] and told[0]["stored"] == told[1]["stored"]


def test_tools_of_one_look_at_nodes_of_the_other(builds: tuple[Build, Build], folder: Path, trace: Path) -> None:
    node = Node(builds[0], folder, "node", "--capacity-blocks=4000")
    try:
        builds[0].replay(trace, [node.unix])
        where = f"--endpoint={node.unix}"
        for verb in (["status"], ["namespaces"], ["curve"], ["ping"]):
            assert builds[1].ctl(*verb, where), verb
    finally:
        node.stop()


def test_spilled_blocks_survive_upgrade_and_downgrade(previous: Build, folder: Path, trace: Path) -> None:
    spill = [f"--spill-path={folder}/spill", "--spill-capacity-blocks=4000", "--capacity-blocks=600"]
    for number, build in enumerate((previous, CURRENT, previous)):
        node = Node(build, folder, "node", *spill)
        try:
            node.wait_for_disk()
            told = build.replay(trace, [node.unix])
            # A node that ends writes its memory to its disk: all that the one before had is there.
            assert told["hits"] == (HITS if number == 0 else ASKED_FOR), build.name
            assert (told["disk_hits"] > 0) == (number > 0), build.name
        finally:
            node.stop()


class Load:
    """Replays the trace again and again, until stopped; each with every byte checked."""

    def __init__(self, replay: Callable[[], dict[str, Any]]) -> None:
        self._replay, self._stop = replay, threading.Event()
        self.rounds, self.hits, self.failure = 0, 0, ""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.2):
                self.hits += self._replay()["hits"]
                self.rounds += 1
        except AssertionError as error:
            self.failure = str(error)

    def go_on(self) -> None:
        """Until one more round began and ended."""
        until = self.rounds + 2
        eventually("the load goes on", lambda: self.rounds >= until or self.failure, 60)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize("direction", ["up", "down"])
def test_cluster_is_replaced_node_by_node_under_load(previous: Build, folder: Path, direction: str) -> None:
    if shutil.which("etcd") is None:
        pytest.skip("there is no etcd (deploy/install-dependencies.sh --cluster)")
    old, new = (previous, CURRENT) if direction == "up" else (CURRENT, previous)
    # So many that none is hot: what is, is on all nodes sooner or later, and moves meanwhile.
    trace, asked_for = write_trace(folder / "trace.jsonl", conversations=256, turns=4), 256 * 4 * (1 + 2 + 3 + 4)
    etcd = Etcd(folder)
    in_cluster = [f"--etcd={etcd.url}", "--etcd-lease-seconds=3", "--capacity-blocks=4000", "--drain-seconds=10"]
    parts: dict[str, Node] = {}
    loads: list[Load] = []
    try:
        for name in ("a", "b", "c"):
            parts[name] = Node(old, folder, name, *in_cluster)
        seeds = [parts["a"].tcp, parts["b"].tcp, parts["c"].tcp]

        def all_know_all(build: Build) -> bool:
            maps = [build.ctl("cluster", "map", f"--endpoint={each.unix}") for each in parts.values()]
            return len({each["epoch"] for each in maps}) == 1 and all(len(each["nodes"]) == 3 for each in maps)

        eventually("all know all", lambda: all_know_all(old))
        old.replay(trace, seeds)
        # On a busy machine the first passes lose puts to their deadlines.
        before = 0
        for _ in range(4):
            before = old.replay(trace, seeds)["hits"]
            if before > 0.98 * asked_for:
                break
        assert before > 0.98 * asked_for
        loads = [Load(lambda build=build: build.replay(trace, seeds)) for build in (old, new)]  # type: ignore[misc]
        for name in ("a", "b", "c"):
            tcp = parts[name].tcp
            parts[name].stop()
            parts[name] = Node(new, folder, name, *in_cluster, f"--listen={tcp}")
            eventually("all know all again", lambda: all_know_all(new))
            for load in loads:
                load.go_on()
        for load in loads:
            load.stop()
            assert load.failure == "" and load.rounds > 3
            assert load.hits >= 0.95 * before * load.rounds
    finally:
        for load in loads:
            load.stop()
        for part in parts.values():
            part.stop()
        etcd.stop()
