"""The end of the interpreter while daemon threads are in calls: a program that has done its work ends with its own status.

Python up to 3.13 ends such a thread by unwinding its stack, through C++. Run with each Python that deploy/test.sh finds.
"""

from __future__ import annotations

import signal

import pytest
from test_processes import run

#: Threads that call for ever, each call ``calls[i]``; the program ends with status 3 while all of them are in calls.
CALLERS = """
    import sys, threading, time
    import numpy as np
    import kvstore

    client = kvstore.Client(sys.argv[1], deadline=30)
    space = client.open(kvstore.Namespace(model="end", block_size=16, block_bytes=4096), wait=False)
    hashes, blocks = space.hash_chain(np.arange(64)), np.zeros((4, 4096), np.uint8)
    calls = [lambda: space.match(hashes), lambda: space.get(hashes, blocks), lambda: space.put(hashes, blocks)]
    started = threading.Barrier(int(sys.argv[2]) + 1)

    def work(call):
        started.wait()
        while True:
            try:
                call()
            except kvstore.Error:
                pass

    for number in range(int(sys.argv[2])):
        threading.Thread(target=work, args=(calls[number % len(calls)],), daemon=True).start()
    started.wait()
    time.sleep(0.05)
"""

#: A daemon thread is in ``call``, whose Python part reads from a pipe. The last object of ``sys`` writes there once the
#: interpreter ends threads, and stays until the thread has asked for the GIL.
IN_PYTHON = """
    import os, sys, threading, time
    import numpy as np
    import kvstore
    from kvstore import errors
    from kvstore.lmcache import Connector

    entered = threading.Event()
    reader, writer = os.pipe()

    def stay(*_, read=os.read, entered=entered, reader=reader):
        entered.set()
        read(reader, 1)

    class Slow:
        __dlpack__ = __dlpack_device__ = stay

    class Last:
        def __del__(self, write=os.write, sleep=time.sleep, writer=writer):
            write(writer, b"x")
            sleep(0.3)

    sys.last = Last()
    client = kvstore.Client(sys.argv[1], deadline=5)
    space = client.open(kvstore.Namespace(model="end", block_size=16, block_bytes=4096), wait=False)
    hashes = space.hash_chain(np.arange(16))
    threading.Thread(target=lambda: CALL, daemon=True).start()
    assert entered.wait(30)
    sys.exit(3)
"""


def closed(call: str) -> str:
    return f"(setattr(errors, 'error_of', stay), client.close(), {call})"


@pytest.mark.parametrize("thread_count", [1, 12])
def test_a_program_ends_with_its_own_status_while_its_node_is_away(tmp_path, thread_count):
    for _ in range(40):
        done = run(CALLERS + "    sys.exit(3)\n", f"unix://{tmp_path}/none", str(thread_count))
        assert (done.returncode, done.stderr) == (3, "")


def test_a_program_ends_with_its_own_status_while_its_node_answers(node):
    for _ in range(40):
        done = run(CALLERS + "    sys.exit(3)\n", node.endpoint, "12")
        assert (done.returncode, done.stderr) == (3, "")


def test_a_signal_at_the_end_is_pythons(node):
    """Ctrl-C and SIGTERM while the interpreter ends: either Python's own status for the signal or the program's."""
    code = """
    import os, signal
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
    threading.Timer(0, os.kill, (os.getpid(), int(sys.argv[3]))).start()
    sys.exit(3)
"""
    for each, own in ((signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 4)):
        for _ in range(10):
            done = run(CALLERS + code, node.endpoint, "12", str(int(each)))
            assert done.returncode in {3, own}, done.stderr
            assert "terminate" not in done.stderr


@pytest.mark.parametrize(
    "call",
    [
        "space.put(hashes, Slow())",
        "space.get(hashes, Slow())",
        "space.hash_chain(Slow())",
        "Connector(endpoints=sys.argv[1], weights_epoch=1).submit_batch_set(['a'], [Slow()])",
        closed("space.match(hashes)"),
        closed("space.put(hashes, np.zeros((1, 4096), np.uint8))"),
        closed("client.allocate(4096)"),
        closed("client.ping()"),
    ],
)
def test_a_thread_in_the_python_part_of_a_call_stays_at_the_end(node, call):
    done = run(IN_PYTHON.replace("CALL", call), node.endpoint)
    assert (done.returncode, done.stderr) == (3, "")
