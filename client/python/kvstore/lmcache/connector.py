"""LMCache's native plugin, driven by its own adapter for such plugins, and the options of all its adapters."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _kvstore
from .._kvstore import Future, Op, Queue, SetGetResult, SetMatchResult, SetPutResult
from ..doors.door import Door
from ..doors.options import AccessOptions
from ..doors.results import landed
from ..errors import BadRequest, Cancelled, Error
from ..namespaces import Namespace


def _logger() -> logging.Logger:
    """Made as LMCache makes its own: other handlers do not show its loggers."""
    try:
        from lmcache.logging import init_logger
    except ImportError:  # the connector does without LMCache
        return logging.getLogger("lmcache.kvstore")
    return init_logger("lmcache.kvstore")  # type: ignore[no-any-return]


logger = _logger()


@dataclass(frozen=True)
class Options(AccessOptions):
    """``adapter_params``."""

    place = "adapter_params"
    #: Choose different names for objects that must not be shared.
    model: str = "lmcache"
    #: Version of weights and adapters. Required: LMCache passes only their names, so changes cannot be detected here.
    weights_epoch: int | None = None
    #: Seconds per batch.
    deadline: float = 5.0
    object_bytes_max: int = 256 << 20
    connections: int = 4
    #: Memory lent to nodes on this host instead of L1.
    staging_bytes: int = 64 << 20
    #: For LMCache's own eviction. 0: off, and the store evicts by itself.
    max_capacity_gb: float = 0.0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        made = super().of(given)
        if made.weights_epoch is None:
            raise BadRequest(
                "adapter_params: weights_epoch is missing: LMCache tells a model's name, and neither its weights nor its adapters. "
                "Set a number, and another one whenever they change"
            )
        return made


def namespace_of(options: Options, engine: str, **more: object) -> Namespace:
    """The namespace of the objects; written to LMCache's log."""
    fields: dict[str, object] = {
        "kind": "set",
        "x.engine": engine,
        "model": options.model,
        "tenant": options.tenant or None,
        "weights_epoch": options.weights_epoch,
        "block_bytes_max": options.object_bytes_max,
    }
    made = Namespace(fields | more)
    logger.info("kvstore: objects of up to %d bytes, namespace %s", made.block_bytes, made)
    return made


def door_of(options: Options, identity: str) -> Door:
    return Door(
        options,
        identity,
        logger,
        connections_per_node=options.connections,
        staging_bytes=options.staging_bytes,
    )


@dataclass
class _Batch:
    op: Op
    call: Future[Any]
    key_count: int
    #: Of the memory of a get.
    sizes: npt.NDArray[np.uint64] | None = None


class Connector:
    """LMCache's native plugin: batches of keys in, completions by a descriptor out. ``adapter_params`` as keywords.

    A key becomes a block of a set, named by the key's SHA-256. A batch is one call: one round trip to each node.

    1. Each batch is reported once, by the next drain_completions() after its end.
    2. close() ends all batches: those in flight are reported as failed, and their memory is released at once.
    """

    def __init__(self, **given: Any) -> None:
        options = Options.of(given)
        self._deadline = options.deadline
        self._client = door_of(options, "lmcache").client
        # Does not wait for a node: an engine starts while the store is away, and its lookups miss.
        self._space = self._client.open_set(namespace_of(options, "lmcache"), wait=False)
        self._queue = Queue(self._client._native, True)
        self._batches: dict[int, _Batch] = {}
        self._ended: list[int] = []
        self._numbers = itertools.count(1)

    def event_fd(self) -> int:
        return self._queue.fileno()

    def submit_batch_get(self, keys: Sequence[str], memoryviews: list[Any]) -> int:
        sizes = np.fromiter((memoryview(each).nbytes for each in memoryviews), np.uint64, len(memoryviews))
        return self._submit(Op.GET_SET, keys, sizes, blocks=memoryviews)

    def submit_batch_set(self, keys: Sequence[str], memoryviews: list[Any]) -> int:
        return self._submit(Op.PUT_SET, keys, blocks=memoryviews)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        return self._submit(Op.MATCH_SET, keys)

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        return self._submit(Op.DROP, keys)

    def _submit(self, op: Op, keys: Sequence[str], sizes: npt.NDArray[np.uint64] | None = None, **more: Any) -> int:
        if self._client.is_closed:
            raise BadRequest("the connector is closed")
        self._queue.check()
        if not keys:
            raise BadRequest("keys: none")
        names = [_kvstore.sha256(key.encode()) for key in keys]
        call = self._queue.call(op, self._space._id, names, self._deadline, **more)
        number = next(self._numbers)
        self._batches[number] = _Batch(op, call, len(names), sizes)
        if not call._tell(partial(self._ended.append, number)):  # refused
            self._ended.append(number)
            os.eventfd_write(self.event_fd(), 1)
        return number

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool]]]:
        """(number, success, error text, a flag for each key) of the ended batches."""
        self._queue.check()
        with suppress(BlockingIOError):
            os.eventfd_read(self.event_fd())
        self._queue.reap()
        told = []
        while True:
            try:
                number = self._ended.pop(0)
            except IndexError:  # any thread may ask
                break
            told.append((number, *_report(self._batches.pop(number))))
        return told

    def close(self) -> None:
        """Gives up what is in flight."""
        self._client.close()
        if self._ended:
            with suppress(OSError):  # a child of fork() has no descriptor
                os.eventfd_write(self.event_fd(), 1)


def _report(batch: _Batch) -> tuple[bool, str, list[bool]]:
    flags = np.zeros(batch.key_count, np.bool_)
    try:
        result = batch.call.result()
    except Error as error:
        return False, str(error), flags.tolist()
    if isinstance(result, SetGetResult):
        flags = landed(result, batch.sizes)
    elif isinstance(result, SetPutResult):
        flags = (result.states == 1) | (result.states == 2)
    elif isinstance(result, SetMatchResult):
        flags = result.held != 0
    else:
        return True, "", [True] * batch.key_count
    text = "" if result.why is None else str(result.why)
    if not text and isinstance(result, SetPutResult) and result.conflicts:
        text = "a key is stored with other bytes"
    # A missing block does not fail a lookup or a load. A partly stored batch is a failed store.
    is_good = not isinstance(result.why, Cancelled) and (batch.op is not Op.PUT_SET or bool(flags.all()))
    return is_good, text, flags.tolist()
