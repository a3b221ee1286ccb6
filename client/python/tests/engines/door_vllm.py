"""vLLM's doors: the connector, the tier and the encoder's."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from door import Door, bytes_of, check, numbers


class Connector(Door):
    """KVStoreConnector, with vLLM's scheduler and arithmetic for a model. An item is a prompt of eight blocks."""

    BLOCKS = 8
    many = 200

    def __init__(self, endpoint: str, seconds: float, model: Path, salt: str) -> None:
        super().__init__()
        from scheduled import prompt_of
        from synthetic import BLOCK, Engine

        options = self.options(seconds, salt)
        self.engine = Engine(model, endpoint, options=options, page_count=400)
        self.plain = Engine(model, None)
        self.prompt = lambda item: prompt_of(self.BLOCKS * BLOCK + 1, item)
        self.tokens = self.BLOCKS * BLOCK
        self.called = [self.engine.scheduler.connector, self.engine.worker]
        self.client = self.engine.side._door.client
        self.answers: dict[int, list[int]] = {}
        if self.client.ping(deadline=0.2) != [None]:
            self.engine.worker_side._door.client.ping(deadline=5)

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
            quiet = 0 if self.engine.side.saves.has_pending or self.engine.worker_side._puts else quiet + 1
            time.sleep(0.001)

    def load(self, items: Sequence[int]) -> list[bool]:
        return [self._run(item) == self.tokens for item in items]

    def one_round(self, items: Sequence[int]) -> None:
        check(all(self.load(items)), "lost")
        new = next(numbers) % 8 + 50
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

        options = self.options(seconds, salt)
        self.engine = Engine(
            model, endpoint, kv_transfer_config=transfer_config(endpoint, 16 << 20, options), page_count=50
        )
        self.tier = tier_of(self.engine)
        self.pool = self.tier._chunks._pool
        self.job = job
        self.client = self.tier._door.client
        self.called = [self.tier]

    @staticmethod
    def _keys(items: Sequence[int]) -> list[bytes]:
        return [item.to_bytes(32, "big") + bytes(4) for item in items]

    def _fill(self, items: Sequence[int]) -> None:
        for row, item in enumerate(items):
            self.pool[row] = bytes_of(item, self.pool.shape[1]).numpy()

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
        number = next(numbers)
        self.tier.submit_store(self.job(number, self._keys(items), range(len(items)), False))
        self._end(number)

    def load(self, items: Sequence[int]) -> list[bool]:
        from vllm.v1.kv_offload.base import LookupResult, ReqContext

        name = f"r{next(numbers)}"
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
            number = next(numbers)
            self.tier.submit_load(self.job(number, [keys[i] for i in there], there, True, name))
            result = self._end(number)
            good = {keys[i] for i in there} if result.success else set(result.successful_keys or ())
            for i in there:
                came[i] = keys[i] in good
                expected = bytes_of(items[i], self.pool.shape[1]).numpy()
                check(not came[i] or bool((self.pool[i] == expected).all()), "wrong bytes")
        self.tier.on_request_finished(context)
        return came

    def one_round(self, items: Sequence[int]) -> None:
        check(all(self.load(items)), "lost")
        number = next(numbers)
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

        options = self.options(seconds, salt)
        # A node refuses blocks larger than its whole capacity.
        self.engine = Engine(model, endpoint, output_bytes_max=1 << 20, **options)
        self.request_of, self.output_of = request_of, functools.cache(output_of)
        self.client = self.engine.scheduler._door.client
        self.called = [self.engine.scheduler, self.engine.worker]
        self.engine.worker._door.client.ping(deadline=0.2)

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
