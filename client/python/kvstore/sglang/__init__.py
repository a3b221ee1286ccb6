"""SGLang's HiCache in the store: blocks computed by one engine are loaded by the others (docs/engines/sglang.md).

python -m sglang.launch_server --model-path MODEL --enable-hierarchical-cache --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "kvstore", "module_path": "kvstore.sglang",
    "class_name": "KVStoreHiCache", "interface_v1": 1, "endpoints": "unix:///run/kvstore/kvstore.sock"}'

In reading order: store.py (lookups, loads, saves of a pool's pages), rows.py (lent memory), pools.py (host pools for the kernels), model.py
(options, the namespace), identity.py (the loaded model), figures.py (metrics), compat.py (differences between SGLang's releases).
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from ..doors.door import Door, tell_untried
from ..doors.results import leading
from ..errors import BadRequest, Mismatch, Unsupported
from . import compat, figures
from .compat import HiCacheStorage, PoolHitPolicy, PoolName, PoolTransferResult, StorageMetrics
from .identity import Watch, callers, facts, facts_of_ranks
from .model import Options, fields_of
from .store import Move, Pool, together

__all__ = ["KVStoreHiCache"]

logger = logging.getLogger("sglang.kvstore")

#: Batches whose size and speed wait to be reported.
_SAMPLES_MAX = 1024


class KVStoreHiCache(HiCacheStorage):  # type: ignore[misc]
    """The storage backend that SGLang calls, from several threads at once.

    1. After construction, calls neither raise into the engine nor return None where SGLang counts: a failed lookup is a miss, a failed save
       is False. Unsupported settings are refused at the start, by name.
    2. Every call ends at its timeout at the latest. After three failures in a row the store is skipped for a while.
    3. The store may be away, now or for ever.
    4. ``clear`` leaves the store alone: this engine goes on under other names, and no longer finds its earlier blocks.
    """

    def __init__(self, storage_config: Any, kwargs: dict[str, Any] | None = None) -> None:
        tell_untried(logger, "SGLang", compat.VERSION, compat.TRIED_VERSIONS)
        if why := compat.why_unsupported(storage_config):
            raise Unsupported(f"{compat.engine_name()}: {why}")
        self._options = Options.of(storage_config.extra_config or {})
        self._config = storage_config
        found = callers()
        if compat.is_engine() and (found.scheduler is None or found.controller is None):
            raise Unsupported(f"{compat.engine_name()}: its scheduler, which knows what is loaded, is not found")
        self._facts = facts_of_ranks(
            lambda: facts(storage_config.model_name, found, self._options.weights_epoch), found
        )
        self._watch = Watch(found, storage_config.pp_size)
        options = self._options
        self._door = Door(options, f"sglang-{storage_config.tp_rank}", logger, numa_nodes=options.numa_nodes)
        self.counters = self._door.counters
        self._lock = threading.Lock()
        self._pools: dict[str, Pool | None] = {}
        self._cleared = b""
        self._clear_count = 0
        self._tells = bool(storage_config.enable_storage_metrics)
        self._labels = self._facts.model, str(storage_config.tp_rank), str(storage_config.pp_rank)
        self._samples: dict[str, deque[tuple[int, float]]] = {
            name: deque(maxlen=_SAMPLES_MAX) for name in ("loads", "saves")
        }

    # -- pools

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._register("kv", mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._register(compat.text(host_pool_name), host_pool)

    def _register(self, name: str, pool: Any) -> None:
        """Called twice for the pool of full attention. None: its pages lie only in other pools."""
        if type(pool).__name__ == "LogicalHostPool":
            self._pools[name] = None
            return
        known = self._pools.get(name)
        if known is not None and known.is_of(pool):
            return
        try:
            fields = fields_of(self._facts, self._options, self._config)
            made = Pool(self._door, self._options, self._config, name, pool, fields)
        except (BadRequest, Unsupported, Mismatch):
            raise  # at the engine's start
        except Exception:
            logger.exception("kvstore: pool %s is not served", name)
            return
        self._pools[name] = made
        logger.info("kvstore: pool %s: pages of %d bytes, namespace %s", name, made.page_bytes, made.namespace)
        if made.view is None:
            logger.warning(
                "kvstore: pool %s: pages of %s, layout %s, are stored as they are: only engines of this layout and as many "
                "ranks share them",
                name,
                type(pool).__name__,
                getattr(pool, "layout", ""),
            )

    def _pool(self, name: str) -> Pool | None:
        return None if self._door.is_closed else self._pools.get(name)

    def _is_logical(self, name: str) -> bool:
        return name in self._pools and self._pools[name] is None

    # -- calls

    def _epoch(self) -> bytes | None:
        """Suffix of names after a clear or a change of weights; None: the weights are unknown."""
        if not self._watch.is_known:
            return None
        epochs = self._cleared + self._watch.epoch
        return hashlib.sha256(epochs).digest()[:16] if self._watch.epoch else epochs

    def _move(self, kind: str, asked: Sequence[tuple[str, Sequence[str], Any]]) -> list[list[bool]]:
        """Loads or saves keys of several pools at once, in one pool order, so that two calls never wait for each other's memory."""
        is_load = kind == "loads"
        began = time.monotonic()
        until = began + (self._options.load_timeout if is_load else self._options.save_timeout)
        epoch = self._epoch()
        results: list[list[bool]] = [[False] * len(keys) for _, keys, _ in asked]
        if epoch is None:
            return results
        moves: list[Move] = []
        order = []
        nbytes = 0
        for i in sorted(range(len(asked)), key=lambda i: asked[i][0]):
            name, keys, where = asked[i]
            if self._is_logical(name):
                results[i] = [True] * len(keys)
                continue
            pool = self._pool(name)
            if pool is None or not keys or not pool.has_pages(where, len(keys)):
                continue
            order.append((i, pool))
            moves.append(pool.move(kind, list(keys), where, epoch, until))
        for (i, pool), result in zip(order, together(moves), strict=True):
            results[i] = result
            nbytes += sum(result) * pool.page_bytes
        if self._tells and nbytes > 0:
            pages = sum(sum(each) for each in results)
            self._samples[kind].append((pages, nbytes / 1e9 / max(time.monotonic() - began, 1e-9)))
        return results

    # -- lookups

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) > 0

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        with self._door.guarded("batch_exists"):
            (held,) = self._look([("kv", keys)])
            return leading(held)
        return 0

    def _look(self, asked: Sequence[tuple[str, Sequence[str]]]) -> list[list[bool]]:
        until = time.monotonic() + self._options.lookup_timeout
        self._door.count("lookups", 1)
        results = [[False] * len(keys) for _, keys in asked]
        epoch = self._epoch()
        if epoch is None:
            return results
        moves, order = [], []
        for i, (name, keys) in enumerate(asked):
            pool = self._pool(name)
            if pool is not None and keys:
                order.append(i)
                moves.append(pool.look(list(keys), epoch, until))
        for i, held in zip(order, together(moves), strict=True):
            results[i] = held
        return results

    def batch_exists_v2(self, keys: list[str], pool_transfers: list[Any] | None = None, extra_info: Any = None) -> Any:
        with self._door.guarded("batch_exists_v2"):
            return self._exists_v2(keys, pool_transfers or [])
        return PoolTransferResult(0, {}, [])

    def _exists_v2(self, keys: list[str], transfers: list[Any]) -> Any:
        """A prefix can be restored where each pool has its needed part: all pages, or only the last ones."""
        held = self._look([("kv", keys), *((compat.text(each.name), keys) for each in transfers)])
        kv_pages = len(keys) if self._is_logical("kv") else leading(held[0])
        hits: dict[Any, int] = {PoolName.KV: kv_pages} if kv_pages else {}
        restorable = list(range(1, kv_pages + 1))
        is_decided = not self._is_logical("kv")
        for transfer, has in zip(transfers, held[1:], strict=True):
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                boundary = min(leading(has), kv_pages)
                ends = set(range(1, boundary + 1))
            elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                count = max(1, len(transfer.keys or ()))
                ends = {end for end in range(1, kv_pages + 1) if all(has[max(0, end - count) : end])}
                boundary = max(ends, default=0)
            else:
                continue  # page groups, which decide on their own
            is_decided = True
            if boundary:
                hits[transfer.name] = boundary
            restorable = [end for end in restorable if end in ends]
        if not is_decided:
            restorable = []
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    # -- loads and saves, without and with side pools

    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        return self._batch_v1("loads", keys, host_indices)

    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        return self._batch_v1("saves", keys, host_indices)

    def _batch_v1(self, kind: str, keys: Sequence[str], where: Any) -> list[bool]:
        with self._door.guarded(kind):
            return self._move(kind, [("kv", keys, where)])[0]
        return [False] * len(keys)

    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        return self._batch_v2("loads", transfers)

    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        return self._batch_v2("saves", transfers)

    def _batch_v2(self, kind: str, transfers: list[Any]) -> dict[Any, list[bool]]:
        with self._door.guarded(kind):
            asked = [(compat.text(each.name), list(each.keys or ()), each.host_indices) for each in transfers]
            moved = self._move(kind, asked)
            return {each.name: result for each, result in zip(transfers, moved, strict=True)}
        return {each.name: [False] * len(each.keys or ()) for each in transfers}

    # -- the copying interface

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        return None if target_location is None else self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        with self._door.guarded("batch_get"):
            targets = list(target_locations or [])
            if len(targets) == len(keys):
                (landed,) = self._move("loads", [("kv", keys, targets)])
                return [target if is_here else None for target, is_here in zip(targets, landed, strict=True)]
        return [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return value is not None and self.batch_set([key], [value])

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        with self._door.guarded("batch_set"):
            pages = list(values or [])
            return len(pages) == len(keys) and all(self._move("saves", [("kv", keys, pages)])[0])
        return False

    # -- the rest

    def clear(self) -> None:
        """From now on this engine, with all its ranks on this host, neither finds nor extends earlier blocks. Other engines keep them."""
        with self._lock:
            self._clear_count += 1
            count = self._clear_count
            self._cleared = hashlib.sha256(f"{compat.engine_seed()} {count}".encode()).digest()[:16]
        logger.info("kvstore: cleared %d times: nothing of what was stored before is found by this engine", count)

    def get_stats(self) -> Any:
        stats = StorageMetrics()
        with self._door.guarded("get_stats"):
            if self._tells:
                figures.tell(self._door, self._labels)
            for name, pages, bandwidth in (
                ("loads", stats.prefetch_pgs, stats.prefetch_bandwidth),
                ("saves", stats.backup_pgs, stats.backup_bandwidth),
            ):
                samples = self._samples[name]
                while samples:
                    count, speed = samples.popleft()
                    pages.append(count)
                    bandwidth.append(speed)
        return stats

    def close(self) -> None:
        """Calls under way end as misses."""
        self._door.close()
