"""``bench``: one call in one shape against a running node, as fast as Python goes."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..client import Client, Space
from ..namespaces import Namespace
from .text import add_node_options, bytes_text, parse_bytes, table


def add_command(commands: Any) -> None:
    parser = commands.add_parser("bench", help="one call in one shape against a running node, as fast as it goes")
    add_node_options(parser)
    parser.add_argument("--op", choices=["match", "get", "put"], default="get")
    parser.add_argument("--block-bytes", type=parse_bytes, default=2 << 20, metavar="SIZE", help="(2MiB)")
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="blocks a call (16)")
    parser.add_argument(
        "--concurrency", type=int, default=1, metavar="N", help="calls in flight, of one event loop (1)"
    )
    parser.add_argument("--chains", type=int, default=4, metavar="N", help="chains of so many blocks, in turn (4)")
    parser.add_argument("--duration", type=float, default=3.0, metavar="SECONDS", help="(3)")
    parser.add_argument("--asyncio", action="store_true", help="await the calls; with --concurrency always")
    parser.add_argument("--ordinary", action="store_true", help="ordinary memory, not lent to the node")
    parser.set_defaults(run=run)


class Work:
    """The chains that are stored once, and the memory for their blocks."""

    def __init__(self, client: Client, given: argparse.Namespace) -> None:
        self.space: Space = client.open(
            Namespace(model="kvstore-bench", block_size=16, block_bytes=given.block_bytes, x_process=os.getpid())
        )
        self.space.wait_open()
        self.op = given.op
        self.batch = given.batch
        self.turn = 0
        rng = np.random.default_rng(1)
        count = given.chains * (64 if given.op == "put" else 1)
        self.chains = [
            self.space.hash_chain(rng.integers(0, 2**31, 16 * given.batch, dtype=np.uint32)) for _ in range(count)
        ]
        shape = (max(1, given.concurrency), given.batch, given.block_bytes)
        if given.op == "match":
            shape = (1, given.batch, given.block_bytes)
        self.blocks = np.zeros(shape, np.uint8) if given.ordinary else client.empty(shape)
        self.blocks[:] = rng.integers(0, 256, given.block_bytes, dtype=np.uint8)
        if given.op != "put":
            for chain in self.chains:
                self.space.put(chain, self.blocks[0])

    def next_chain(self) -> Any:
        self.turn += 1
        return self.chains[self.turn % len(self.chains)]

    def call(self, worker: int = 0, *, form: str = "") -> Callable[[], Any]:
        """The call with a worker's memory; ``form``: "submit_" for a future."""
        made = getattr(self.space, form + self.op)
        memory = [] if self.op == "match" else [self.blocks[worker]]
        return lambda: made(self.next_chain(), *memory)


def run(given: argparse.Namespace) -> int:
    with Client(given.endpoint, deadline=given.deadline, identity="kvstore bench", region_bytes_max=64 << 30) as client:
        work = Work(client, given)
        latencies: list[float] = []
        began = time.perf_counter()
        if given.asyncio or given.concurrency > 1:
            asyncio.run(_awaiting(work, given, latencies))
        else:
            _blocking(work, given, latencies)
        seconds = time.perf_counter() - began
        work.space.drop(everything=True)
        del work
    values = np.sort(np.array(latencies))
    blocks = len(values) * given.batch / seconds
    result = {
        "op": given.op,
        "block_bytes": given.block_bytes,
        "batch": given.batch,
        "concurrency": given.concurrency,
        "asyncio": bool(given.asyncio or given.concurrency > 1),
        "calls": len(values),
        "calls_per_second": len(values) / seconds,
        "bytes_per_second": 0 if given.op == "match" else blocks * given.block_bytes,
        "p50_us": float(values[len(values) // 2] * 1e6),
        "p99_us": float(values[min(len(values) - 1, len(values) * 99 // 100)] * 1e6),
    }
    if given.json:
        print(json.dumps(result, indent=2))
        return 0
    each = f"blocks of {bytes_text(given.block_bytes)} a call"
    print(f"{given.op}, {given.batch} {each}, {given.concurrency} calls in flight\n")
    rate = f"{result['bytes_per_second'] / 1e9:.2f}" if given.op != "match" else "-"
    row = [rate, f"{result['calls_per_second']:,.0f}", f"{result['p50_us']:.1f}", f"{result['p99_us']:.1f}"]
    print(table(["GB/s", "calls/s", "p50 us", "p99 us"], [row]))
    return 0


def _blocking(work: Work, given: argparse.Namespace, latencies: list[float]) -> None:
    call = work.call()
    until = time.perf_counter() + given.duration
    now = time.perf_counter()
    while now < until:
        call()
        after = time.perf_counter()
        latencies.append(after - now)
        now = after


async def _awaiting(work: Work, given: argparse.Namespace, latencies: list[float]) -> None:
    until = time.perf_counter() + given.duration

    async def worker(number: int) -> None:
        call = work.call(number, form="submit_")
        now = time.perf_counter()
        while now < until:
            await call()
            after = time.perf_counter()
            latencies.append(after - now)
            now = after

    await asyncio.gather(*(worker(i) for i in range(given.concurrency)))
