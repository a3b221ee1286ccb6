"""Processes as engines make them: fork, spawn, threads, signals, the end of the interpreter."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from conftest import namespace, pattern, tokens

import kvstore
from kvstore.lmcache import Connector


def run(code: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )


def child_of_fork(work) -> int:
    """Exit status of a forked child that runs `work`. A hanging child ends by a signal."""
    number = os.fork()
    if number == 0:
        signal.alarm(30)
        status = 1
        try:
            work()
            status = 0
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def test_a_child_of_fork_is_told_and_the_parent_goes_on(space):
    hashes = space.hash_chain(tokens(64))
    space.put(hashes, pattern(4))
    future = space.submit_match(hashes)

    def work() -> None:
        with pytest.raises(kvstore.Forked):
            space.match(hashes)
        with pytest.raises(kvstore.Forked):
            space.client.allocate(4096)
        if not future.done():
            with pytest.raises(kvstore.Forked):
                future.result()
        space.client.close()

    assert child_of_fork(work) == 0
    assert future.result().block_count == 4
    assert space.match(hashes).block_count == 4


def test_a_future_that_was_in_flight_at_a_fork_ends_in_the_child(own_node):
    with kvstore.Client(own_node.endpoint, deadline=60) as client:
        space = client.open(namespace(block_bytes=2 * 65536))
        hashes = space.hash_chain(tokens(64))
        done = space.submit_match(hashes)
        assert done.result().block_count == 0
        own_node.pause()
        match, put = space.submit_match(hashes), space.submit_put(hashes, pattern(4, 2 * 65536))
        get = space.submit_get(hashes, np.zeros((4, 2 * 65536), np.uint8), segment_ends=[65536, 2 * 65536])
        futures = [match, put, get]

        def work() -> None:
            for future in futures:
                assert future.done()
                assert future.wait()
                with pytest.raises(kvstore.Forked):
                    future.result()
            assert kvstore.wait([*futures, done]) == [*futures, done]
            for wait in (lambda: get.wait_segments(1), lambda: get.segments, lambda: asyncio.run(get.landed(1))):
                with pytest.raises(kvstore.Forked):
                    wait()

            async def ask() -> object:
                return await match

            with pytest.raises(kvstore.Forked):
                asyncio.run(ask())
            assert done.result().block_count == 0
            match.cancel()
            while futures:
                futures.pop()

        assert child_of_fork(work) == 0
        own_node.resume()
        assert match.result().why is None
        assert get.result().why is None
        assert put.result().stored == 4


def test_a_child_of_fork_takes_no_news_from_the_parents_event_loop(own_node):
    with kvstore.Client(own_node.endpoint, deadline=60) as client:
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(64))

        async def main() -> None:
            own_node.pause()
            future = space.submit_match(hashes)

            async def ask() -> int:
                return (await future).block_count

            task = asyncio.ensure_future(ask())
            await asyncio.sleep(0)
            own_node.resume()
            assert future.wait(30)  # notified, but the loop has not read it yet
            queue = future._queue

            def work() -> None:
                queue.reap()
                assert not task.done()

            assert child_of_fork(work) == 0
            assert await asyncio.wait_for(task, 30) == 0

        asyncio.run(main())


def test_lmcaches_connector_after_a_fork_is_the_parents(node):
    connector = Connector(endpoints=node.endpoint, weights_epoch=1)
    exists = connector.submit_batch_exists(["a"])
    assert select.select([connector.event_fd()], [], [], 30)[0]

    def work() -> None:
        with pytest.raises(kvstore.Forked):
            connector.drain_completions()
        with pytest.raises(kvstore.Forked):
            connector.submit_batch_exists(["a"])
        connector.close()

    assert child_of_fork(work) == 0
    assert connector.drain_completions() == [(exists, True, "", [False])]
    connector.close()


def test_a_child_of_fork_makes_its_own(node, space):
    hashes = space.hash_chain(tokens(64))
    space.put(hashes, pattern(4))

    def work() -> None:
        with kvstore.Client(node.endpoint, deadline=5) as mine:
            assert mine.open(space.namespace).match(hashes).block_count == 4

    assert child_of_fork(work) == 0
    assert space.match(hashes).block_count == 4


def test_a_client_first_used_after_a_fork_works(node):
    code = """
        import os, sys, kvstore
        number = os.fork()
        with kvstore.Client(sys.argv[1], deadline=5) as client:
            space = client.open(kvstore.Namespace(model="after-fork", block_size=16, block_bytes=64))
            assert space.put(space.hash_chain(range(32)) if False else space.hash_chain(list(range(32))), bytes(128))
        if number:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]))
        os._exit(0)
    """
    done = run(code, node.endpoint)
    assert done.returncode == 0, done.stderr


def _count(endpoint: str, text: str) -> int:
    with kvstore.Client(endpoint, deadline=10) as client:
        space = client.open(kvstore.Namespace.from_text(text))
        return space.match(space.hash_chain(np.arange(64, dtype=np.uint32))).block_count


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_multiprocessing(node, space, method):
    space.put(space.hash_chain(np.arange(64, dtype=np.uint32)), pattern(4))
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.starmap(_count, [(node.endpoint, space.namespace.text)] * 4) == [4] * 4


def test_lent_memory_after_a_fork_is_the_parents(client):
    memory = client.allocate(4096)
    array = memory.array((4096,))

    def work() -> None:
        nonlocal memory, array
        array[0] = 1
        del memory, array

    assert child_of_fork(work) == 0
    assert array[0] == 1


def test_ctrl_c_ends_a_blocking_call_and_leaves_the_client_usable(own_node):
    with kvstore.Client(own_node.endpoint, deadline=30) as client:
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(64))
        own_node.pause()
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        into = np.zeros((4, 4096), np.uint8)
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            space.get(hashes, into, deadline=120)
        assert time.monotonic() - began < 60
        timer.join()
        own_node.resume()
        assert space.put(hashes, pattern(4), deadline=10).stored == 4
        assert space.get(hashes, into, deadline=10).block_count == 4


def test_a_signal_handler_may_close_the_client_under_a_blocking_call(own_node):
    client = kvstore.Client(own_node.endpoint, deadline=300)
    space = client.open(namespace())
    hashes = space.hash_chain(tokens(64))
    own_node.pause()
    before = signal.signal(signal.SIGUSR1, lambda *_: client.close())
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        assert isinstance(space.get(hashes, np.zeros((4, 4096), np.uint8)).why, kvstore.Cancelled)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert client.is_closed


def test_ctrl_c_ends_an_allocation_and_what_was_being_made_goes_back(node):
    nbytes = 2 << 30
    with kvstore.Client(node.endpoint, deadline=30, region_bytes_max=nbytes) as client:
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(64))
        timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            client.allocate(nbytes)
            timer.join()  # on a busy machine the memory may come first
        assert space.put(hashes, pattern(4)).stored == 4
        until = time.monotonic() + 60
        while True:  # the unfinished memory is freed by itself
            try:
                memory = client.allocate(64 << 20)
                break
            except kvstore.Busy:
                assert time.monotonic() < until
                time.sleep(0.02)
        assert client.lend(memory) > 0


def test_ctrl_c_during_an_allocation_that_is_never_awaited_ends_with_the_process(node):
    code = """
        import os, signal, sys, threading, kvstore
        client = kvstore.Client(sys.argv[1])
        try:
            timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            client.allocate(1 << 30)
            timer.join()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    done = run(code, node.endpoint)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


@pytest.mark.parametrize("daemon", [True, False])
def test_the_interpreter_ends_with_calls_in_flight(own_node, daemon):
    own_node.pause()
    code = """
        import sys, threading, time, kvstore, numpy as np
        client = kvstore.Client(sys.argv[1], deadline=3600)
        space = client.open(kvstore.Namespace(model="end", block_size=16, block_bytes=4096), wait=False)
        hashes = space.hash_chain(np.arange(64))
        memory = client.empty((4, 4096))
        futures = [space.submit_get(hashes, memory), space.submit_put(hashes, np.ones((4, 4096), np.uint8))]
        if sys.argv[2] == "True":
            threading.Thread(target=lambda: space.match(hashes), daemon=True).start()
        time.sleep(0.2)
        print("ready", flush=True)
    """
    done = run(code, own_node.endpoint, str(daemon))  # ends long before the deadline of its calls, or is killed
    own_node.resume()
    assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr
    assert not done.stderr


def test_the_interpreter_ends_while_daemon_threads_call(node):
    """The interpreter ends threads that return from a call after its shutdown, through C++."""
    code = """
        import sys, threading, time, kvstore, numpy as np
        client = kvstore.Client(sys.argv[1], deadline=5)
        space = client.open(kvstore.Namespace(model="end3", block_size=16, block_bytes=4096))
        hashes = space.hash_chain(np.arange(64))
        tokens, blocks = np.arange(1 << 20, dtype=np.uint32), np.zeros((4, 4096), np.uint8)

        def work(turn):
            calls = (lambda: space.match(hashes), lambda: space.hash_chain(tokens), lambda: client.empty(100))
            try:
                while True:
                    calls[turn % 3]()
            except kvstore.Error:  # at the end the client takes no more calls
                pass

        for turn in range(6):
            threading.Thread(target=work, args=(turn,), daemon=True).start()
        time.sleep(0.2)
        print("ready", flush=True)
    """
    for _ in range(5):
        done = run(code, node.endpoint)
        assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")


def test_memory_goes_while_its_client_is_closed(node):
    for _ in range(20):
        client = kvstore.Client(node.endpoint, deadline=5)
        kept = [client.empty(4096) for _ in range(20)]
        array = kept[0]
        array[:] = 7
        thread = threading.Thread(target=kept.clear)
        thread.start()
        client.close()
        thread.join()
        assert (array == 7).all()


def test_the_interpreter_ends_without_close(node):
    code = """
        import sys, kvstore, numpy as np
        client = kvstore.Client(sys.argv[1])
        space = client.open(kvstore.Namespace(model="end2", block_size=16, block_bytes=4096))
        kept = client.empty((2, 4096))
        space.put(space.hash_chain(np.arange(32)), kept)
        sys.kept = (client, space, kept)
    """
    done = run(code, node.endpoint)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_interpreter_ends_with_batches_of_lmcache_in_flight(own_node):
    code = """
        import os, select, signal, sys, time
        from kvstore.lmcache import Connector
        connector = Connector(endpoints=sys.argv[1], weights_epoch=1, deadline=3600)
        connector.submit_batch_exists(["a"])
        select.select([connector.event_fd()], [], [])
        connector.drain_completions()
        os.kill(int(sys.argv[2]), signal.SIGSTOP)
        views = [memoryview(bytearray(65536)) for _ in range(8)]
        connector.submit_batch_get([str(i) for i in range(8)], views)
        connector.submit_batch_set([str(i) for i in range(8)], views)
        print("ends", flush=True)
    """
    done = run(code, own_node.endpoint, str(own_node.process.pid))
    own_node.resume()
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


def test_sub_interpreters_are_refused_by_name(node):
    code = """
        import sys
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        import kvstore
        number = interpreters.create()
        lines = ["import sys", "sys.path[:] = " + repr(sys.path), "try:", " import kvstore._kvstore",
                 " print('imported')", "except ImportError as error:", " print('refused:', error)"]
        script = "\\n".join(lines)
        failed = (getattr(interpreters, "exec", None) or interpreters.run_string)(number, script)
        assert not failed, failed
        interpreters.destroy(number)
        print("alive", kvstore.Namespace(model="m", block_size=1, block_bytes=1).block_size)
    """
    done = run(code)
    if "No module named '_xxsubinterpreters'" in done.stderr:
        pytest.skip("this Python has no sub-interpreters")
    assert done.returncode == 0, done.stderr
    assert "alive 1" in done.stdout
    assert "refused:" in done.stdout


def test_submit_wait_and_close_from_several_threads(node):
    for turn in range(5):
        client = kvstore.Client(node.endpoint, deadline=5)
        space = client.open(namespace())
        hashes = space.hash_chain(tokens(64))
        unexpected = []

        def work(space=space, hashes=hashes, unexpected=unexpected, turn=turn) -> None:
            into = np.zeros((4, 4096), np.uint8)
            try:
                for i in range(200):
                    future = space.submit_get(hashes, into) if i % 2 else space.submit_match(hashes)
                    if i % 3 == turn % 3:
                        future.result()
                    del future
            except kvstore.BadRequest as error:
                if "closed" not in str(error):
                    unexpected.append(error)
            except kvstore.Cancelled:
                pass
            except BaseException as error:
                unexpected.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(0.02)
        client.close()
        for thread in threads:
            thread.join()
        assert not unexpected
