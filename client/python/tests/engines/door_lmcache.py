"""LMCache's door."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from door import Door, bytes_of, check


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
        self.client = self.adapter._door.client if door == "plugin" else None
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
            made.raw_data.copy_(bytes_of(item, self.SIZE))
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
            check(not each or torch.equal(target.raw_data, bytes_of(item, self.SIZE)), "wrong bytes")
        return came

    def one_round(self, items: Sequence[int]) -> None:
        check(all(self.load(items)), "lost")
        check(self._store(self._keys(items), [self._object(item) for item in items]), "not stored")

    def close(self) -> None:
        self.adapter.close()
