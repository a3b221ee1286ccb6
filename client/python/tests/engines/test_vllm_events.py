"""A node's changes as vLLM's KV events, read with vLLM's own classes, with lost messages, from real and made-up nodes."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("vllm")
pytest.importorskip("zmq")
pytest.importorskip("msgspec")

import msgspec
import zmq
from conftest import namespace
from test_events import BLOCK_BYTES, TellingNode, fresh, names, put
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

import kvstore
from kvstore.events import ENCODINGS, Change, NodeAway, Space, look
from kvstore.events.publisher import Publisher
from kvstore.events.source import Part, Told

SPACE = Space("a", {"model": "m", "block_size": "16"})
END = (1 << 64) - 1


class Subscriber:
    """As in vLLM's documentation: missed batches are requested again, and after a lasting gap the list is empty."""

    def __init__(self, publishes_at: str, replays_at: str) -> None:
        self._context = zmq.Context()
        self._told = self._context.socket(zmq.SUB)
        self._told.connect(publishes_at)
        self._told.subscribe(b"")
        self._replay = self._context.socket(zmq.DEALER)  # REQ takes one answer alone
        self._replay.connect(replays_at)
        self._decoder = msgspec.msgpack.Decoder(KVEventBatch)
        self.last = -1
        self.held: set[tuple[str, bytes]] = set()
        self.sizes: set[int] = set()
        self.gaps = self.replays = 0

    def take(self, number: int, payload: bytes) -> None:
        for event in self._decoder.decode(payload).events:
            if isinstance(event, AllBlocksCleared):
                self.held.clear()
            elif isinstance(event, BlockStored):
                assert (event.token_ids, event.locality, event.ownership) == ([], "REMOTE", "kvstore")
                self.held |= {(event.medium, each) for each in event.block_hashes}
                self.sizes.add(event.block_size)
            else:
                assert isinstance(event, BlockRemoved)
                self.held -= {(event.medium, each) for each in event.block_hashes}
        self.last = number

    def read(self, lose: float = 0.0, random_: random.Random | None = None, wait_ms: int = 0) -> None:
        """Reads the received batches, some of which are dropped."""
        while self._told.poll(wait_ms):
            _, number, payload = self._told.recv_multipart()
            if random_ is not None and random_.random() < lose:
                continue
            sequence = int.from_bytes(number, "big")
            if sequence <= self.last:
                continue
            if sequence > self.last + 1:
                self.catch_up()
            if sequence == self.last + 1:
                self.take(sequence, payload)

    def catch_up(self) -> None:
        self.replays += 1
        self._replay.send_multipart([b"", (self.last + 1).to_bytes(8, "big")])
        while True:
            assert self._replay.poll(20_000)
            frames = self._replay.recv_multipart()
            number = int.from_bytes(frames[-2], "big")
            if number == END:
                return
            if number > self.last + 1:
                self.gaps += 1
                self.held.clear()
            if number > self.last:
                self.take(number, frames[-1])

    def close(self) -> None:
        self._told.close(linger=0)
        self._replay.close(linger=0)
        self._context.term()


class MadeUpNode:
    """A Source of changes made here, which keeps the last ``events``."""

    url = "made up"

    def __init__(self, seed: int, events: int) -> None:
        self._random = random.Random(seed)
        self._events = events
        self.all: list[Change] = []
        self.held: dict[tuple[str, bytes], Change] = {}
        self.life = "1"
        self.is_away = False
        self.while_looked_at = 0

    def change(self, count: int) -> None:
        for _ in range(count):
            if self.held and self._random.random() < 0.4:
                tier, name = self._random.choice(list(self.held))
                made = Change(False, tier, SPACE, name)
                del self.held[tier, name]
            else:
                tier, name = self._random.choice(("memory", "disk")), hashlib.sha256(self._random.randbytes(2)).digest()
                made = Change(True, tier, SPACE, name)
                self.held[tier, name] = made
            self.all.append(made)

    def begin_anew(self) -> None:
        self.life = str(int(self.life) + 1)
        self.all, self.held = [], {}

    def _check(self) -> None:
        if self.is_away:
            raise NodeAway("it is away")

    def events(self, start: int, life: str = "") -> Told:
        self._check()
        oldest = max(0, len(self.all) - self._events)
        if (life and life != self.life) or start < oldest or start > len(self.all):
            return Told(self.life, len(self.all), True, [])
        some = self.all[start : start + 7]
        return Told(self.life, start + len(some), False, some)

    def blocks(self, at: str = "") -> Part:
        self._check()
        order = sorted(self.held)
        tier, _, name = at.partition(" ")
        some = [each for each in order if not at or each > (tier, bytes.fromhex(name))][:20]
        more = f"{some[-1][0]} {some[-1][1].hex()}" if len(some) == 20 else None
        part = Part(self.life, len(self.all), more, [self.held[each] for each in some])
        self.change(self._random.randint(0, self.while_looked_at))
        return part

    def close(self) -> None:
        pass


MEDIA = {"memory": "CPU", "disk": "STORAGE"}


def known_of(source: MadeUpNode) -> set[tuple[str, bytes]]:
    return {(MEDIA[tier], name) for tier, name in source.held}


class Running:
    """A publisher on a thread of its own, with its source."""

    def __init__(self, source: Any, **more: Any) -> None:
        self.publisher = Publisher(
            source, ENCODINGS["vllm"], publish="tcp://127.0.0.1:0", replay="tcp://127.0.0.1:0", look_seconds=0.0, **more
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._turn = threading.Lock()

    def _run(self) -> None:
        while not self._ended.is_set():
            with self._turn:
                self.publisher.answer(0.005)
            time.sleep(0.001)  # a lock taken again at once would starve its waiter

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def follow(self) -> None:
        """Holds up the socket's thread: one runs at a time."""
        with self._turn:
            self.publisher.follow()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.publisher.close()


@pytest.mark.parametrize("kept", [3, 1000], ids=["few are kept", "all are kept"])
@pytest.mark.parametrize("events", [60, 100_000], ids=["gaps", "no gaps"])
def test_a_subscriber_that_misses_messages_ends_with_what_the_node_holds(kept: int, events: int) -> None:
    seed = int(os.environ.get("KV_SEED", time.time_ns() % 10**9))
    print(f"KV_SEED={seed}")
    random_ = random.Random(seed)
    source = MadeUpNode(seed, events)
    source.while_looked_at = 3
    source.change(100)
    with Running(source, batches_max=kept, changes_per_batch=8) as running:
        subscriber = Subscriber(running.publisher.publishes_at, running.publisher.replays_at)
        try:
            time.sleep(0.3)  # until it is subscribed; earlier batches count as missed
            for turn in range(60):
                if turn == 40:
                    source.begin_anew()
                source.change(random_.choice((1, 5, 30, 100)))
                running.follow()
                subscriber.read(lose=0.5, random_=random_, wait_ms=2)
            # A last batch that arrives shows the gaps.
            deadline = time.monotonic() + 20
            source.while_looked_at = 0
            while True:
                source.change(1)
                running.follow()
                subscriber.read(wait_ms=200)
                if subscriber.held == known_of(source):
                    break
                assert time.monotonic() < deadline, (len(subscriber.held), len(source.held))
            assert subscriber.replays > 3
            assert subscriber.sizes == {16}
            if kept == 3:
                assert subscriber.gaps > 0
        finally:
            subscriber.close()


def test_a_node_that_does_not_answer_counts_as_empty_after_a_while() -> None:
    source = MadeUpNode(1, 1000)
    source.change(50)
    with Running(source, away_seconds=0.3) as running:
        subscriber = Subscriber(running.publisher.publishes_at, running.publisher.replays_at)
        try:
            running.follow()
            subscriber.catch_up()
            assert subscriber.held == known_of(source)
            source.is_away = True
            running.follow()
            subscriber.catch_up()
            assert subscriber.held == known_of(source), "for a moment what it told is believed"
            time.sleep(0.35)
            for _ in range(3):
                running.follow()
            subscriber.catch_up()
            assert subscriber.held == set()
            last = subscriber.last
            source.is_away = False
            running.follow()
            subscriber.catch_up()
            assert subscriber.held == known_of(source)
            assert subscriber.last == last + 1, "it was cleared once"
        finally:
            subscriber.close()


@pytest.fixture
def telling() -> Iterator[TellingNode]:
    made = TellingNode(events=2000, capacity="1MiB")
    yield made
    made.close()


def test_a_program_publishes_what_a_real_node_tells(telling: TellingNode) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "kvstore.events", "--node", f"http://{telling.admin}"),
            *("--publish", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0"),
            *("--poll", "0.02", "--batches-max", "5"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    said = process.stdout.readline().split()
    subscriber = Subscriber(said[-2], said[-1])
    random_ = random.Random(7)
    record = namespace(BLOCK_BYTES)
    try:
        with kvstore.Client(telling.endpoint, deadline=10) as client, closing(telling.source()) as source:
            space = client.open(record)
            ids = [fresh(16 * random_.randint(1, 60)) for _ in range(20)]
            for _ in range(40):
                prompt = ids[random_.randrange(len(ids))]
                if random_.random() < 0.2:
                    space.drop(space.hash_chain(prompt)[:1])
                else:
                    put(client, record, prompt)
                subscriber.read(lose=0.3, random_=random_, wait_ms=10)
            deadline = time.monotonic() + 30
            while True:
                put(client, record, fresh(16 * random_.randint(1, 3)))
                subscriber.read(wait_ms=300)
                seen = look(source)
                assert seen is not None
                if {name for _, name in subscriber.held} == names(seen.held):
                    break
                assert time.monotonic() < deadline
            assert subscriber.held
            assert {medium for medium, _ in subscriber.held} == {"CPU"}
    finally:
        subscriber.close()
        process.terminate()
        assert process.wait(20) == 0
        process.stdout.close()


def test_a_program_says_what_is_wrong(telling: TellingNode) -> None:
    def said(*more: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "kvstore.events", *more],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
        )
        assert done.returncode == 1
        return done.stderr

    node = ("--node", f"http://{telling.admin}")
    assert "anybody could read along" in said(*node, "--publish", "tcp://0.0.0.0:0")
    assert "anybody could read along" in said(*node, "--publish", "tcp://*:5557")
    assert "anybody could read along" in said(*node, "--publish", "tcp://127.0.0.1:0", "--replay", "tcp://10.0.0.1:1")
    assert "127.0.0.1:1" in said("--node", "http://127.0.0.1:1")
