"""One list of store failures for every engine connector ("door"): each is called as its engine calls it, without a model.

Doors need engines that do not fit in one environment: the others' are skipped. An item is a door's content under one name; its bytes follow
from its number, so that every result can be checked.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import inspect
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Node
from proxy import Proxy

#: The engine of this environment. LMCache's has vLLM too.
HERE = next((each for each in ("lmcache", "sglang", "vllm") if importlib.util.find_spec(each)), "")

if HERE == "sglang":
    from test_sglang_pools import sglang_context  # noqa: F401  # a fixture that each test has

#: Timeouts of calls that wait for a stopped node, and of all others.
HASTY, PATIENT = 0.2, 5.0
#: Calls repeated while a task is under way.
POLLS = ("query_", "pop_", "get_finished")
_numbers = iter(range(10**9))


class Door:
    """A test's view of a door. Methods do not raise, in any state of the store."""

    #: Whether the engine calls one door from several threads.
    is_shared = False
    #: The door's client if visible, to wait for a connection.
    client: Any = None
    #: So many items do not fit in 4 MiB.
    many = 400
    more: dict[str, Any] = {}  # noqa: RUF012  # a test sets it

    def __init__(self) -> None:
        #: The objects that the engine calls.
        self.called: list[Any] = []
        self.call_count = 0

    def store(self, items: Sequence[int]) -> None:
        """Hands the items over; returns when their store has ended or was given up."""
        raise NotImplementedError

    def load(self, items: Sequence[int]) -> list[bool]:
        """Which of them have come. Checks that these are right, and that missing ones do not count as loaded."""
        raise NotImplementedError

    def one_round(self, items: Sequence[int]) -> None:
        """Lookups, loads and stores of few bytes, which all have to succeed."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def count_calls(self) -> None:
        """From now on ``call_count`` grows with each call of an engine-facing method."""

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(call)
            def calling(*arguments: Any, **named: Any) -> Any:
                self.call_count += 1
                return call(*arguments, **named)

            return calling

        for each in self.called:
            for name, _ in inspect.getmembers(type(each), inspect.isfunction):
                if not name.startswith(("_", *POLLS)):
                    setattr(each, name, counted(getattr(each, name)))

    def warm(self) -> None:
        """Waits for a connection, if one is possible."""
        until = time.monotonic() + 10
        while self.client is not None and self.client.ping(deadline=0.2) == [None] and time.monotonic() < until:
            pass


def check(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


# -- vLLM


class Connector(Door):
    """KVStoreConnector, with vLLM's scheduler and arithmetic for a model. An item is a prompt of eight blocks."""

    BLOCKS = 8
    many = 200

    def __init__(self, endpoint: str, seconds: float, model: Path, salt: str) -> None:
        super().__init__()
        from scheduled import prompt_of
        from synthetic import BLOCK, Engine

        options = {
            "lookup_timeout": seconds,
            "load_timeout": seconds,
            "save_timeout": seconds,
            "salt": salt,
        } | self.more
        self.engine = Engine(model, endpoint, options=options, page_count=400)
        self.plain = Engine(model, None)
        self.prompt = lambda item: prompt_of(self.BLOCKS * BLOCK + 1, item)
        self.tokens = self.BLOCKS * BLOCK
        self.called = [self.engine.scheduler.connector, self.engine.worker]
        self.client = self.engine.side._client
        self.answers: dict[int, list[int]] = {}
        if self.client.ping(deadline=0.2) != [None]:
            self.engine.worker_side._client.ping(deadline=5)

    def _expected(self, item: int) -> list[int]:
        if item not in self.answers:
            (self.answers[item],) = self.plain.generate(self.prompt(item), max_tokens=2)
        return self.answers[item]

    def _forget(self) -> None:
        """Empties the engine's own cache: the next request has to use the store."""
        until = time.monotonic() + 30
        while not self.engine.scheduler.reset_prefix_cache():
            check(time.monotonic() < until, "pages are held for ever")
            self.engine.step()
            time.sleep(0.001)

    def _run(self, item: int) -> int:
        self._forget()
        (answer,) = self.engine.generate(self.prompt(item), max_tokens=2)
        check(answer == self._expected(item), "wrong tokens")
        cached = self.engine.last_cached()
        self.engine.tokens.clear()  # results kept by the test's engine
        self.engine.cached.clear()
        return cached

    def store(self, items: Sequence[int]) -> None:
        for item in items:
            self._run(item)
        until = time.monotonic() + 30
        quiet = 0
        while quiet < 30:  # pages are returned first, and their copies put later
            check(time.monotonic() < until, "saves do not end")
            self.engine.step()
            quiet = 0 if self.engine.side.has_pending_saves or self.engine.worker_side._puts else quiet + 1
            time.sleep(0.001)

    def load(self, items: Sequence[int]) -> list[bool]:
        return [self._run(item) == self.tokens for item in items]

    def one_round(self, items: Sequence[int]) -> None:
        check(all(self.load(items)), "lost")
        new = next(_numbers) % 8 + 50
        self._run(new)

    def close(self) -> None:
        self.engine.close()
        self.plain.close()


class Tier(Door):
    """KVStoreTier as vLLM's tiering manager calls it: rows of a pool."""

    many = 2000

    def __init__(self, endpoint: str, seconds: float, model: Path, salt: str) -> None:
        super().__init__()
        from synthetic import Engine
        from test_vllm_tier import job, tier_of
        from tier_cpu import transfer_config

        options = {
            "lookup_timeout": seconds,
            "load_timeout": seconds,
            "save_timeout": seconds,
            "salt": salt,
        } | self.more
        self.engine = Engine(
            model, endpoint, kv_transfer_config=transfer_config(endpoint, 16 << 20, options), page_count=50
        )
        self.tier = tier_of(self.engine)
        self.pool = self.tier._chunks._pool
        self.job = job
        self.client = self.tier._client
        self.called = [self.tier]

    @staticmethod
    def _keys(items: Sequence[int]) -> list[bytes]:
        return [item.to_bytes(32, "big") + bytes(4) for item in items]

    def _fill(self, items: Sequence[int]) -> None:
        for row, item in enumerate(items):
            self.pool[row] = _bytes_of(item, self.pool.shape[1]).numpy()

    def _end(self, number: int) -> Any:
        until = time.monotonic() + 20
        while True:
            for each in self.tier.get_finished_jobs():
                check(each.job_id == number, "another job has ended")
                return each
            check(time.monotonic() < until, "a job does not end")
            time.sleep(0.0002)

    def store(self, items: Sequence[int]) -> None:
        self._fill(items)
        number = next(_numbers)
        self.tier.submit_store(self.job(number, self._keys(items), range(len(items)), False))
        self._end(number)

    def load(self, items: Sequence[int]) -> list[bool]:
        from vllm.v1.kv_offload.base import LookupResult, ReqContext

        name = f"r{next(_numbers)}"
        context = ReqContext(req_id=name)
        keys = self._keys(items)
        self.tier.on_new_request(context)
        until = time.monotonic() + 20
        while LookupResult.RETRY in (found := [self.tier.lookup(key, context) for key in keys]):
            check(time.monotonic() < until, "no answer")
            self.tier.on_schedule_end(None)
            time.sleep(0.0002)
        there = [i for i, each in enumerate(found) if each == LookupResult.HIT]
        came = [False] * len(items)
        if there:
            self.pool[: len(items)] = 0
            number = next(_numbers)
            self.tier.submit_load(self.job(number, [keys[i] for i in there], there, True, name))
            result = self._end(number)
            good = {keys[i] for i in there} if result.success else set(result.successful_keys or ())
            for i in there:
                came[i] = keys[i] in good
                expected = _bytes_of(items[i], self.pool.shape[1]).numpy()
                check(not came[i] or bool((self.pool[i] == expected).all()), "wrong bytes")
        self.tier.on_request_finished(context)
        return came

    def one_round(self, items: Sequence[int]) -> None:
        check(all(self.load(items)), "lost")
        number = next(_numbers)
        self.tier.submit_store(self.job(number, self._keys(items), range(len(items)), False))
        check(self._end(number).success, "not stored")

    def close(self) -> None:
        self.engine.close()


class Encoder(Door):
    """KVStoreECConnector, both halves."""

    many = 100

    def __init__(self, endpoint: str, seconds: float, model: Path, salt: str) -> None:
        super().__init__()
        from test_vllm_encoder import Engine, output_of, request_of

        options = {
            "lookup_timeout": seconds,
            "load_timeout": seconds,
            "save_timeout": seconds,
            "salt": salt,
        } | self.more
        # A node refuses blocks larger than its whole capacity.
        self.engine = Engine(model, endpoint, output_bytes_max=1 << 20, **options)
        self.request_of, self.output_of = request_of, functools.cache(output_of)
        self.client = self.engine.scheduler._client
        self.called = [self.engine.scheduler, self.engine.worker]
        self.engine.worker._client.ping(deadline=0.2)

    def _run(self, item: int) -> bool:
        """Whether encoding was spared. The engine's cache has it only meanwhile."""
        name, before = f"image {item}", len(self.engine.encoded)
        self.engine.run(self.request_of(name))  # compares the cache's content
        self.engine.freed = [name]
        self.engine._step([])
        return len(self.engine.encoded) == before

    def store(self, items: Sequence[int]) -> None:
        for item in items:
            self._run(item)
        self.engine.settle()

    def load(self, items: Sequence[int]) -> list[bool]:
        return [self._run(item) for item in items]

    def one_round(self, items: Sequence[int]) -> None:
        for item in items:
            check(self._run(item), "lost")
            name = f"image {item}"
            self.engine.worker.save_caches(encoder_cache={name: self.output_of(name)}, mm_hash=name)
        self.engine.settle()

    def close(self) -> None:
        self.engine.close()


# -- SGLang


class HiCache(Door):
    """KVStoreHiCache with SGLang's own host pool, by the interface ``interface``."""

    is_shared = True
    ITEMS = 8

    def __init__(self, endpoint: str, seconds: float, interface: str, salt: str) -> None:
        super().__init__()
        from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName
        from test_sglang_pools import PAGE, mha_pool, page_of, tokens_of

        from kvstore.sglang import KVStoreHiCache

        options = {
            "lookup_timeout": seconds,
            "load_timeout": seconds,
            "save_timeout": seconds,
            "salt": salt,
        } | self.more
        options["weights_epoch"] = 1
        extra = {"backend_name": "kvstore", "interface_v1": int(interface != "copying"), "endpoints": endpoint}
        self.storage = KVStoreHiCache(
            HiCacheStorageConfig(
                tp_rank=0,
                tp_size=1,
                pp_rank=0,
                pp_size=1,
                attn_cp_rank=0,
                attn_cp_size=1,
                is_mla_model=False,
                enable_storage_metrics=True,
                is_page_first_layout=False,
                model_name="dummy",
                extra_config=extra | options | {"staging_bytes": 16 << 20},
            ),
            {},
        )
        self.interface = interface
        # Each of eight threads has pages of its own.
        self.pool = mha_pool("page_first_direct", pages=9 * self.ITEMS)
        self.storage.register_mem_pool_host(self.pool)
        self.storage.register_mem_host_pool_v2(self.pool, PoolName.KV)
        self.storage.on_host_pools_registered()
        self.client = self.storage._client
        self.called = [self.storage]
        self.page_of, self.tokens_of, self.page_size = page_of, tokens_of, PAGE
        self.mine = threading.local()
        self.lanes = iter(range(9))

    def _pages(self, count: int) -> list[int]:
        if not hasattr(self.mine, "lane"):
            self.mine.lane = next(self.lanes)
        check(count <= self.ITEMS, "too many")
        return list(range(self.mine.lane * self.ITEMS, self.mine.lane * self.ITEMS + count))

    @staticmethod
    def _keys(items: Sequence[int]) -> list[str]:
        import hashlib

        return [hashlib.sha256(f"door {item}".encode()).hexdigest() for item in items]

    def _raw(self, page: int) -> torch.Tensor:
        return self.pool.kv_buffer[:, page].view(torch.uint8)

    def _fill(self, pages: list[int], items: Sequence[int]) -> None:
        for page, item in zip(pages, items, strict=True):
            raw = self._raw(page)
            raw.copy_(_bytes_of(item, raw.numel()).reshape(raw.shape))

    def _transfer(self, items: Sequence[int], pages: list[int]) -> Any:
        from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

        return PoolTransfer(PoolName.KV, host_indices=self.tokens_of(pages), keys=self._keys(items))

    def store(self, items: Sequence[int]) -> None:
        for begin in range(0, len(items), self.ITEMS):
            some = items[begin : begin + self.ITEMS]
            pages = self._pages(len(some))
            self._fill(pages, some)
            self._set(some, pages)

    def _set(self, some: Sequence[int], pages: list[int]) -> None:
        if self.interface == "copying":
            done: Any = self.storage.batch_set(
                self._keys(some), [self.pool.get_data_page(page * self.page_size, flat=True) for page in pages]
            )
            check(isinstance(done, bool), "no answer")
        elif self.interface == "v2":
            (done,) = self.storage.batch_set_v2([self._transfer(some, pages)]).values()
            check(len(done) == len(some), "not as long as the keys")
        else:
            done = self.storage.batch_set_v1(self._keys(some), self.tokens_of(pages))
            check(len(done) == len(some), "not as long as the keys")

    def load(self, items: Sequence[int]) -> list[bool]:
        came: list[bool] = []
        for begin in range(0, len(items), self.ITEMS):
            came += self._get(items[begin : begin + self.ITEMS])
        return came

    def _get(self, some: Sequence[int]) -> list[bool]:
        keys, pages = self._keys(some), self._pages(len(some))
        self.storage.batch_exists(keys)
        for page in pages:
            self._raw(page).fill_(7)
        if self.interface == "copying":
            targets = [self.pool.get_dummy_flat_data_page() for _ in some]
            got = self.storage.batch_get(keys, targets)
            check(len(got) == len(some), "not as long as the keys")
            for each, page in zip(got, pages, strict=True):
                if each is not None:
                    self.pool.set_from_flat_data_page(page * self.page_size, each)
            came = [each is not None for each in got]
        elif self.interface == "v2":
            (came,) = self.storage.batch_get_v2([self._transfer(some, pages)]).values()
        else:
            came = self.storage.batch_get_v1(keys, self.tokens_of(pages))
        check(len(came) == len(some), "not as long as the keys")
        for each, page, item in zip(came, pages, some, strict=True):
            raw = self._raw(page)
            expected = _bytes_of(item, raw.numel()).reshape(raw.shape) if each else torch.full_like(raw, 7)
            check(torch.equal(raw, expected), "wrong bytes")
        return list(came)

    def one_round(self, items: Sequence[int]) -> None:
        check(all(self._get(items)), "lost")
        self._set(items, self._pages(len(items)))

    def close(self) -> None:
        self.storage.close()


class Embeddings(Door):
    """KVStoreEmbeddings, with a pool like that of SGLang's embedding cache."""

    is_shared = True
    ROWS, DIM = 32, 256
    ITEMS = 8

    def __init__(self, endpoint: str, seconds: float, how: None, salt: str) -> None:
        super().__init__()
        import json
        from unittest import mock

        from kvstore.sglang.encoder import OPTIONS, KVStoreEmbeddings

        options = {
            "lookup_timeout": seconds,
            "load_timeout": seconds,
            "save_timeout": seconds,
            "salt": salt,
        } | self.more
        options["weights_epoch"] = 1
        # A node refuses blocks larger than its whole capacity.
        given = json.dumps(options | {"endpoints": endpoint, "output_bytes_max": 1 << 20})
        with mock.patch.dict(os.environ, {OPTIONS: given}):
            self.store_ = KVStoreEmbeddings()
        self.pool = torch.zeros((9 * self.ITEMS * self.ROWS, self.DIM), dtype=torch.bfloat16)
        self.store_.register_buffer(self.pool)
        self.client = self.store_._client
        self.called = [self.store_]
        self.mine = threading.local()
        self.lanes = iter(range(9))

    def _places(self, count: int) -> list[torch.Tensor]:
        """Each of eight threads has rows of its own."""
        if not hasattr(self.mine, "lane"):
            self.mine.lane = next(self.lanes)
        first = self.mine.lane * self.ITEMS
        return [self.pool[i * self.ROWS : (i + 1) * self.ROWS] for i in range(first, first + count)]

    def _call(self, do: Callable[..., list[bool]], items: Sequence[int], places: list[torch.Tensor]) -> list[bool]:
        """Each in two pieces."""
        half = self.ROWS // 2 * self.DIM * 2
        ptrs = [[each.data_ptr(), each.data_ptr() + half] for each in places]
        done = do([str(item) for item in items], ptrs, [[half, half] for _ in places])
        check(len(done) == len(items), "not as long as the hashes")
        return done

    def _expected(self, item: int, place: torch.Tensor) -> torch.Tensor:
        raw = place.view(torch.uint8)
        return _bytes_of(item, raw.numel()).reshape(raw.shape)

    def _put(self, some: Sequence[int]) -> list[bool]:
        places = self._places(len(some))
        for item, place in zip(some, places, strict=True):
            place.view(torch.uint8).copy_(self._expected(item, place))
        return self._call(self.store_.batch_put_from_multi_buffers, some, places)

    def _get(self, some: Sequence[int]) -> list[bool]:
        places = self._places(len(some))
        self.store_.batch_is_exist([str(item) for item in some])
        for place in places:
            place.view(torch.uint8).fill_(7)
        came = self._call(self.store_.batch_get_into_multi_buffers, some, places)
        for item, place, is_here in zip(some, places, came, strict=True):
            raw = place.view(torch.uint8)
            check(torch.equal(raw, self._expected(item, place) if is_here else torch.full_like(raw, 7)), "wrong bytes")
        return came

    def store(self, items: Sequence[int]) -> None:
        for begin in range(0, len(items), self.ITEMS):
            self._put(items[begin : begin + self.ITEMS])

    def load(self, items: Sequence[int]) -> list[bool]:
        came: list[bool] = []
        for begin in range(0, len(items), self.ITEMS):
            came += self._get(items[begin : begin + self.ITEMS])
        return came

    def one_round(self, items: Sequence[int]) -> None:
        check(all(self._get(items)), "lost")
        check(all(self._put(items)), "not stored")

    def close(self) -> None:
        self.store_.close()


# -- LMCache


class LmCache(Door):
    """LMCache's L2, by ``door``."""

    is_shared = True
    SIZE = 16 << 10

    def __init__(self, endpoint: str, seconds: float, door: str, salt: str) -> None:
        super().__init__()
        import test_lmcache_adapter as tests

        self.tests = tests
        self.adapter = tests.made(
            tests.spec(endpoint, door, salt, deadline=seconds, object_bytes_max=1 << 20, **self.more)
        )
        self.client = self.adapter._client if door == "plugin" else None
        self.called = [self.adapter]
        self.done: dict[int, Any] = {}
        self.lock = threading.Lock()
        if self.client is None and (endpoint.startswith("tcp:") or os.path.exists(endpoint.removeprefix("unix://"))):
            until = time.monotonic() + 10
            while not self._store([self.tests.key_of("warm")], [self._object(0)]) and time.monotonic() < until:
                pass

    def _object(self, item: int | None) -> Any:
        made = self.tests.object_of(None, self.SIZE)
        if item is not None:
            made.raw_data.copy_(_bytes_of(item, self.SIZE))
        return made

    def _keys(self, items: Sequence[int]) -> list[Any]:
        return [self.tests.key_of(f"door {item}") for item in items]

    def _store(self, keys: list[Any], objects: list[Any]) -> bool:
        task = self.adapter.submit_store_task(keys, objects)
        until = time.monotonic() + 20
        while True:
            with self.lock:
                self.done.update(self.adapter.pop_completed_store_tasks())
                if task in self.done:
                    return bool(self.done.pop(task).is_successful())
            check(time.monotonic() < until, "a store does not end")
            time.sleep(0.0002)

    @staticmethod
    def _answer(query: Callable[[int], Any], task: int, count: int) -> list[bool]:
        until = time.monotonic() + 20
        while (answer := query(task)) is None:
            check(time.monotonic() < until, "a task does not end")
            time.sleep(0.0002)
        return [bool(answer.test(i)) for i in range(count)]

    def store(self, items: Sequence[int]) -> None:
        for begin in range(0, len(items), 16):
            some = items[begin : begin + 16]
            self._store(self._keys(some), [self._object(item) for item in some])

    def load(self, items: Sequence[int]) -> list[bool]:
        keys, adapter = self._keys(items), self.adapter
        lookup = adapter.submit_lookup_and_lock_task(keys, {})
        self._answer(adapter.query_lookup_and_lock_result, lookup, len(keys))
        # LMCache loads only found objects. Here all are requested: some may be gone by then.
        targets = [self._object(None) for _ in keys]
        came = self._answer(adapter.query_load_result, adapter.submit_load_task(keys, targets), len(keys))
        adapter.submit_unlock(keys)
        for each, target, item in zip(came, targets, items, strict=True):
            check(not each or torch.equal(target.raw_data, _bytes_of(item, self.SIZE)), "wrong bytes")
        return came

    def one_round(self, items: Sequence[int]) -> None:
        check(all(self.load(items)), "lost")
        check(self._store(self._keys(items), [self._object(item) for item in items]), "not stored")

    def close(self) -> None:
        self.adapter.close()


_known_bytes: dict[tuple[int, int], torch.Tensor] = {}


def _bytes_of(item: int, count: int) -> torch.Tensor:
    """An item's bytes. Few sizes and numbers, so that a test's time is the door's."""
    key = item, count
    if key not in _known_bytes:
        generator = torch.Generator().manual_seed(item)
        _known_bytes[key] = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    return _known_bytes[key]


DOORS: dict[str, tuple[str, Callable[..., Door], Any]] = {
    "connector": ("vllm", Connector, None),
    "tier": ("vllm", Tier, None),
    "encoder": ("vllm", Encoder, None),
    "hicache": ("sglang", HiCache, "v1"),
    "hicache v2": ("sglang", HiCache, "v2"),
    "hicache copying": ("sglang", HiCache, "copying"),
    "embeddings": ("sglang", Embeddings, None),
    "lmcache plugin": ("lmcache", LmCache, "plugin"),
    "lmcache native": ("lmcache", LmCache, "native_plugin"),
}


@pytest.fixture(params=DOORS)
def doors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Makes doors of one kind that share their blocks."""
    engine, kind, how = DOORS[request.param]
    if engine != HERE:
        pytest.skip(f"{engine} has an environment of its own")
    if engine == "vllm":
        pytest.importorskip("vllm.v1.kv_offload.tiering.base")
        pytest.importorskip("vllm.distributed.ec_transfer.ec_connector.base")
        import tiny

        how = tiny.make("llama", tmp_path_factory.mktemp("model"))
    made: list[Door] = []
    salt = f"door-{os.getpid()}-{next(_numbers)}"

    def make(endpoint: str, seconds: float = PATIENT) -> Door:
        made.append(kind(endpoint, seconds, how, salt))
        made[-1].warm()
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def proxied() -> Iterator[tuple[Node, Proxy]]:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    node = Node("--listen", f"tcp://127.0.0.1:{port}")
    proxy = Proxy(("127.0.0.1", port))
    yield node, proxy
    proxy.close()
    node.close()


FOUR = (1, 2, 3, 4)


def until_used(door: Door, items: Sequence[int] = FOUR, seconds: float = 90) -> None:
    """Waits until all items are stored and come back: pauses after failures last up to half a minute."""
    until = time.monotonic() + seconds
    while True:
        door.store(items)
        if all(door.load(items)):
            return
        assert time.monotonic() < until
        time.sleep(0.1)


def test_what_one_stores_another_loads(doors: Any, own_node: Node) -> None:
    one, other = doors(own_node.endpoint), doors(own_node.endpoint)
    one.store(FOUR)
    assert other.load((*FOUR, 5)) == [True] * 4 + [False]


def test_a_node_that_is_dead_at_the_start_is_a_miss_and_used_when_it_comes(doors: Any, own_node: Node) -> None:
    own_node.kill()
    door = doors(own_node.endpoint, HASTY)
    began = time.monotonic()
    for _ in range(5):
        door.store(FOUR)
        assert door.load(FOUR) == [False] * 4
    assert time.monotonic() - began < 20
    own_node.start()
    until_used(door)


def test_a_node_that_dies_is_a_miss_and_used_when_it_is_back_empty(doors: Any, own_node: Node) -> None:
    door = doors(own_node.endpoint)
    until_used(door)
    own_node.kill()
    began = time.monotonic()
    for _ in range(5):
        assert door.load(FOUR) == [False] * 4
        door.store(FOUR)
    assert time.monotonic() - began < 30
    own_node.start()
    assert doors(own_node.endpoint).load((1, 2)) == [False, False]
    until_used(door)


def test_a_node_that_stands_still_costs_the_timeouts_and_is_used_when_it_goes_on(doors: Any, own_node: Node) -> None:
    door = doors(own_node.endpoint, HASTY)
    until_used(door)
    own_node.pause()
    began = time.monotonic()
    for _ in range(5):
        assert door.load(FOUR) == [False] * 4
        door.store((5, 6))
    assert time.monotonic() - began < 30
    own_node.resume()
    until_used(door, (*FOUR, 5, 6))


def test_a_slow_node_is_waited_for(doors: Any, proxied: tuple[Node, Proxy]) -> None:
    node, proxy = proxied
    doors(node.endpoint).store(FOUR)
    door = doors(proxy.endpoint)
    until_used(door, (9,))
    proxy.delay = 0.1
    assert door.load(FOUR) == [True] * 4
    door.store((7, 8))
    proxy.delay = 0.0
    until_used(door, (7, 8))


def test_wrong_bytes_are_never_taken_for_right_ones(doors: Any, proxied: tuple[Node, Proxy]) -> None:
    node, proxy = proxied
    doors(node.endpoint).store(FOUR)
    door = doors(proxy.endpoint)
    until_used(door, (9,))
    proxy.flips = True
    assert not all(door.load(FOUR))
    flipped = proxy.flipped
    assert flipped > 0
    door.store((5, 6, 7, 8))
    assert proxy.flipped > flipped
    proxy.flips = False
    doors(node.endpoint).load((5, 6, 7, 8))  # compares the results
    until_used(door)


def test_a_full_node_keeps_what_it_can_and_the_engine_goes_on(doors: Any) -> None:
    node = Node(capacity="4MiB")
    try:
        one, other = doors(node.endpoint), doors(node.endpoint)
        items = list(range(100, 100 + one.many))
        for begin in range(0, len(items), 50):
            one.store(items[begin : begin + 50])
        items.reverse()  # engines store missing items, here in reverse order
        came = [each for begin in range(0, len(items), 50) for each in other.load(items[begin : begin + 50])]
        assert 0 < sum(came) < len(items)
    finally:
        node.close()


def test_eight_threads_move_items_at_once(doors: Any, node: Node) -> None:
    """On one door, or on eight where the engine has one thread per door."""
    first = doors(node.endpoint)
    many = [first] * 8 if first.is_shared else [first, *(doors(node.endpoint) for _ in range(7))]
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            own = [1000 * number + i for i in range(3)]
            for i in range(6):
                many[number].store(own)
                check(all(many[number].load(own)) or i == 0, "lost")
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(180)
    assert not problems, problems
    assert not any(each.is_alive() for each in threads)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_stays_flat_over_many_calls(doors: Any, node: Node) -> None:
    """With KV_DOOR_CALLS=100000 more calls than by default."""
    calls = int(os.environ.get("KV_DOOR_CALLS", "20000"))
    door = doors(node.endpoint)
    items = (1, 2, 3, 4)
    until_used(door, items)
    door.count_calls()
    while door.call_count < max(2000, calls // 10):  # objects made once and kept
        door.one_round(items)
    gc.collect()
    objects = len(gc.get_objects())  # a list of some MiB
    before, first, began = resident_bytes(), door.call_count, time.monotonic()
    while door.call_count < first + calls:
        door.one_round(items)
    gc.collect()
    grown, took = resident_bytes() - before, time.monotonic() - began
    more = len(gc.get_objects()) - objects
    print(f"{door.call_count - first} calls in {took:.0f} s: {grown / 1024:.0f} KiB and {more} objects more")
    # The heap has room for small objects for a while: those are counted.
    assert grown < 1 << 20
    assert more < 500


def shared_files() -> set[str]:
    """Files in /dev/shm of this process: open, mapped, or with its number in the name. Skips unnamed ones."""
    found = {each for each in os.listdir("/dev/shm") if str(os.getpid()) in re.split(r"\W|_", each)}
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/dev/shm/" in line:
            found.add(line.split("/dev/shm/")[1])
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if (target := os.readlink(each)).startswith("/dev/shm/"):
                found.add(target.removeprefix("/dev/shm/"))
    return {each for each in found if not each.endswith(" (deleted)")}


def test_no_file_is_left_in_shared_memory(doors: Any, node: Node) -> None:
    before = shared_files()
    door = doors(node.endpoint)
    until_used(door)
    during = shared_files() - before
    # vLLM's pool in host memory is vLLM's own file.
    assert all(each.startswith("vllm_offload") for each in during) and (not during or isinstance(door, Tier)), during
    door.close()
    gc.collect()
    assert not (shared_files() - before - during)
    assert not [each for each in during if os.path.exists(f"/dev/shm/{each}")]
