"""Does a client's memory grow with its calls? Resident bytes after each decade of calls, by the blocking form, by batches, by an event loop.

python client/python/tests/measure_memory.py [--calls 1000000] [--build build/release]

Each form runs in a process of its own against one node, beside its memory, which nobody keeps between calls. The calls of a form are
match, get, put and, every thousand, touch, retain and unretain. Ends with status 1 if the last nine tenths of a form's calls took more than a
mebibyte: a call that kept a word of 8 bytes would take 7 MiB of a million.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from conftest import ROOT, Node

import kvstore

BATCH = 64
GROWTH_BYTES_MAX = 1 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def names(space: kvstore.Space) -> Iterator[str]:
    """The operations of the calls, in turn."""
    for number in itertools.count():
        yield (
            ("touch", "retain", "unretain")[number // 1000 % 3]
            if number % 1000 == 0
            else ("match", "get", "match", "put")[number % 4]
        )


def arguments(name: str, hashes: np.ndarray, blocks: np.ndarray) -> tuple[np.ndarray, ...]:
    return (hashes, blocks) if name in ("get", "put") else (hashes,)


def blocking(space: kvstore.Space, hashes: np.ndarray, blocks: np.ndarray) -> Callable[[int], None]:
    turn = names(space)

    def run(count: int) -> None:
        for name in itertools.islice(turn, count):
            getattr(space, name)(*arguments(name, hashes, blocks))

    return run


def batches(space: kvstore.Space, hashes: np.ndarray, blocks: np.ndarray) -> Callable[[int], None]:
    turn = names(space)

    def run(count: int) -> None:
        for begin in range(0, count, BATCH):
            some = itertools.islice(turn, min(BATCH, count - begin))
            futures = [getattr(space, "submit_" + name)(*arguments(name, hashes, blocks)) for name in some]
            for future in kvstore.wait(futures):
                future.result()

    return run


def awaited(space: kvstore.Space, hashes: np.ndarray, blocks: np.ndarray) -> Callable[[int], None]:
    turn = names(space)

    async def ask(count: int) -> None:
        for name in itertools.islice(turn, count):
            await getattr(space, "submit_" + name)(*arguments(name, hashes, blocks))

    return lambda count: asyncio.run(ask(count))


FORMS = {"blocking": blocking, "batches": batches, "awaited": awaited}


def measure(form: str, endpoint: str, calls: int) -> bool:
    with kvstore.Client(endpoint, deadline=60) as client:
        space = client.open(kvstore.Namespace(model="memory", block_size=16, block_bytes=4096))
        hashes = space.hash_chain(np.arange(16 * 4))
        blocks = np.zeros((4, 4096), np.uint8)
        space.put(hashes, blocks)
        run = FORMS[form](space, hashes, blocks)
        began, done, seen = time.monotonic(), 0, []
        for until in (calls // 100, calls // 10, calls):
            run(until - done)
            done = until
            gc.collect()
            seen.append(resident_bytes())
            rate = done / (time.monotonic() - began)
            print(f"{form:8} {done:9,} calls {seen[-1] / 2**20:8.2f} MiB resident, {rate:8,.0f} calls/s", flush=True)
    growth = seen[-1] - seen[-2]
    print(f"{form:8} {growth / 2**20:+.2f} MiB in the last {calls - calls // 10:,} calls", flush=True)
    return growth <= GROWTH_BYTES_MAX


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--calls", type=int, default=10**6, help="of each form (1,000,000); an event loop makes a tenth"
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--form", nargs=2, metavar=("FORM", "ENDPOINT"), help=argparse.SUPPRESS)  # in its own process
    given = parser.parse_args()
    if given.form:
        raise SystemExit(not measure(*given.form, given.calls))
    node = Node(binary=given.build / "store/node/kvstore-node")
    try:
        grew = []
        for form in FORMS:
            calls = given.calls // 10 if form == "awaited" else given.calls
            command = [sys.executable, __file__, "--form", form, node.endpoint, "--calls", str(calls)]
            grew.append(subprocess.run(command, check=False).returncode)
    finally:
        node.close()
    raise SystemExit(any(grew))


if __name__ == "__main__":
    main()
