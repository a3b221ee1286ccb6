"""Futures and event loops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time

import numpy as np
import pytest
from conftest import namespace, pattern, tokens

import kvstore


def test_a_future_has_the_result(space):
    hashes = space.hash_chain(tokens(16 * 4))
    future = space.submit_put(hashes, pattern(4))
    assert future.result().stored == 4
    assert future.done()
    assert future.result(0).stored == 4
    got = np.zeros((4, 4096), np.uint8)
    futures = [space.submit_match(hashes), space.submit_get(hashes, got), space.submit_touch(hashes)]
    assert len(kvstore.wait(futures)) == 3
    assert [futures[0].result().block_count, futures[1].result().block_count, futures[2].result()] == [4, 4, 4]
    assert space.submit_retain(hashes).result() == 4
    assert space.submit_unretain(hashes).result() == 4
    assert space.submit_drop(hashes).result().block_count == 1


def test_wait_for_the_first_and_for_a_time(own_node):
    with kvstore.Client(own_node.endpoint, deadline=2) as client:
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(64))
        own_node.pause()
        slow = space.submit_match(hashes, deadline=2)
        assert kvstore.wait([slow], timeout=0.05) == []
        assert not slow.wait(0.05)
        with pytest.raises(kvstore.TimedOut):
            slow.result(0.05)
        own_node.resume()
        assert slow.result().block_count == 0
        assert kvstore.wait([slow, space.submit_match(hashes)], count=1)


def test_a_time_that_has_passed_is_not_waited_for(own_node):
    with kvstore.Client(own_node.endpoint, deadline=60) as client:
        space = client.open(namespace(block_bytes=2 * 65536))
        hashes = space.hash_chain(tokens(64))
        own_node.pause()
        into = np.zeros((4, 2 * 65536), np.uint8)
        future = space.submit_get(hashes, into, segment_ends=[65536, 2 * 65536])
        began = time.monotonic()
        for left in (-0.001, -5, float("-inf")):  # until - time.monotonic(), a moment too late
            assert not future.wait(left)
            assert future.wait_segments(1, left) == 0
            with pytest.raises(kvstore.TimedOut):
                future.result(left)
            assert kvstore.wait([future], timeout=left) == []
        assert time.monotonic() - began < 30
        nan = float("nan")
        for wrong in (
            lambda: future.wait(nan),
            lambda: future.wait_segments(1, nan),
            lambda: future.result(nan),
            lambda: kvstore.wait([future], timeout=nan),
        ):
            with pytest.raises(kvstore.BadRequest, match="not a number"):
                wrong()
        own_node.resume()
        assert future.result().why is None


def test_many_calls_in_one_loop(space):
    hashes = space.hash_chain(tokens(16 * 16))

    async def main() -> None:
        assert (await space.submit_put(hashes, pattern(16))).stored == 16
        matches = await asyncio.gather(*(space.submit_match(hashes[:n]) for n in range(1, 17)))
        assert [match.block_count for match in matches] == list(range(1, 17))
        opened = await space.client.submit_open(namespace())
        assert opened.block_bytes == 4096

    before = threading.active_count()
    asyncio.run(main())
    asyncio.run(main_again(space, hashes))
    assert threading.active_count() == before


async def main_again(space, hashes) -> None:
    assert (await space.submit_match(hashes)).block_count == 16


def test_one_future_for_several_tasks(space):
    hashes = space.hash_chain(tokens(16))

    async def main() -> None:
        future = space.submit_match(hashes)

        async def ask() -> int:
            return (await future).block_count

        assert await asyncio.gather(ask(), ask(), ask()) == [0, 0, 0]
        assert await ask() == 0

    asyncio.run(main())


def test_one_future_for_a_task_and_for_threads(own_node):
    with kvstore.Client(own_node.endpoint, deadline=30) as client:
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(64))

        async def main() -> None:
            own_node.pause()
            future = space.submit_match(hashes)

            async def ask() -> int:
                return (await future).block_count

            task = asyncio.create_task(ask())
            await asyncio.sleep(0.02)
            loop = asyncio.get_running_loop()
            # One thread polls and leaves; another stays. The task must still get the end.
            assert await loop.run_in_executor(None, lambda: kvstore.wait([future], timeout=0)) == []
            stays = loop.run_in_executor(None, lambda: kvstore.wait([future], timeout=30))
            await asyncio.sleep(0.05)
            own_node.resume()
            assert await asyncio.wait_for(task, 30) == 0
            assert await asyncio.wait_for(stays, 30) == [future]

        asyncio.run(main())


def test_errors_are_raised_where_they_are_awaited(tmp_path):
    async def main() -> None:
        with kvstore.Client(f"unix://{tmp_path}/none") as client:
            space = client.open(namespace(), wait=False)
            match = await space.submit_match(space.hash_chain(tokens(32)), deadline=0.2)
            assert match.why is not None
            with pytest.raises(kvstore.Error):
                await space.submit_drop(everything=True, deadline=0.2)

    asyncio.run(main())


def test_a_cancelled_task_cancels_its_call(own_node):
    async def main() -> None:
        client = kvstore.Client(own_node.endpoint, deadline=30)
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(64))
        own_node.pause()
        future = space.submit_match(hashes)

        async def ask() -> object:
            return await future

        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ask(), 0.05)
        assert future.wait(20)  # of the 30 that the client would wait for the node
        assert isinstance(future.result().why, kvstore.Cancelled)
        own_node.resume()
        assert (await space.submit_match(hashes)).block_count == 0
        client.close()

    asyncio.run(main())


def test_cancel_ends_a_call_soon(own_node):
    with kvstore.Client(own_node.endpoint, deadline=30) as client:
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(64))
        own_node.pause()
        futures = [
            space.submit_match(hashes),
            space.submit_get(hashes, bytearray(4 * 4096)),
            space.submit_put(hashes, pattern(4)),
        ]
        drop = space.submit_drop(hashes)
        for future in (*futures, drop):
            assert not future.wait(0.02)
            future.cancel()
        for future in futures:
            assert isinstance(future.result(20).why, kvstore.Cancelled)
            future.cancel()
        with pytest.raises(kvstore.Cancelled):
            drop.result(20)
        own_node.resume()
        assert space.put(hashes, pattern(4)).stored == 4


def test_close_ends_what_is_in_flight(own_node):
    client = kvstore.Client(own_node.endpoint, deadline=30)
    space = client.open(namespace())
    hashes = space.hash_chain(tokens(64))
    memory = client.empty((4, 4096))
    own_node.pause()
    future = space.submit_get(hashes, memory)
    client.close()
    assert isinstance(future.result(0).why, kvstore.Cancelled)  # not TimedOut: the call did not wait for its deadline
    memory[:] = 7
    assert memory.sum() == 7 * memory.size


def test_without_a_node_submitted_lookups_are_answered_at_once(tmp_path):
    with kvstore.Client(f"unix://{tmp_path}/none", deadline=3600) as client:
        space = client.open(namespace(), wait=False)
        match = space.submit_match(space.hash_chain(tokens(32))).result(60)
        assert isinstance(match.why, kvstore.Unavailable)


def test_segments_land_in_order(client):
    space = client.open(namespace(block_bytes=4 * 65536))
    hashes = space.hash_chain(tokens(16 * 4))
    blocks = pattern(4, 4 * 65536)
    space.put(hashes, blocks)
    ends = [65536, 2 * 65536, 4 * 65536]
    future = space.submit_get(hashes, np.zeros_like(blocks), segment_ends=ends)
    assert future.wait_segments(3, 10) == 3
    assert future.result().block_count == 4
    assert future.segments == [4, 4, 4]

    async def main() -> None:
        into = np.zeros_like(blocks)
        future = space.submit_get(hashes, into, segment_ends=ends)
        for i in range(3):
            assert await future.landed(i + 1) >= i + 1
            assert (into[:, : ends[i]] == blocks[:, : ends[i]]).all()
        assert (await future).block_count == 4

    asyncio.run(main())
    with pytest.raises(kvstore.BadRequest):
        space.get(hashes, np.zeros_like(blocks)[:, ::-1])


def test_a_loop_goes_on_while_a_call_waits(own_node):
    async def main() -> None:
        with kvstore.Client(own_node.endpoint, deadline=3600) as client:
            space = client.open(namespace())
            own_node.pause()

            async def ask() -> int:
                return (await space.submit_match(space.hash_chain(tokens(64)))).block_count

            task = asyncio.create_task(ask())
            for _ in range(50):
                await asyncio.sleep(0.001)
                assert not task.done()
            own_node.resume()
            assert await asyncio.wait_for(task, 60) == 0

    asyncio.run(main())


def test_a_dropped_future_keeps_its_buffer_until_the_end(own_node):
    with kvstore.Client(own_node.endpoint, deadline=60) as client:
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(64))
        space.put(hashes, pattern(4))
        into = bytearray(4 * 4096)
        own_node.pause()
        future = space.submit_get(hashes, into)
        del future
        with pytest.raises(BufferError):
            into.extend(b"more")
        own_node.resume()
        until = time.monotonic() + 60
        while time.monotonic() < until:
            space.match(hashes)  # each call releases ended ones
            try:
                into.extend(b"more")
                break
            except BufferError:
                time.sleep(0.01)
        assert len(into) == 4 * 4096 + 4


def test_a_refused_call_keeps_no_buffer(space):
    hashes = space.hash_chain(tokens(64))
    blocks = bytearray(4 * 4096)
    with pytest.raises((TypeError, kvstore.BadRequest)):
        space.submit_put(hashes, blocks, token_ids=object())
    blocks.extend(b"more")
    assert len(blocks) == 4 * 4096 + 4


def test_close_while_another_call_looks_at_its_arguments(own_node):
    client = kvstore.Client(own_node.endpoint, deadline=30)
    space = client.open(namespace())
    hashes = space.hash_chain(tokens(64))

    class Closes:
        """Blocks whose buffer is requested after the call has begun."""

        def __dlpack_device__(self) -> tuple[int, int]:
            client.close()
            return (1, 0)

        def __dlpack__(self, **_: object) -> object:
            return pattern(4).__dlpack__()

    with pytest.raises(kvstore.BadRequest, match="closed"):
        space.submit_put(hashes, Closes())


def test_two_hundred_loops_share_a_client(space):
    hashes = space.hash_chain(tokens(16 * 4))
    space.put(hashes, pattern(4))
    ready = threading.Barrier(200)

    async def ask(loop: int) -> list[int]:
        counts = [(await space.submit_match(hashes[: 1 + loop % 4])).block_count]
        into = np.zeros((4, 4096), np.uint8)
        got = await asyncio.gather(space.submit_get(hashes, into), *(space.submit_match(hashes) for _ in range(3)))
        assert (into == pattern(4)).all()
        return counts + [each.block_count for each in got]

    def run(loop: int) -> list[int]:
        ready.wait()
        return asyncio.run(ask(loop))

    with concurrent.futures.ThreadPoolExecutor(200) as threads:
        assert list(threads.map(run, range(200))) == [[1 + loop % 4, 4, 4, 4, 4] for loop in range(200)]
    for loop in range(200):  # one after the other
        assert asyncio.run(ask(loop)) == [1 + loop % 4, 4, 4, 4, 4]


def test_a_task_may_be_cancelled_at_any_step(space):
    hashes = space.hash_chain(tokens(16 * 4))
    space.put(hashes, pattern(4))

    async def ask(into: bytearray) -> int:
        match = await space.submit_match(hashes)
        get = space.submit_get(hashes[: match.block_count], into, segment_ends=[4096])
        await get.landed(1)
        return (await get).block_count

    async def main() -> None:
        ended = 0
        for step in range(200):
            into = bytearray(4 * 4096)
            task = asyncio.create_task(ask(into))
            for _ in range(step):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                ended += await task == 4
            assert (await space.submit_match(hashes)).block_count == 4
            until = time.monotonic() + 30
            while True:  # its memory is given back
                try:
                    into.append(1)
                    break
                except BufferError:
                    assert time.monotonic() < until
                    await space.submit_match(hashes)
        assert ended < 200

    asyncio.run(main())


def test_any_of_the_futures_of_two_clients_is_waited_for(node, own_node):
    with kvstore.Client(node.endpoint, deadline=30) as here, kvstore.Client(own_node.endpoint, deadline=30) as there:
        spaces = [client.open(namespace()) for client in (here, there)]
        hashes = spaces[0].hash_chain(tokens(64))
        own_node.pause()
        answered, waits = (space.submit_match(hashes) for space in spaces)
        assert kvstore.wait([waits, answered], count=1, timeout=20) == [answered]
        assert kvstore.wait([waits, answered], timeout=0.01) == [answered]
        own_node.resume()
        assert kvstore.wait([waits, answered], timeout=20) == [waits, answered]
