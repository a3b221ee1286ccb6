"""What a call costs a Python program, and whether calls leave memory behind. calls.py runs it with the package's interpreter.

calls_from_python.py ENDPOINT match|get|await SECONDS    as one_call.c, from Python: prints p50 and p99 in microseconds
calls_from_python.py ENDPOINT memory COUNT               prints the process's memory in KiB after a tenth of COUNT calls, and after all
"""

import asyncio
import gc
import re
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import kvstore
import numpy as np

VALUES, MATCHED, BLOCK_BYTES, WARM_UP = 64, 256, 4096, 1000


def names(count: int) -> np.ndarray:
    hashes = np.zeros((count, 32), np.uint8)
    hashes[:, 0], hashes[:, 1] = np.arange(count), count % 251
    return hashes


def measured(times: list[int]) -> str:
    times.sort()
    return f"{times[len(times) // 2] / 1e3:.1f} {times[len(times) * 99 // 100] / 1e3:.1f}"


def blocking(one: Callable[[], object], seconds: float) -> str:
    for _ in range(WARM_UP):
        one()
    times, clock = [], time.perf_counter_ns
    before = clock()
    until = before + int(seconds * 1e9)
    while before < until:
        one()
        after = clock()
        times.append(after - before)
        before = after
    return measured(times)


async def awaiting(one: Callable[[], Coroutine[Any, Any, object]], seconds: float) -> str:
    for _ in range(WARM_UP):
        await one()
    times, clock = [], time.perf_counter_ns
    before = clock()
    until = before + int(seconds * 1e9)
    while before < until:
        await one()
        after = clock()
        times.append(after - before)
        before = after
    return measured(times)


def resident_kib() -> int:
    gc.collect()
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1])


async def memory(space: kvstore.Space, count: int) -> str:
    """Calls of all three kinds in turns."""
    hash_, into = names(1), np.zeros((1, BLOCK_BYTES), np.uint8)
    space.put(hash_, into)
    after_a_tenth = 0
    for i in range(count):
        if i == count // 10:
            after_a_tenth = resident_kib()
        if i % 3 == 0:
            assert space.match(hash_).block_count == 1
        elif i % 3 == 1:
            assert space.get(hash_, into).block_count == 1
        else:
            assert (await space.submit_match(hash_)).block_count == 1
    return f"{after_a_tenth} {resident_kib()}"


def main() -> None:
    endpoint, what, number = sys.argv[1:]
    client = kvstore.Client(endpoint, connections_per_node=1, deadline=10)
    space = client.open(kvstore.Namespace(model="calls_from_python", block_size=16, block_bytes=BLOCK_BYTES))
    if what == "memory":
        print(asyncio.run(memory(space, int(number))))
        return
    into = np.zeros((1, BLOCK_BYTES), np.uint8)
    if what == "get":
        each = [names(VALUES)[i : i + 1] for i in range(VALUES)]
        for name in each:
            space.put(name, into)
        turn = iter(range(1 << 62))
        print(blocking(lambda: space.get(each[next(turn) % VALUES], into), float(number)))
        return
    chain = names(MATCHED)
    space.put(chain, np.zeros((MATCHED, BLOCK_BYTES), np.uint8))
    assert space.match(chain).block_count == MATCHED
    if what == "match":
        print(blocking(lambda: space.match(chain), float(number)))
    else:

        async def one() -> object:
            return await space.submit_match(chain)

        print(asyncio.run(awaiting(one, float(number))))


if __name__ == "__main__":
    main()
