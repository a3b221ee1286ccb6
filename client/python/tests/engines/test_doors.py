"""One list of store failures for every engine connector ("door"): each is called as its engine calls it, without a model.

Doors need engines that do not fit in one environment: the others' are skipped.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Node, free_port, resident_bytes
from door import HERE, Door, check, numbers
from door_lmcache import LmCache
from door_sglang import Embeddings, HiCache
from door_vllm import Connector, Encoder, Tier
from proxy import Proxy

if HERE == "sglang":
    from sglang_pools import sglang_context  # noqa: F401  # a fixture that each test has


#: Timeouts of calls that wait for a stopped node, and of all others.
HASTY, PATIENT = 0.2, 5.0
DOORS: dict[str, tuple[str, Callable[..., Door], Any]] = {
    "connector": ("vllm", Connector, None),
    "tier": ("vllm", Tier, None),
    "encoder": ("vllm", Encoder, None),
    "hicache": ("sglang", HiCache, "v1"),
    "hicache v2": ("sglang", HiCache, "v2"),
    "hicache copying": ("sglang", HiCache, "copying"),
    "embeddings": ("sglang", Embeddings, None),
    "lmcache plugin": ("lmcache", LmCache, "plugin"),
    "lmcache native": ("lmcache", LmCache, "native_plugin"),
}


@pytest.fixture(params=DOORS)
def doors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Makes doors of one kind that share their blocks."""
    engine, kind, how = DOORS[request.param]
    if engine != HERE:
        pytest.skip(f"{engine} has an environment of its own")
    if engine == "vllm":
        pytest.importorskip("vllm.v1.kv_offload.tiering.base")
        pytest.importorskip("vllm.distributed.ec_transfer.ec_connector.base")
        import tiny

        how = tiny.make("llama", tmp_path_factory.mktemp("model"))
    made: list[Door] = []
    salt = f"door-{os.getpid()}-{next(numbers)}"

    def make(endpoint: str, seconds: float = PATIENT) -> Door:
        made.append(kind(endpoint, seconds, how, salt))
        made[-1].warm()
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def proxied() -> Iterator[tuple[Node, Proxy]]:
    port = free_port()
    node = Node("--listen", f"tcp://127.0.0.1:{port}")
    proxy = Proxy(("127.0.0.1", port))
    yield node, proxy
    proxy.close()
    node.close()


FOUR = (1, 2, 3, 4)


def until_used(door: Door, items: Sequence[int] = FOUR, seconds: float = 90) -> None:
    """Waits until all items are stored and come back: pauses after failures last up to half a minute."""
    until = time.monotonic() + seconds
    while True:
        door.store(items)
        if all(door.load(items)):
            return
        assert time.monotonic() < until
        time.sleep(0.1)


def test_what_one_stores_another_loads(doors: Any, own_node: Node) -> None:
    one, other = doors(own_node.endpoint), doors(own_node.endpoint)
    one.store(FOUR)
    assert other.load((*FOUR, 5)) == [True] * 4 + [False]


def test_a_node_that_is_dead_at_the_start_is_a_miss_and_used_when_it_comes(doors: Any, own_node: Node) -> None:
    own_node.kill()
    door = doors(own_node.endpoint, HASTY)
    began = time.monotonic()
    for _ in range(5):
        door.store(FOUR)
        assert door.load(FOUR) == [False] * 4
    assert time.monotonic() - began < 20
    own_node.start()
    until_used(door)


def test_a_node_that_dies_is_a_miss_and_used_when_it_is_back_empty(doors: Any, own_node: Node) -> None:
    door = doors(own_node.endpoint)
    until_used(door)
    own_node.kill()
    began = time.monotonic()
    for _ in range(5):
        assert door.load(FOUR) == [False] * 4
        door.store(FOUR)
    assert time.monotonic() - began < 30
    own_node.start()
    assert doors(own_node.endpoint).load((1, 2)) == [False, False]
    until_used(door)


def test_a_node_that_stands_still_costs_the_timeouts_and_is_used_when_it_goes_on(doors: Any, own_node: Node) -> None:
    door = doors(own_node.endpoint, HASTY)
    until_used(door)
    own_node.pause()
    began = time.monotonic()
    for _ in range(5):
        assert door.load(FOUR) == [False] * 4
        door.store((5, 6))
    assert time.monotonic() - began < 30
    own_node.resume()
    until_used(door, (*FOUR, 5, 6))


def test_a_slow_node_is_waited_for(doors: Any, proxied: tuple[Node, Proxy]) -> None:
    node, proxy = proxied
    doors(node.endpoint).store(FOUR)
    door = doors(proxy.endpoint)
    until_used(door, (9,))
    proxy.delay = 0.1
    assert door.load(FOUR) == [True] * 4
    door.store((7, 8))
    proxy.delay = 0.0
    until_used(door, (7, 8))


def test_wrong_bytes_are_never_taken_for_right_ones(doors: Any, proxied: tuple[Node, Proxy]) -> None:
    node, proxy = proxied
    doors(node.endpoint).store(FOUR)
    door = doors(proxy.endpoint)
    until_used(door, (9,))
    proxy.flips = True
    assert not all(door.load(FOUR))
    flipped = proxy.flipped
    assert flipped > 0
    door.store((5, 6, 7, 8))
    assert proxy.flipped > flipped
    proxy.flips = False
    doors(node.endpoint).load((5, 6, 7, 8))  # compares the results
    until_used(door)


def test_a_full_node_keeps_what_it_can_and_the_engine_goes_on(doors: Any) -> None:
    node = Node(capacity="4MiB")
    try:
        one, other = doors(node.endpoint), doors(node.endpoint)
        items = list(range(100, 100 + one.many))
        for begin in range(0, len(items), 50):
            one.store(items[begin : begin + 50])
        items.reverse()  # engines store missing items, here in reverse order
        came = [each for begin in range(0, len(items), 50) for each in other.load(items[begin : begin + 50])]
        assert 0 < sum(came) < len(items)
    finally:
        node.close()


def test_eight_threads_move_items_at_once(doors: Any, node: Node) -> None:
    """On one door, or on eight where the engine has one thread per door."""
    first = doors(node.endpoint)
    many = [first] * 8 if first.is_shared else [first, *(doors(node.endpoint) for _ in range(7))]
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            own = [1000 * number + i for i in range(3)]
            for i in range(6):
                many[number].store(own)
                check(all(many[number].load(own)) or i == 0, "lost")
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(180)
    assert not problems, problems
    assert not any(each.is_alive() for each in threads)


def test_memory_stays_flat_over_many_calls(doors: Any, node: Node) -> None:
    """With KV_DOOR_CALLS=100000 more calls than by default."""
    calls = int(os.environ.get("KV_DOOR_CALLS", "20000"))
    door = doors(node.endpoint)
    items = (1, 2, 3, 4)
    until_used(door, items)
    door.count_calls()
    while door.call_count < max(2000, calls // 10):  # objects made once and kept
        door.one_round(items)
    gc.collect()
    objects = len(gc.get_objects())  # a list of some MiB
    before, first, began = resident_bytes(), door.call_count, time.monotonic()
    while door.call_count < first + calls:
        door.one_round(items)
    gc.collect()
    grown, took = resident_bytes() - before, time.monotonic() - began
    more = len(gc.get_objects()) - objects
    print(f"{door.call_count - first} calls in {took:.0f} s: {grown / 1024:.0f} KiB and {more} objects more")
    # The heap has room for small objects for a while: those are counted.
    assert grown < 1 << 20
    assert more < 500


def shared_files() -> set[str]:
    """Files in /dev/shm of this process: open, mapped, or with its number in the name. Skips unnamed ones."""
    found = {each for each in os.listdir("/dev/shm") if str(os.getpid()) in re.split(r"\W|_", each)}
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/dev/shm/" in line:
            found.add(line.split("/dev/shm/")[1])
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if (target := os.readlink(each)).startswith("/dev/shm/"):
                found.add(target.removeprefix("/dev/shm/"))
    return {each for each in found if not each.endswith(" (deleted)")}


def test_no_file_is_left_in_shared_memory(doors: Any, node: Node) -> None:
    before = shared_files()
    door = doors(node.endpoint)
    until_used(door)
    during = shared_files() - before
    # vLLM's pool in host memory is vLLM's own file.
    assert all(each.startswith("vllm_offload") for each in during) and (not during or isinstance(door, Tier)), during
    door.close()
    gc.collect()
    assert not (shared_files() - before - during)
    assert not [each for each in during if os.path.exists(f"/dev/shm/{each}")]
