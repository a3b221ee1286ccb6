"""SGLang's encoder outputs in the store: SGLang's own embedding cache, its factory and its pools, and a real node. Its encoder server needs
a GPU, so outputs are made up, and torch makes the copies from the device.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang")
pytest.importorskip("sglang.srt.mem_cache.embedding_store")

import itertools

import numpy as np
import torch
from conftest import Node
from sglang.srt.managers.schedule_batch import Modality
from sglang.srt.mem_cache import embedding_cache_controller as controllers
from sglang.srt.mem_cache.embedding_store import EmbeddingStoreFactory
from sglang_pools import sglang_context  # noqa: F401  # a fixture that each test has

import kvstore
from kvstore.doors.outputs import encoded
from kvstore.sglang import compat
from kvstore.sglang.encoder import OPTIONS, KVStoreEmbeddings
from kvstore.sglang.encoder_server import register

DIM = 64


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[KVStoreEmbeddings] = []

    def make(endpoint: str, **options: Any) -> KVStoreEmbeddings:
        given = {"endpoints": endpoint, "weights_epoch": 1, "lookup_timeout": 5.0, "load_timeout": 5.0} | options
        monkeypatch.setenv(OPTIONS, json.dumps(given))
        register()
        store = EmbeddingStoreFactory.create_backend("mooncake")  # the only name that SGLang's flag takes
        assert isinstance(store, KVStoreEmbeddings)
        made.append(store)
        for _ in range(50):
            if store._door.client.ping(deadline=0.1) != [None]:
                break
        return store

    yield make
    for each in made:
        each.close()


class Server:
    """SGLang's cache as its encoder server uses it. ``encoded`` has the missed outputs."""

    def __init__(self, store: KVStoreEmbeddings, monkeypatch: pytest.MonkeyPatch, dtype: Any = torch.bfloat16) -> None:
        parallel = SimpleNamespace(tp_size=1, tp_rank=0, tp_group=SimpleNamespace(cpu_group=None))
        monkeypatch.setattr(controllers, "get_parallel", lambda: parallel)
        monkeypatch.setattr(
            controllers.EmbeddingCacheController,
            "_create_pools",
            lambda cache, pin_memory, made=controllers.EmbeddingCacheController._create_pools: made(cache, False),
        )
        self.cache = controllers.EmbeddingCacheController(
            store, max_pool_size_gb=8 / 1024, hidden_dims={Modality.IMAGE: DIM}, dtype=dtype
        )
        self.store = store
        self.dtype = dtype
        self.encoded: list[str] = []

    def run(self, *hashes: str) -> None:
        """As MMEncoder's ``_compute_global_cache_embedding``."""
        held = asyncio.run(self.cache.batch_is_exist(list(hashes)))
        hits = [each for each, is_held in zip(hashes, held, strict=True) if is_held]
        request = f"r{next(_numbers)}"
        self.cache.prefetch(request, hits, [rows_of(each) for each in hits], Modality.IMAGE)
        until = time.monotonic() + 20
        while not self.cache.check_prefetch_progress(request):
            assert time.monotonic() < until
            time.sleep(0.001)
        missing = [each for each in hashes if not self.cache.has_local_embedding(each)]
        for each in missing:
            self._keep(each)
        self.encoded += missing
        self.cache.insert_batch(missing, Modality.IMAGE)
        for each, views in zip(hashes, self.cache.get_pool_views(list(hashes)), strict=True):
            assert torch.equal(torch.cat(views), output_of(each, self.dtype))
        self.cache.release_pool_views(list(hashes))

    def _keep(self, mm_hash: str) -> None:
        """As ``store_to_pool_async`` and ``wait_store_to_pool``, which take CUDA tensors alone."""
        cache, pool, output = self.cache, self.cache.vision_pool, output_of(mm_hash, self.dtype)
        with cache.lock:
            runs = cache._allocate_with_eviction(pool, len(output))
            assert runs is not None
            entry = controllers.EmbeddingCacheEntry(
                mm_hash, Modality.IMAGE, len(output), DIM, runs, controllers.EntryState.FILLING
            )
            cache.entries[mm_hash] = entry
            cache._copy_embedding_page_runs(output, pool.tensor, entry, pool, src_is_pool=False)
            cache._mark_ready(entry)

    def forget(self) -> None:
        self.settle()
        with self.cache.lock:
            for each in list(self.cache.entries):
                self.cache._evict_entry(each)

    def settle(self) -> None:
        """Waits until all outputs are stored or given up."""
        self.cache.insert_queue.join()

    def close(self) -> None:
        self.cache.stop_event.set()
        self.cache.io_thread.join()


@pytest.fixture
def servers(stores: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[Server] = []

    def make(endpoint: str, dtype: Any = torch.bfloat16, **options: Any) -> Server:
        made.append(Server(stores(endpoint, **options), monkeypatch, dtype))
        return made[-1]

    yield make
    for each in made:
        each.close()


_numbers = iter(range(10**9))


def rows_of(mm_hash: str) -> int:
    return 1 + random.Random(mm_hash).randrange(5000)


def output_of(mm_hash: str, dtype: Any = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(random.Random(mm_hash).randrange(1 << 30))
    return torch.randn(rows_of(mm_hash), DIM, generator=generator).to(dtype)


def test_what_one_server_has_encoded_another_loads(servers: Any, own_node: Node) -> None:
    one, other = servers(own_node.endpoint), servers(own_node.endpoint)
    one.run("1", "2", "3")
    one.settle()
    assert one.encoded == ["1", "2", "3"]
    other.run("2", "4", "1")
    assert other.encoded == ["4"]
    assert other.store.counters["loaded_outputs"] == 2


def test_an_output_in_several_pieces_is_one(servers: Any, own_node: Node) -> None:
    """SGLang's pool gives free pages: here every other one, of 2,048 rows."""
    one, other = servers(own_node.endpoint), servers(own_node.endpoint)
    large = next(str(i) for i in range(100, 10000) if rows_of(str(i)) > 4096)
    for each in (one, other):
        pool = each.cache.vision_pool
        pages = [pool.allocator.allocate(1, pool.page_size) for _ in range(pool.num_pages)]
        for runs in pages[::2]:
            pool.allocator.free(runs)
        each.run(large)
        each.settle()
        assert len(each.cache.entries[large].page_runs) > 1
    assert (one.encoded, other.encoded) == ([large], [])


def test_what_the_server_let_go_comes_back(servers: Any, own_node: Node) -> None:
    one = servers(own_node.endpoint)
    one.run("1", "2")
    one.forget()
    one.run("2", "1")
    assert one.encoded == ["1", "2"]


def test_servers_of_other_element_types_and_salts_do_not_share(servers: Any, own_node: Node) -> None:
    servers(own_node.endpoint).run("1")
    for more in ({"dtype": torch.float16}, {"dtype": torch.float32}, {"salt": "s"}, {"weights_epoch": 3}):
        other = servers(own_node.endpoint, **more)
        other.run("1")
        assert other.encoded == ["1"], more


def test_without_a_node_everything_is_encoded(servers: Any, own_node: Node) -> None:
    own_node.kill()
    one = servers(own_node.endpoint)
    for i in range(6):
        one.run(str(i))
    assert len(one.encoded) == 6


def test_a_node_killed_between_lookup_and_load_costs_an_encoding(servers: Any, own_node: Node) -> None:
    one, other = servers(own_node.endpoint), servers(own_node.endpoint)
    one.run("1")
    one.settle()
    load = other.store.batch_get_into_multi_buffers

    def after_its_death(*arguments: Any) -> Any:
        own_node.kill()
        return load(*arguments)

    other.store.batch_get_into_multi_buffers = after_its_death
    other.run("1")
    assert other.encoded == ["1"]


def test_a_stopped_node_costs_the_timeout(servers: Any, own_node: Node) -> None:
    one = servers(own_node.endpoint, lookup_timeout=0.1, save_timeout=0.1)
    own_node.pause()
    began = time.monotonic()
    one.run("1")
    one.settle()
    assert time.monotonic() - began < 5
    own_node.resume()


class Pool:
    """A registered pool of SGLang's, with a pattern that must stay."""

    def __init__(self, store: KVStoreEmbeddings, rows: int, dim: int = DIM, dtype: Any = torch.bfloat16) -> None:
        self.tensor = torch.full((rows, dim), 7.0, dtype=dtype)
        store.register_buffer(self.tensor)

    def at(self, first: int, count: int) -> tuple[int, int]:
        row = self.tensor[first]
        return row.data_ptr(), count * row.numel() * row.element_size()

    def is_untouched(self) -> bool:
        return bool((self.tensor == 7.0).all())


def test_pieces_may_be_cut_in_any_way(stores: Any, own_node: Node) -> None:
    store = stores(own_node.endpoint)
    pool = Pool(store, 400)
    for seed in range(120):
        dice = random.Random(seed)
        rows = dice.randrange(1, 100)
        output = torch.randn(rows, DIM).to(torch.bfloat16)

        def pieces(dice: random.Random = dice, rows: int = rows) -> list[tuple[int, int]]:
            """Disjoint places and numbers of rows."""
            cuts = sorted({0, rows, *(dice.randrange(rows + 1) for _ in range(dice.randrange(4)))})
            counts = [b - a for a, b in itertools.pairwise(cuts)]
            at, found = 0, []
            for count in counts:
                at += dice.randrange(20)
                found.append((at, count))
                at += count
            return found

        def call(do: Any, cut: list[tuple[int, int]], name: str = str(seed)) -> bool:
            where = [pool.at(*each) for each in cut]
            (done,) = do([name], [[ptr for ptr, _ in where]], [[size for _, size in where]])
            return bool(done)

        put, got = pieces(), pieces()
        done = 0
        for at, count in put:
            pool.tensor[at : at + count] = output[done : done + count]
            done += count
        assert call(store.batch_put_from_multi_buffers, put), seed
        pool.tensor.fill_(7.0)
        assert call(store.batch_get_into_multi_buffers, got), seed
        assert torch.equal(torch.cat([pool.tensor[at : at + count] for at, count in got]), output), seed
        for at, count in got:
            pool.tensor[at : at + count] = 7.0
        assert pool.is_untouched(), seed


def test_what_is_not_the_output_that_is_expected_is_not_loaded(stores: Any, own_node: Node) -> None:
    store = stores(own_node.endpoint)
    pool = Pool(store, 100)
    stored = {
        "right": encoded(torch.ones(8, DIM, dtype=torch.bfloat16)),
        "shorter": encoded(torch.ones(7, DIM, dtype=torch.bfloat16)),
        "longer": encoded(torch.ones(9, DIM, dtype=torch.bfloat16)),
        "of another type": encoded(torch.ones(8, DIM, dtype=torch.float16)),
        "of another width": encoded(torch.ones(4, 2 * DIM, dtype=torch.bfloat16)),
        "junk": np.ones(len(encoded(torch.ones(8, DIM, dtype=torch.bfloat16))), np.uint8),  # type: ignore[arg-type]
    }
    for name, data in stored.items():
        assert data is not None
        assert store._space.put([store._name(name)], [data], deadline=5).stored == 1
    where = [pool.at(10 * i, 8) for i in range(len(stored))]
    landed = store.batch_get(list(stored), [ptr for ptr, _ in where], [size for _, size in where])
    assert dict(zip(stored, landed, strict=True)) == {name: name == "right" for name in stored}
    assert bool((pool.tensor[:8] == 1.0).all())
    pool.tensor[:8] = 7.0
    assert pool.is_untouched()


def test_memory_that_no_pool_has_is_neither_read_nor_written(stores: Any, own_node: Node) -> None:
    store = stores(own_node.endpoint)
    pool = Pool(store, 10)
    begin, size = pool.at(0, 10)
    row = DIM * 2
    for ptr, count in ((begin - row, row), (begin, size + row), (begin + size, row), (begin, row - 1), (begin, 0)):
        assert store.batch_put(["x"], [ptr], [count]) == [False]
        assert store.batch_get(["x"], [ptr], [count]) == [False]
    assert store.batch_get_into_multi_buffers(["x"], [[]], [[]]) == [False]
    assert "stored_outputs" not in store.counters
    assert pool.is_untouched()


def test_an_output_that_occurs_twice_is_stored_once_and_loaded_twice(stores: Any, own_node: Node) -> None:
    store = stores(own_node.endpoint)
    pool = Pool(store, 40)
    places = [pool.at(0, 8), pool.at(20, 8)]
    ptrs, sizes = [ptr for ptr, _ in places], [size for _, size in places]
    pool.tensor[0:8] = pool.tensor[20:28] = 3.0
    assert store.batch_put(["x", "x"], ptrs, sizes) == [True, True]
    assert store.counters["stored_outputs"] == 1
    pool.tensor.fill_(7.0)
    assert store.batch_get(["x", "x"], ptrs, sizes) == [True, True]
    assert bool((pool.tensor[0:8] == 3.0).all()) and bool((pool.tensor[20:28] == 3.0).all())


def test_outputs_over_the_limit_are_not_stored(stores: Any, own_node: Node) -> None:
    store = stores(own_node.endpoint, output_bytes_max=4096)
    pool = Pool(store, 100)
    for rows, is_stored in ((10, True), (100, False)):
        ptr, size = pool.at(0, rows)
        assert store.batch_put([str(rows)], [ptr], [size]) == [is_stored]
    assert store.counters["refused_outputs"] == 1


def test_an_encoder_that_does_not_say_what_it_has_loaded_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_published() -> None:
        raise ValueError

    monkeypatch.setattr(compat, "get_server_args", not_published)  # another test may have published them
    monkeypatch.setenv(OPTIONS, '{"endpoints": "unix:///nowhere"}')
    with pytest.raises(kvstore.errors.Unsupported, match="weights: the engine does not say what it has loaded"):
        KVStoreEmbeddings()


def test_options_are_checked(stores: Any) -> None:
    with pytest.raises(kvstore.errors.BadRequest, match="salt is 3"):
        stores("unix:///nowhere", salt=3)


def test_the_name_is_taken_over_in_processes_that_the_launcher_starts(tmp_path: Any) -> None:
    """SGLang spawns its encoder's other processes: they begin with the launcher's module."""
    (tmp_path / "child.py").write_text(
        "def name(): \n"
        "    from sglang.srt.mem_cache.embedding_store import EmbeddingStoreFactory as factory\n"
        "    print(factory._registry['mooncake']['class_name'], flush=True)\n"
    )
    code = (
        "import multiprocessing, sglang.launch_server, child\n"
        "def run(arguments):\n"
        "    process = multiprocessing.get_context('spawn').Process(target=child.name)\n"
        "    process.start(); process.join()\n"
        "sglang.launch_server.run_server = run\n"
        "import sglang.srt.server_args as of\n"
        "of.prepare_server_args = list\n"
        "import runpy\n"
        "runpy.run_module('kvstore.sglang.encoder_server', run_name='__main__', alter_sys=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": ":".join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split()[-1:] == ["KVStoreEmbeddings"], done.stderr[-3000:]
