"""SGLang's doors: HiCache by its interfaces, and the embedding cache's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from door import Door, bytes_of, check


class HiCache(Door):
    """KVStoreHiCache with SGLang's own host pool, by the interface ``interface``."""

    is_shared = True
    ITEMS = 8

    def __init__(self, endpoint: str, seconds: float, interface: str, salt: str) -> None:
        super().__init__()
        from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolName
        from sglang_pools import PAGE, mha_pool, page_of, tokens_of

        from kvstore.sglang import KVStoreHiCache

        options = self.options(seconds, salt) | {"weights_epoch": 1}
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
        self.client = self.storage._door.client
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
            raw.copy_(bytes_of(item, raw.numel()).reshape(raw.shape))

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
            expected = bytes_of(item, raw.numel()).reshape(raw.shape) if each else torch.full_like(raw, 7)
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

        options = self.options(seconds, salt) | {"weights_epoch": 1}
        # A node refuses blocks larger than its whole capacity.
        given = json.dumps(options | {"endpoints": endpoint, "output_bytes_max": 1 << 20})
        with mock.patch.dict(os.environ, {OPTIONS: given}):
            self.store_ = KVStoreEmbeddings()
        self.pool = torch.zeros((9 * self.ITEMS * self.ROWS, self.DIM), dtype=torch.bfloat16)
        self.store_.register_buffer(self.pool)
        self.client = self.store_._door.client
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
        return bytes_of(item, raw.numel()).reshape(raw.shape)

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
