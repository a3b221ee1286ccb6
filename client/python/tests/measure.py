"""The figures of docs/python.md: Python beside the C++ client, in turn, against one node. Medians of the rounds' ratios.

python client/python/tests/measure.py [--rounds 7] [--seconds 1] [--build build/release]
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import kvstore

ROOT = Path(__file__).resolve().parents[3]


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


async def awaiting(call: Callable[[], kvstore.Future], seconds: float) -> list[float]:
    latencies, now = [], time.perf_counter()
    until = now + seconds
    while now < until:
        await call()
        after = time.perf_counter()
        latencies.append(after - now)
        now = after
    return latencies


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
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    endpoint = f"unix://{folder}/node"
    node = subprocess.Popen(
        [given.build / "store/node/kvstore-node", "--listen", endpoint, "--capacity", "2GiB", "--admin", "none"],
        stderr=subprocess.DEVNULL,
    )
    while not (folder / "node").exists():
        time.sleep(0.05)
    try:
        print("| what | unit | C++ | Python | ratio | (least-most) | target |")
        print("| --- | --- | ---: | ---: | ---: | --- | --- |")
        measure(given, endpoint)
    finally:
        node.terminate()
        node.wait()


def measure(given: argparse.Namespace, endpoint: str) -> None:
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

    theirs, ours, loop = [], [], []
    match = ["--op", "match", "--transport", "unix", "--block-bytes", "4KiB", "--batch", "256"]
    for _ in range(given.rounds):
        theirs.append(cpp(given.build, endpoint, given.seconds, *match)["p50_us"])
        ours.append(quantile(blocking(lambda: small.match(chain), given.seconds)))
        loop.append(quantile(asyncio.run(awaiting(lambda: small.submit_match(chain), given.seconds))))
    show("match of 256 blocks, Unix, blocking, p50", theirs, ours, "us", "at most 1.2")
    show("the same, asyncio, p50", theirs, loop, "us", "at most 1.6")

    theirs, ours, held = [], [], []
    get = ["--op", "get", "--transport", "shm", "--block-bytes", "2MiB", "--batch", "16"]
    for _ in range(given.rounds):
        theirs.append(cpp(given.build, endpoint, given.seconds, *get)["bytes_per_second"] / 1e9)
        began, own = time.perf_counter(), time.thread_time()
        calls = len(blocking(lambda: large.get(chains[next(turn) % 16], memory), given.seconds))
        held.append((time.thread_time() - own) / calls * 1e6)
        ours.append(calls * (32 << 20) / (time.perf_counter() - began) / 1e9)
    show("get 2 MiB x 16, shm", theirs, ours, "GB/s", "at least 0.97")
    print(
        f"| processor time of the calling thread in a get of 32 MiB | us | | {statistics.median(held):.1f} | | | GIL: at most 50 us |"
    )

    library = ctypes.CDLL(str(given.build / "client/libkvstore.so"))
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
    del memory
    client.close()


if __name__ == "__main__":
    main()
