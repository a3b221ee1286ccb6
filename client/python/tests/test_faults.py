"""A node that dies, hangs or restarts during calls; and flat memory."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import shutil
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from conftest import namespace, needs_own_allocator, pattern, tokens

import kvstore


def test_a_node_that_hangs_costs_the_deadline(own_node):
    with kvstore.Client(own_node.endpoint, deadline=30) as client:
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(64))
        own_node.pause()
        futures = [space.submit_get(hashes, np.zeros((4, 4096), np.uint8), deadline=0.3) for _ in range(4)]
        got = [future.result(30) for future in futures]
        assert all(each.block_count == 0 and isinstance(each.why, kvstore.TimedOut) for each in got)
        own_node.resume()


def test_a_node_that_dies_between_submit_and_completion(own_node):
    with kvstore.Client(own_node.endpoint, deadline=3) as client:
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(64))
        assert space.put(hashes, pattern(4)).stored == 4
        own_node.pause()
        futures = [space.submit_match(hashes), space.submit_put(hashes, pattern(4)), space.submit_drop(hashes)]
        own_node.kill()
        assert futures[0].result().block_count == 0
        assert futures[0].result().why is not None
        assert futures[1].result().refused == 4
        with pytest.raises(kvstore.Error):
            futures[2].result()


def test_a_node_that_restarts_between_submit_and_completion(own_node):
    with kvstore.Client(own_node.endpoint, deadline=20) as client:
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(64))
        blocks, into = pattern(4), np.zeros((4, 4096), np.uint8)
        assert space.put(hashes, blocks).stored == 4
        own_node.pause()
        match, get = space.submit_match(hashes), space.submit_get(hashes, into)
        put = space.submit_put(hashes, blocks)
        own_node.kill()
        own_node.start()  # empty
        # No call is lost. Whichever of the two nodes a call reached, its blocks are whole.
        assert match.result().block_count in (0, 4)
        count = get.result().block_count
        assert (into[:count] == blocks[:count]).all()
        outcome = put.result()
        assert outcome.stored + outcome.already_stored + outcome.refused == 4
        until = time.monotonic() + 60
        while space.match(hashes).block_count < 4 and time.monotonic() < until:
            space.put(hashes, blocks)  # refused until the client has found the new node
            time.sleep(0.05)
        assert space.get(hashes, into).block_count == 4
        assert (into == blocks).all()


def test_a_node_that_restarts_is_found_again(own_node):
    with kvstore.Client(own_node.endpoint, deadline=2) as client:
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(64))
        blocks = client.empty((4, 4096))
        blocks[:] = pattern(4)
        space.put(hashes, blocks)
        own_node.kill()
        assert space.match(hashes, deadline=0.2).block_count == 0
        own_node.start()
        until = time.monotonic() + 60
        while space.put(hashes, blocks).refused and time.monotonic() < until:
            time.sleep(0.05)
        assert space.match(hashes).block_count == 4


def test_memory_of_a_late_get_is_quarantined(own_node):
    with kvstore.Client(own_node.endpoint, deadline=5) as client:
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(64))
        memory = client.allocate(4 * 4096)
        blocks = memory.array((4, 4096))
        blocks[:] = pattern(4)
        space.put(hashes, blocks)
        own_node.pause()
        assert isinstance(space.get(hashes, blocks, deadline=0.2).why, kvstore.TimedOut)
        assert client.is_quarantined(memory)
        with pytest.raises(kvstore.Quarantined):
            space.get(hashes, blocks, deadline=0.2)
        own_node.resume()
        until = time.monotonic() + 60
        while client.is_quarantined(memory) and time.monotonic() < until:
            time.sleep(0.01)
        assert space.get(hashes, blocks).block_count == 4
        assert (blocks == pattern(4)).all()


def test_lending_to_a_node_that_hangs_is_a_clear_error(own_node):
    with kvstore.Client(own_node.endpoint, connections_per_node=1, connect_timeout=60) as client:
        client.open(namespace(), deadline=10)
        memory = client.allocate(1 << 20)
        own_node.pause()
        with pytest.raises(kvstore.TimedOut, match="1048576 bytes within"):
            client.lend(memory, deadline=0.2)
        own_node.resume()
        assert client.lend(memory) == 1


def test_a_large_region_has_longer_than_connect_timeout_to_be_lent(own_node):
    with kvstore.Client(own_node.endpoint, connections_per_node=1, connect_timeout=2) as client:
        client.open(namespace(), deadline=60)
        memory = client.allocate(1 << 30)
        own_node.pause()
        threading.Timer(2.5, own_node.resume).start()
        assert client.lend(memory, deadline=120) == 1  # retried where a busy node needs more than 2 s per GiB


def test_too_many_calls_are_busy(own_node):
    with kvstore.Client(own_node.endpoint, deadline=60, calls_max=4) as client:
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(64))
        own_node.pause()
        futures = [space.submit_match(hashes) for _ in range(8)]
        assert len(kvstore.wait(futures, count=4, timeout=30)) == 4  # refused ones end at once
        own_node.resume()
        busy = 0
        for future in futures:
            try:
                future.result()
            except kvstore.Busy:
                busy += 1
        assert busy == 4


def test_a_mismatched_namespace_is_an_error_of_the_open(node):
    # A node refuses blocks larger than its arena's slabs.
    with kvstore.Client(node.endpoint, deadline=5) as client, pytest.raises(kvstore.Error):
        client.open(namespace(block_bytes=1 << 30))


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@needs_own_allocator
@pytest.mark.parametrize("calls", [100_000])
def test_calls_leave_nothing_behind(space, calls):
    hashes = space.hash_chain(tokens(64))
    blocks, into = pattern(4), np.zeros((4, 4096), np.uint8)
    space.put(hashes, blocks)

    def round_(count: int) -> None:
        for i in range(count):
            kind = i % 8
            if kind < 3:
                space.match(hashes)
            elif kind < 5:
                space.get(hashes, into)
            elif kind == 5:
                space.put(hashes, blocks)
            elif kind == 6:
                space.submit_match(hashes)
            else:
                with contextlib.suppress(kvstore.BadRequest):
                    space.get(hashes, b"read-only")

    round_(calls // 10)
    gc.collect()
    counts = sys.getrefcount(hashes), sys.getrefcount(blocks), sys.getrefcount(into), sys.getrefcount(space)
    before = _resident()
    round_(calls)
    space.match(hashes)
    gc.collect()
    assert (sys.getrefcount(hashes), sys.getrefcount(blocks), sys.getrefcount(into), sys.getrefcount(space)) == counts
    assert _resident() - before < 4 << 20


SHIM = """
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
void* __libc_malloc(size_t);
void* __libc_memalign(size_t, size_t);
static __thread uintptr_t begin, end;
static __thread long left = -1;
static int fails(void* caller) {
  uintptr_t at = (uintptr_t)caller;
  return left >= 0 && at >= begin && at < end && left-- == 0;
}
/* The allocation number `count` that code in [from, to) makes on this thread will fail. */
void arm(uintptr_t from, uintptr_t to, long count) { begin = from, end = to, left = count; }
/* Whether it has. */
int disarm(void) {
  int fired = left < 0;
  left = -1;
  return fired;
}
void* malloc(size_t bytes) {
  if (!fails(__builtin_return_address(0))) return __libc_malloc(bytes);
  errno = ENOMEM;
  return NULL;
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  if (!fails(__builtin_return_address(0))) return __libc_memalign(alignment, bytes);
  errno = ENOMEM;
  return NULL;
}
"""


@needs_own_allocator
def test_where_memory_ends_no_call_is_lost_and_no_buffer_leaks(node, tmp_path):
    """Each allocation of the extension on the caller's thread fails once: in a submit, or during a wait."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "shim.c").write_text(SHIM)
    shim = tmp_path / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", shim, tmp_path / "shim.c"], check=True)
    code = """
        import asyncio, contextlib, ctypes, sys, kvstore
        shim = ctypes.CDLL(sys.argv[2])
        shim.arm.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_long]
        with open("/proc/self/maps") as maps:
            line = next(line for line in maps if "r-xp" in line and "/_kvstore" in line)
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        name = kvstore.Namespace(model="no-memory", block_size=16, block_bytes=4096)

        def attempt(count):
            client = kvstore.Client(sys.argv[1], deadline=20, connections_per_node=1)
            space = client.open(name)
            hashes = space.hash_chain(list(range(64)))
            space.put(hashes, bytes(4 * 4096))
            lists = [[bytearray(4096) for _ in range(4)] for _ in range(3)]
            futures = []

            async def main():
                await space.submit_match(hashes)
                shim.arm(begin, end, count)
                for blocks in lists:
                    with contextlib.suppress(MemoryError, kvstore.Error):
                        futures.append(space.submit_get(hashes, blocks))
                del futures[1:2]
                for future in futures:
                    with contextlib.suppress(MemoryError, kvstore.Error):
                        await future

            asyncio.run(main())
            fired = shim.disarm()
            assert kvstore.wait(futures, timeout=60) == futures
            for future in futures:
                with contextlib.suppress(kvstore.Error):
                    future.result()
            client.close()
            for block in sum(lists, []):
                block.append(1)  # BufferError if a call still holds it
            return fired

        count = 0
        while attempt(count):
            count += 1
        print(count)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), node.endpoint, str(shim)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "LD_PRELOAD": str(shim)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 20


def test_every_exception_has_the_status_of_the_c_abi():
    import re
    from pathlib import Path

    header = Path(__file__).resolve().parents[2] / "kvstore.h"
    if not header.exists():
        pytest.skip("without the repository")
    statuses = dict(
        re.findall(r"^  (KVS_[A-Z_]+) = (\d+)[,]?", header.read_text().split("KVS_OK = 0")[1].split("}")[0], re.M)
    )
    ours = {each.status_name: str(each.status) for each in kvstore.errors.BY_STATUS.values()}
    assert ours == statuses
    for status, kind in kvstore.errors.BY_STATUS.items():
        made = kvstore.errors.error_of(status, "text")
        assert type(made) is kind
        assert isinstance(made, kvstore.Error)
        assert str(made) == "text"
        assert "KVS_" + re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).upper() == kind.status_name
    assert kvstore.errors.error_of(999, "new").status == 999
