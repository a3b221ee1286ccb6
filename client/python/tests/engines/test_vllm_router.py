"""The router's query against vLLM's own hashes and lookups, and the example router with made-up workers and vLLM's publisher."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")
pytest.importorskip("zmq")
pytest.importorskip("msgspec")

import msgspec
import numpy as np
import tiny
from conftest import ROOT, Node, free_port
from scheduled import prompt_of, settle
from synthetic import BLOCK, Engine, cache_config, engine_config, named
from test_router import Service
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch, ZmqEventPublisher
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core import kv_cache_utils

import kvstore
from kvstore.doors.groups import usable
from kvstore.router import Naming, vllm_hashes
from kvstore.vllm.model import Group, Model

sys.path.insert(0, str(ROOT / "client/python/examples"))

import router as example

JSON = {"Content-Type": "application/json"}
HAS_TAGS = hasattr(kv_cache_utils, "to_event_extra_keys")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture
def engines(model: Path) -> Iterator[Any]:
    made: list[Engine] = []

    def make(endpoint: str | None, **more: Any) -> Engine:
        made.append(Engine(model, endpoint, **more))
        if endpoint is not None:
            for client in (made[-1].side._door.client, made[-1].worker_side._door.client):
                client.ping(deadline=5)
        return made[-1]

    yield make
    for each in made:
        each.close()


# -- the same names as the engine


@pytest.mark.parametrize("size", [1, 16, 32, 300])
def test_hashes_are_vllms(size: int) -> None:
    kv_cache_utils.init_none_hash(sha256_cbor)
    seed = kv_cache_utils.get_none_hash_seed()
    dice = random.Random(size)
    for salt in ("", "tenant-a"):
        if not HAS_TAGS and salt:
            continue
        ids = [dice.randrange(1 << dice.choice([5, 8, 16, 32])) for _ in range(size * 7 + size // 2)]
        request: Any = SimpleNamespace(
            mm_features=[],
            lora_request=None,
            cache_salt=salt,
            prompt_embeds=None,
        )
        last, expected = None, []
        for i in range(7):
            begin, end = i * size, (i + 1) * size
            extra, _ = kv_cache_utils.generate_block_hash_extra_keys(request, begin, end, 0)
            last = kv_cache_utils.hash_block_tokens(sha256_cbor, last, ids[begin:end], extra)
            expected.append(last)
        assert vllm_hashes(np.array(ids, np.uint32), size, seed=seed, cache_salt=salt) == expected


@pytest.mark.parametrize("windows", [False, True], ids=["full", "windows"])
@pytest.mark.parametrize("parts", [1, 2])
def test_records_name_blocks_as_the_connector_does(model: Path, windows: bool, parts: int) -> None:
    config = engine_config(model, "unix:///nowhere", options={"head_groups": parts})
    made = named(Model(config, cache_config(50, windows)), config)
    naming = Naming.of(made.namespace)
    hashes = [random.randbytes(32) for _ in range(5)]
    for epoch in (b"", b"w" + bytes(8)):
        assert naming.part_names(hashes, epoch) == made.part_names(hashes, epoch)
    assert naming.block_size == BLOCK
    assert [(g.window_tokens, g.is_state) for g in naming.groups] == [
        (g.window_tokens, g.is_state) for g in made.groups
    ]


def _needed(group: Group, block_count: int) -> list[int]:
    """The blocks of 16 tokens that the next token needs."""
    end = block_count * 16
    if group.is_state:
        return [block_count - 1] if block_count else []
    begin = end - group.window_tokens + 1 if group.window_tokens else 0
    return [token // 16 for token in range(max(0, begin), end)]


def test_hits_end_where_the_connectors_do() -> None:
    dice = np.random.default_rng(9)
    for _ in range(500):
        kinds = dice.choice(["full", "window", "state"], dice.integers(1, 4))
        groups = tuple(
            Group(("l",), 64, int(dice.integers(1, 200)) if kind == "window" else 0, "", is_state=kind == "state")
            for kind in kinds
        )
        text = "; ".join(f"{kind}{g.window_tokens or ''} 1x" for kind, g in zip(kinds, groups, strict=True))
        record = {"kind": "set", "model": "m", "block_bytes_max": 1, "hash": "vllm-sha256_cbor", "layout": "vllm-HNC"}
        naming = Naming.of(kvstore.Namespace(record | {"x.block_size": 16, "x.groups": text}))
        held = dice.random((len(groups), int(dice.integers(0, 30)))) < dice.choice([0.3, 0.8, 0.97])
        ends = [
            n
            for n in range(held.shape[1] + 1)
            if all(has[_needed(g, n)].all() for g, has in zip(groups, held, strict=True))
        ]
        assert naming.usable(held) == usable(groups, 16, held) == max(ends)


@pytest.mark.parametrize(
    "shape",
    [{}, {"windows": True}, {"windows": True, "states": True}, {"ranks": 2}, {"stages": 2}],
    ids=["full", "windows", "states", "ranks", "stages"],
)
def test_a_router_is_told_what_another_engine_then_loads(engines: Any, own_node: Node, shape: dict[str, Any]) -> None:
    service = Service(own_node.endpoint, options=("--deadline", "5", "--deadline-max", "10"))
    try:
        one = engines(own_node.endpoint, **shape)
        name = one.side._model.namespace.fields["model"]
        prompt = prompt_of(9 * BLOCK + 5, 7)
        one.generate(prompt)
        settle(one, 9)
        time.sleep(0.2)
        query = {"model": name, "token_ids": [*prompt, *prompt_of(3 * BLOCK, 8)]}
        told = service.prefix(**query)
        other = engines(own_node.endpoint, **shape)
        other.generate(query["token_ids"])
        assert told["found"]["tokens"] == other.last_cached() == 9 * BLOCK
        # Drops the last group's, rank's and stage's part of one block.
        hashes = vllm_hashes(np.array(prompt, np.uint32), BLOCK)
        lost = one.side._model.part_names([hashes[8]], b"")[-1:]
        assert one.side._spaces[-1].drop(lost).block_count == 1
        told_then = service.prefix(**query)
        last = engines(own_node.endpoint, **shape)
        last.generate(query["token_ids"])
        assert told_then["found"]["tokens"] == last.last_cached()
        assert "windows" in shape or last.last_cached() == 8 * BLOCK  # a window's end does not need that block
        assert service.prefix(model=name, token_ids=prompt_of(100, 9))["found"]["tokens"] == 0
    finally:
        service.close()


# -- the example router


class Publisher:
    """A worker's cache events, sent by vLLM's own publisher."""

    def __init__(self, buffer_steps: int = 1000, ports: tuple[int, int] | None = None) -> None:
        self.ports = ports or (free_port(), free_port())
        self._made = ZmqEventPublisher(
            0,
            f"tcp://*:{self.ports[0]}",
            f"tcp://127.0.0.1:{self.ports[1]}",
            buffer_steps=buffer_steps,
        )
        self.places = tuple(f"tcp://127.0.0.1:{port}" for port in self.ports)

    def tell(self, *events: Any) -> None:
        self._made.publish(KVEventBatch(ts=time.time(), events=list(events)))

    def close(self) -> None:
        self._made.shutdown()


def stored(hashes: list[Any], size: int = 16, medium: str = "GPU", group: int | None = 0) -> BlockStored:
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=None,
        token_ids=[],
        block_size=size,
        lora_id=None,
        medium=medium,
        lora_name=None,
        group_idx=group,
    )


class FakeWorker:
    """Answers as vLLM's server does, with words for tokens; records its requests."""

    def __init__(self, **more: Any) -> None:
        self.asked: list[dict[str, Any]] = []
        self.breaks = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length) or b"{}")
                if self.path == "/tokenize":
                    self.say({"tokens": outer.tokens_of(body)})
                    return
                outer.asked.append(body)
                if outer.breaks:
                    outer.breaks -= 1
                    self.close_connection = True
                    return
                if body.get("stream"):
                    self.send_response(200)
                    self.send_header("Content-Type", "text/event-stream")
                    self.end_headers()
                    for i in range(3):
                        self.wfile.write(f"data: {i}\n\n".encode())
                        self.wfile.flush()
                        time.sleep(0.05)
                    return
                self.say({"worker": outer.url, "path": self.path})

            def say(self, value: Any) -> None:
                raw = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.publisher = Publisher(**more)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @staticmethod
    def tokens_of(body: dict[str, Any]) -> list[int]:
        text = body.get("prompt") or " ".join(each["content"] for each in body["messages"])
        return [int(each) for each in str(text).split()]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.publisher.close()


class Running:
    """The example router in a thread."""

    def __init__(self, workers: list[FakeWorker], store: str = "", store_model: str = "") -> None:
        self.router = example.Router(
            [example.Worker(each.url, *each.publisher.places) for each in workers], store, store_model
        )
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._task: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        until = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError):
                self.state()
                return
            assert time.monotonic() < until
            time.sleep(0.02)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(example.serve(self.router, f"http://127.0.0.1:{self.port}"))
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        for each in asyncio.all_tasks(self._loop):
            each.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.05))

    def ask(self, body: dict[str, Any], path: str = "/v1/completions", method: str = "POST") -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, json.dumps(body), JSON)
            answer = connection.getresponse()
            return answer.status, answer.headers.get("x-kvstore-router", ""), answer.read()
        finally:
            connection.close()

    def state(self) -> dict[str, Any]:
        return dict(json.loads(self.ask({}, "/router", "GET")[2]))

    def wait(self, *counts: int) -> None:
        """Waits until the router has so many blocks for the workers."""
        until = time.monotonic() + 20
        while (known := [each["blocks"] for each in self.state()["workers"]]) != list(counts):
            assert time.monotonic() < until, known
            time.sleep(0.02)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10)


@pytest.fixture
def house() -> Iterator[Any]:
    leave = contextlib.ExitStack()

    def make(count: int = 2, **more: Any) -> tuple[Running, list[FakeWorker]]:
        workers = [FakeWorker() for _ in range(count)]
        for each in workers:
            leave.callback(each.close)
        running = Running(workers, **more)
        leave.callback(running.close)
        return running, workers

    with leave:
        yield make


IDS = list(range(100, 100 + 16 * 10 + 3))
HASHES = vllm_hashes(np.array(IDS, np.uint32), 16)


def test_a_request_goes_to_the_worker_that_has_most_of_it(house: Any) -> None:
    running, (one, other) = house()
    one.publisher.tell(stored(HASHES[:2]))
    other.publisher.tell(stored(HASHES[:7]))
    running.wait(2, 7)
    for body, path in (
        ({"model": "m", "prompt": IDS}, "/v1/completions"),
        ({"model": "m", "prompt": " ".join(map(str, IDS))}, "/v1/completions"),
        ({"model": "m", "messages": [{"role": "user", "content": " ".join(map(str, IDS))}]}, "/v1/chat/completions"),
    ):
        status, said, answer = running.ask(body, path)
        assert (status, json.loads(answer)) == (200, {"worker": other.url, "path": path})
        assert said == f"{other.url} own=112 stored=0 computed={len(IDS) - 112}"
    assert [len(one.asked), len(other.asked)] == [0, 3]
    # A page with other first tokens does not match.
    assert running.ask({"prompt": [1, *IDS]})[1].split(" ")[1] == "own=0"


def test_blocks_that_are_gone_are_not_counted(house: Any) -> None:
    running, (one, other) = house()
    one.publisher.tell(stored(HASHES[:8]))
    one.publisher.tell(BlockRemoved(block_hashes=[HASHES[3]], medium="GPU", group_idx=0))
    # Other tiers and other groups of layers do not affect the pages.
    one.publisher.tell(stored(HASHES[8:], medium="CPU"), stored(HASHES[3:4], group=1))
    other.publisher.tell(stored(HASHES[:4]))
    running.wait(7, 4)
    assert running.ask({"prompt": IDS})[1].startswith(f"{other.url} own=64 ")
    other.publisher.tell(AllBlocksCleared())
    running.wait(7, 0)
    assert running.ask({"prompt": IDS})[1].startswith(f"{one.url} own=48 ")


def test_hashes_may_be_told_as_numbers(house: Any) -> None:
    running, (one, _) = house()
    one.publisher.tell(stored([int.from_bytes(each, "big") & ((1 << 64) - 1) for each in HASHES[:5]]))
    running.wait(5, 0)
    assert running.ask({"prompt": IDS})[1].startswith(f"{one.url} own=80 ")


def test_older_encodings_are_read() -> None:
    encode = msgspec.msgpack.encode
    blocks = example.Blocks()
    assert blocks.take(0, encode([1.0, [["BlockStored", HASHES[:4], None, [], 16, None, "GPU"]]]))
    assert blocks.take(1, encode({"ts": 2.0, "events": [{"type": "BlockRemoved", "block_hashes": [HASHES[2]]}]}))
    assert (blocks.prefix(HASHES), blocks.block_size, len(blocks.held)) == (2, 16, 3)
    assert blocks.take(2, encode([3.0, [["AllBlocksCleared"]], 0]))
    assert not blocks.held


def test_what_was_told_before_the_router_came_is_asked_for(house: Any) -> None:
    worker = FakeWorker()
    try:
        for i in range(6):
            worker.publisher.tell(stored(HASHES[i : i + 1]))
        time.sleep(0.5)
        running = Running([worker])
        try:
            running.wait(6)
            worker.publisher.tell(stored(HASHES[6:8]))
            running.wait(8)
            assert running.state()["workers"][0]["gaps"] == 0
        finally:
            running.close()
    finally:
        worker.close()


class Cut:
    """Drops some of a publisher's messages, as a full queue does."""

    def __init__(self, publisher: Publisher) -> None:
        made = publisher._made
        self.pub = made._pub
        self.drops = False
        made._pub = self  # type: ignore[assignment]

    def send_multipart(self, parts: Any) -> None:
        if not self.drops:
            assert self.pub is not None
            self.pub.send_multipart(parts)

    def close(self, linger: int = 0) -> None:
        assert self.pub is not None
        self.pub.close(linger)


@pytest.mark.parametrize("steps", [1000, 2], ids=["all are there", "too many were missed"])
def test_after_a_gap_what_was_missed_is_asked_for_and_never_made_up(steps: int) -> None:
    worker = FakeWorker(buffer_steps=steps)
    cut = Cut(worker.publisher)
    running = Running([worker])
    try:
        worker.publisher.tell(stored(HASHES[:4]))
        running.wait(4)
        cut.drops = True
        worker.publisher.tell(BlockRemoved(block_hashes=[HASHES[1]], medium="GPU", group_idx=0))
        for i in range(5):
            worker.publisher.tell(stored(HASHES[4 + i : 5 + i]))
        time.sleep(0.5)
        cut.drops = False
        worker.publisher.tell(stored(HASHES[9:10]))
        # Two batches are left, including the last itself.
        running.wait(9 if steps == 1000 else 2)
        assert running.state()["workers"][0]["gaps"] == 1
        assert running.ask({"prompt": IDS})[1].split(" ")[1] == ("own=16" if steps == 1000 else "own=0")
        worker.publisher.tell(stored(HASHES[1:2]))
        running.wait(10 if steps == 1000 else 3)
        assert running.state()["workers"][0]["gaps"] == 1
    finally:
        running.close()
        worker.close()


def test_a_worker_that_began_anew_has_nothing_of_before() -> None:
    worker = FakeWorker()
    running = Running([worker])
    try:
        for i in range(4):
            worker.publisher.tell(stored(HASHES[i : i + 1]))
        running.wait(4)
        worker.publisher.close()
        worker.publisher = Publisher(ports=worker.publisher.ports)
        until = time.monotonic() + 20
        while running.state()["workers"][0]["blocks"] != 1:  # the router connects again
            assert time.monotonic() < until
            worker.publisher.tell(stored(HASHES[8:9]))
            time.sleep(0.1)
        assert running.ask({"prompt": IDS})[1].split(" ")[1] == "own=0"
    finally:
        running.close()
        worker.close()


def test_a_worker_that_cannot_be_reached_is_left_alone(house: Any) -> None:
    running, (one, other) = house()
    one.publisher.tell(stored(HASHES[:9]))
    running.wait(9, 0)
    one.breaks = 1  # it takes the request, and ends
    status, said, _ = running.ask({"prompt": IDS})
    assert (status, said.split(" ")[0]) == (200, other.url)
    assert running.ask({"prompt": IDS})[1].split(" ")[0] == other.url  # for a while
    other._server.shutdown()
    other._server.server_close()
    time.sleep(example.AWAY_SECONDS)
    assert running.ask({"prompt": IDS})[1].split(" ")[0] == one.url
    one._server.shutdown()
    one._server.server_close()
    assert running.ask({"prompt": IDS})[0] == 503


def test_streams_are_passed_on_as_they_come(house: Any) -> None:
    running, _ = house()
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": IDS, "stream": True}), JSON)
    answer = connection.getresponse()
    began = time.monotonic()
    first = answer.fp.readline()
    assert (first, time.monotonic() - began < 0.05 * 3) == (b"data: 0\n", True)
    assert answer.read().endswith(b"data: 2\n\n")
    connection.close()


def test_what_is_no_request_is_refused(house: Any) -> None:
    running, workers = house()
    assert running.ask({}, "/v1/embeddings")[0] == 404
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    connection.request("POST", "/v1/completions", "[1]", JSON)
    assert connection.getresponse().status == 400
    connection.close()
    assert running.ask({}, "/v1/models", "GET")[0] == 200
    assert running.ask({"prompt": [["a"]]})[0] == 200  # the worker reports the error
    assert sum(len(each.asked) for each in workers) == 2


def test_requests_that_nobody_has_anything_of_are_shared_out(house: Any) -> None:
    running, workers = house(3)
    for i in range(9):
        assert running.ask({"prompt": [i] * 50})[0] == 200
    assert [len(each.asked) for each in workers] == [3, 3, 3]


def test_what_the_store_has_need_not_be_computed_anywhere(house: Any, node: Node) -> None:
    """A busy worker's own blocks are worth less than an idle one that loads them."""
    record = {"kind": "set", "model": "routed", "block_bytes_max": 64, "hash": "vllm-sha256_cbor", "layout": "vllm-HNC"}
    with kvstore.Client(node.endpoint, deadline=10) as client:
        space = client.open_set(kvstore.Namespace(record | {"x.block_size": 16, "x.groups": "full 1x"}))
        assert space.put(HASHES, np.ones((len(HASHES), 64), np.uint8)).stored == len(HASHES)
    service = Service(node.endpoint, options=("--deadline", "5"))
    try:
        running, (one, other) = house(store=f"http://127.0.0.1:{service.port}")
        one.publisher.tell(stored(HASHES[:9]))
        running.wait(9, 0)
        body = {"model": "org/routed", "prompt": IDS}
        assert running.ask(body)[1] == f"{one.url} own=144 stored=16 computed=3"
        running.router.workers[0].pending = 50.0
        assert running.ask(body)[1] == f"{other.url} own=0 stored=160 computed=3"
        running.router.workers[0].pending = 0.0
        assert running.state()["tokens"] == {"own": 144, "loaded": 176, "computed": 6}
    finally:
        service.close()
    # Without the store's answer, only the workers' blocks count.
    running.router.workers[0].pending = 50.0
    assert running.ask(body)[1] == f"{one.url} own=144 stored=0 computed={len(IDS) - 144}"
