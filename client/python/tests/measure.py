"""The figures of docs/python.md: Python beside the C++ client, in turn, against one node. Medians of the rounds' ratios.

python client/python/tests/measure.py [--rounds 7] [--seconds 1] [--build build/release] [--only one calls sets submit]

one     match and get of one block of 4 KiB: what Python adds to a call of the C ABI, blocking, by futures and in an event loop
calls   match, get, the GIL and hash_chain, from Python
sets    exists, get and put of 512 independent keys of 64 KiB, beside a chain of as many blocks; in C++
submit  a submit's cost to its caller with 64 gets of 2 MiB x 16 in flight; in C++
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
from conftest import ROOT, Node

import kvstore


def cpp(build: Path, endpoint: str, seconds: float, *options: str) -> dict[str, float]:
    """kvstore-bench, on one connection with one call in flight, its thread the client's own."""
    arguments = [str(build / "client/tools/kvstore-bench"), "run", "--endpoint", endpoint, "--connections", "1"]
    arguments += ["--duration", f"{seconds}s", "--warm-up", "0.2s", "--json", *options]
    return json.loads(subprocess.run(arguments, capture_output=True, check=True).stdout)


def quantile(latencies: list[float]) -> float:
    return statistics.median(latencies) * 1e6


def blocking(call: Callable[[], object], seconds: float) -> list[float]:
    latencies, now = [], time.perf_counter()
    until = now + seconds
    while now < until:
        call()
        after = time.perf_counter()
        latencies.append(after - now)
        now = after
    return latencies


async def awaiting(call: Callable[[], Awaitable[object]], seconds: float) -> list[float]:
    latencies, now = [], time.perf_counter()
    until = now + seconds
    while now < until:
        await call()
        after = time.perf_counter()
        latencies.append(after - now)
        now = after
    return latencies


def c_calls(
    library: ctypes.CDLL,
    endpoint: str,
    small: kvstore.Space,
    chain: np.ndarray,
    large: kvstore.Space,
    chains: list[np.ndarray],
) -> tuple[Callable[[], object], Callable[[int], object], Callable[[], object]]:
    """The blocking client of the C ABI, by ctypes, with arguments made once: match, get, close."""

    class Node(ctypes.Structure):
        _fields_ = [("endpoint", ctypes.c_char_p), ("name", ctypes.c_char_p), ("weight", ctypes.c_double)]

    done = (ctypes.c_uint64 * 22)()  # kvs_completion

    def request(op: int, space: int = 0, **words: int) -> Callable[[], int]:
        """kvs_run of a kvs_request; a word is named by its place in the struct. Returns block_count."""
        made = (ctypes.c_uint64 * 26)()
        made[0], made[1], made[2], made[3] = 26 * 8, op, space, 10**7
        for index, value in words.items():
            made[int(index[1:])] = value
        size = ctypes.c_size_t(ctypes.sizeof(done))

        def run() -> int:
            assert library.kvs_run(client, made, done, size) == 0
            return int(done[4])

        return run

    node = Node(endpoint.encode(), None, 0.0)
    options = (ctypes.c_uint64 * 14)()
    options[0], options[1], options[2], options[4] = 14 * 8, ctypes.addressof(node), 1, 1
    client, spaces = ctypes.c_void_p(), []
    assert library.kvs_client_open(options, ctypes.byref(client)) == 0
    for each in (small, large):
        text = ctypes.create_string_buffer(each.namespace.text.encode())
        request(1, w25=ctypes.addressof(text))()
        spaces.append(done[19] >> 32)
    memory = ctypes.c_void_p()
    assert library.kvs_allocate(client, ctypes.c_size_t(32 << 20), ctypes.byref(memory)) == 0
    count = len(chains[0])
    blocks = (ctypes.c_void_p * count)(*[memory.value + i * large.block_bytes for i in range(count)])
    match = request(3, spaces[0], w6=chain.ctypes.data, w7=len(chain))
    gets = [request(4, spaces[1], w6=each.ctypes.data, w7=count, w8=ctypes.addressof(blocks)) for each in chains]

    def get(i: int) -> None:
        assert gets[i]() == len(blocks)  # which has to live as long as the requests that point to it

    assert match() == len(chain)
    return match, get, lambda: library.kvs_client_close(client)


def show(what: str, theirs: list[float], ours: list[float], unit: str, target: str) -> None:
    ratios = [b / a for a, b in zip(theirs, ours, strict=True)]
    print(
        f"| {what} | {unit} | {statistics.median(theirs):.4g} | {statistics.median(ours):.4g} |"
        f" {statistics.median(ratios):.2f} | ({min(ratios):.2f}-{max(ratios):.2f}) | {target} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--only", nargs="+", choices=list(MEASURES), default=list(MEASURES), metavar="ROWS")
    given = parser.parse_args()
    node = Node(capacity="2GiB", binary=given.build / "store/node/kvstore-node")
    try:
        print("| what | unit | C++ | Python | ratio | (least-most) | target |")
        print("| --- | --- | ---: | ---: | ---: | --- | --- |")
        for name in given.only:
            MEASURES[name](given, node.endpoint)
    finally:
        node.close()


def requests_of(client: kvstore.Client, call: Callable[[], object]) -> int:
    """How many requests the client sent its nodes for one call."""
    before = sum(each["calls"] for each in client.nodes())
    call()
    return sum(each["calls"] for each in client.nodes()) - before


def measure_sets(given: argparse.Namespace, endpoint: str) -> None:
    count, size = 512, 65536
    with kvstore.Client(endpoint, deadline=30, connections_per_node=1, rdma=False) as client:
        store = client.open_set(kvstore.Namespace(model="measure-sets", kind="set", block_bytes_max=size))
        names = np.random.default_rng(1).integers(0, 256, (count, 32), dtype=np.uint8)
        blocks = np.zeros((count, size), np.uint8)
        calls = (lambda: store.put(names, blocks), lambda: store.match(names), lambda: store.get(names, blocks))
        round_trips = dict(zip(("put", "match", "get"), (requests_of(client, call) for call in calls), strict=True))
        assert store.get(names, blocks).landed_count == count
    for op in ("match", "get", "put"):
        options = ["--op", op, "--transport", "unix", "--block-bytes", "64KiB", "--batch", str(count)]
        chains, sets = [], []
        for turn in range(given.rounds):
            # In turn, with new names for every put: blocks already stored are not sent.
            for times, more in ((chains, []), (sets, ["--set"]))[:: 1 if turn % 2 == 0 else -1]:
                done = cpp(given.build, endpoint, given.seconds, *options, "--salt", str(turn), *more)
                if done["calls"] == 0:
                    raise SystemExit(f"no {op} has ended within {given.seconds} s: give more --seconds")
                times.append(done["p50_us"])
        what = "exists" if op == "match" else op
        trips = f"{round_trips[op]} round trip" + ("" if round_trips[op] == 1 else "s")
        show(f"{what} of {count} keys of 64 KiB, {trips}, beside a chain, p50", chains, sets, "us", "at most 1.15")


def measure_submit(given: argparse.Namespace, endpoint: str) -> None:
    for transport in ("shm", "unix"):
        arguments = [str(given.build / "client/tools/kvstore-bench"), "submit", "--endpoint", endpoint, "--json"]
        arguments += ["--transport", transport, "--duration", f"{given.seconds}s"]
        runs = [
            json.loads(subprocess.run(arguments, capture_output=True, check=True).stdout) for _ in range(given.rounds)
        ]
        assert all(each["missing_blocks"] == 0 for each in runs)
        for op in ("get", "match"):
            p50, p99 = ([each[f"submit_{op}"][name] for each in runs] for name in ("p50_us", "p99_us"))
            print(
                f"| submit a {op}, {transport}, p99 (p50 {statistics.median(p50):.3g}) | us |"
                f" {statistics.median(p99):.3g} | | | ({min(p99):.3g}-{max(p99):.3g}) | at most 5 |"
            )


def measure_one(given: argparse.Namespace, endpoint: str) -> None:
    with kvstore.Client(endpoint, deadline=10, connections_per_node=1) as client:
        space = client.open(kvstore.Namespace(model="measure-one", block_size=16, block_bytes=4096))
        chain, block = space.hash_chain(np.arange(16)), np.zeros((1, 4096), np.uint8)
        space.put(chain, block)
        library = ctypes.CDLL(str(given.build / "client/libkvstore.so"))
        c_match, c_get, close = c_calls(library, endpoint, space, chain, space, [chain])

        async def together() -> None:
            await asyncio.gather(*(space.submit_match(chain) for _ in range(64)))

        ways = {
            "C match": lambda: blocking(c_match, given.seconds),
            "match": lambda: blocking(lambda: space.match(chain), given.seconds),
            "submit_match().result()": lambda: blocking(lambda: space.submit_match(chain).result(), given.seconds),
            "await submit_match()": lambda: asyncio.run(awaiting(lambda: space.submit_match(chain), given.seconds)),
            "64 of them together, each": lambda: [each / 64 for each in asyncio.run(awaiting(together, given.seconds))],
            "C get": lambda: blocking(lambda: c_get(0), given.seconds),
            "get": lambda: blocking(lambda: space.get(chain, block), given.seconds),
            "await submit_get()": lambda: asyncio.run(awaiting(lambda: space.submit_get(chain, block), given.seconds)),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(given.rounds):
            for way, run in ways.items():
                times[way].append(quantile(run()))
        for way, ours in times.items():
            theirs = times["C get" if "get" in way else "C match"]
            more = [b - a for a, b in zip(theirs, ours, strict=True)]
            print(
                f"| {way}, 4 KiB, p50 | us | {statistics.median(theirs):.1f} | {statistics.median(ours):.1f} |"
                f" {statistics.median(more):+.1f} us | ({min(more):+.1f} to {max(more):+.1f}) | at most 8 us more |"
            )
        close()


def measure_calls(given: argparse.Namespace, endpoint: str) -> None:
    client = kvstore.Client(endpoint, deadline=10, connections_per_node=1)
    small = client.open(kvstore.Namespace(model="measure", block_size=16, block_bytes=4096))
    chain = small.hash_chain(np.arange(16 * 256))
    small.put(chain, np.zeros((256, 4096), np.uint8))
    large = client.open(kvstore.Namespace(model="measure", block_size=16, block_bytes=2 << 20))
    chains = [large.hash_chain(np.arange(16 * 16) + 1000 * i) for i in range(16)]
    memory = client.empty((16, 2 << 20))
    for each in chains:
        large.put(each, memory)
    turn = iter(range(10**9))

    library = ctypes.CDLL(str(given.build / "client/libkvstore.so"))
    c_match, c_get, close = c_calls(library, endpoint, small, chain, large, chains)
    bare, theirs, ours, loop = [], [], [], []
    match = ["--op", "match", "--transport", "unix", "--block-bytes", "4KiB", "--batch", "256"]
    for _ in range(given.rounds):
        bare.append(cpp(given.build, endpoint, given.seconds, *match)["p50_us"])
        theirs.append(quantile(blocking(c_match, given.seconds)))
        ours.append(quantile(blocking(lambda: small.match(chain), given.seconds)))
        loop.append(quantile(asyncio.run(awaiting(lambda: small.submit_match(chain), given.seconds))))
    show("match of 256 blocks, Unix, blocking, p50", theirs, ours, "us", "at most 1.2")
    show("the same, asyncio, p50", theirs, loop, "us", "at most 1.6")
    show("the same, blocking, beside a client on the caller's own thread", bare, ours, "us", "")

    theirs, ours, held = [], [], []
    for _ in range(given.rounds):
        for rates, call in (
            (theirs, lambda: c_get(next(turn) % 16)),
            (ours, lambda: large.get(chains[next(turn) % 16], memory)),
        ):
            began = time.perf_counter()
            calls = len(blocking(call, given.seconds))
            rates.append(calls * (32 << 20) / (time.perf_counter() - began) / 1e9)
        for _ in range(50):
            began = time.thread_time()
            future = large.submit_get(chains[next(turn) % 16], memory)
            middle = time.thread_time()
            future.wait()  # without the GIL
            after = time.thread_time()
            future.result()
            held.append((middle - began + time.thread_time() - after) * 1e6)
    show("get 2 MiB x 16, shm", theirs, ours, "GB/s", "at least 0.97")
    print(f"| the GIL held by a get of 32 MiB, p50 | us | | {statistics.median(held):.1f} | | | at most 50 |")

    text = small.namespace.text.encode()
    tokens = np.random.default_rng(1).integers(0, 2**31, 16384, dtype=np.uint32)
    room = np.zeros((1024, 32), np.uint8)
    count = ctypes.c_size_t()
    arguments = (
        text,
        tokens.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_size_t(len(tokens)),
        room.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_size_t(1024),
        ctypes.byref(count),
    )
    assert library.kvs_hash_chain(*arguments) == 0
    assert (room == small.hash_chain(tokens)).all()
    theirs, ours = [], []
    for _ in range(given.rounds):
        theirs.append(quantile(blocking(lambda: library.kvs_hash_chain(*arguments), given.seconds / 4)))
        ours.append(quantile(blocking(lambda: small.hash_chain(tokens), given.seconds / 4)))
    show("hash_chain of 16,384 tokens, C ABI", theirs, ours, "us", "at most 1.1")
    close()
    client.close()


MEASURES = {"one": measure_one, "calls": measure_calls, "sets": measure_sets, "submit": measure_submit}

if __name__ == "__main__":
    main()
