"""An L2 adapter of LMCache's: batches of objects to and from the store, one call each."""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from .. import _kvstore
from ..client import Client
from ..doors.door import tell_untried
from ..doors.gates import Gate
from ..doors.results import STORED, landed, stored
from ..errors import Error
from ..futures import Future
from . import compat
from .compat import Bitmap, KeyEntry, KeyListPage, L2AdapterInterface, L2StoreResult, key_text
from .connector import Options, door_of, logger, namespace_of

#: Limit on unfetched results of a kind, and on leases not yet unlocked: LMCache handles all but those of given up requests.
_UNFETCHED_MAX = 4096
#: How many keys the adapter keeps with sizes, to list them and to count bytes.
_KNOWN_MAX = 1 << 18


@dataclass
class _Task:
    keys: list[Any]
    #: Bytes of each object; empty for a lookup.
    sizes: list[int] = field(default_factory=list)
    future: Future[Any] | None = None


class _Kind:
    """Stores, lookups or loads: tasks under way, and the descriptor that signals LMCache when one has ended.

    1. The descriptor is readable while LMCache has yet to see an ended task. LMCache reads it empty, and then asks for results. One signal
       can stand for several ends, so the others are signalled again at the next request.
    """

    def __init__(self, gate: Gate, client: Client) -> None:
        self.gate = gate
        self.queue = _kvstore.Queue(client._native, False)
        self._lock = threading.Lock()
        self._tasks: OrderedDict[int, _Task] = OrderedDict()
        self._noted: list[int] = []  # tasks whose end has come off the queue since anybody looked

    def tell(self) -> None:
        with suppress(OSError):  # a child of fork() has no descriptor
            os.eventfd_write(self.queue.fileno(), 1)

    def _drain(self) -> list[int]:
        """Takes all ends off the queue, which clears the descriptor. Returns the tasks that have ended since the last look."""
        self.queue.reap()
        return self._take_noted()

    def _take_noted(self) -> list[int]:
        noted = []
        with suppress(IndexError):
            while True:
                noted.append(self._noted.pop())
        return noted

    def add(self, number: int, task: _Task) -> None:
        with self._lock:
            self._tasks[number] = task
            while len(self._tasks) > _UNFETCHED_MAX:
                self._tasks.popitem(last=False)
        # A queue with an unread end does not signal again, for example after a task whose result is never fetched.
        ended = self._drain()
        is_told = task.future is not None and task.future._tell(partial(self._noted.append, number))
        if ended or not is_told:
            self.tell()

    def take(self, number: int) -> _Task | None:
        """The task, if it has ended. Once."""
        ended = self._drain()
        with self._lock:
            task = self._tasks.get(number)
            is_over = task is not None and (task.future is None or task.future.done())
            ended += self._take_noted()  # by done()
            if any(other != number and other in self._tasks for other in ended):
                self.tell()
            return self._tasks.pop(number) if is_over else None

    def take_all(self) -> list[tuple[int, _Task]]:
        self._drain()
        with self._lock:
            ended = [each for each in self._tasks.items() if each[1].future is None or each[1].future.done()]
            for number, _ in ended:
                del self._tasks[number]
            if any(other in self._tasks for other in self._take_noted()):
                self.tell()  # one that ended behind the look at it
        return ended


class Adapter(L2AdapterInterface):  # type: ignore[misc]
    """The adapter that LMCache's controllers call, from several threads.

    1. After construction, calls do not raise into LMCache: a failed lookup is not found, a failed transfer has failed. Every task ends, at
       its deadline at the latest, with a bitmap as long as its keys.
    2. A batch is one call to the store, whatever its keys: each object stands alone. Hints of layouts are not used.
    3. Objects that a lookup has found in memory stay there until they are unlocked, or the store's lease ends.
    4. There is no Python thread: the client's thread signals ends, and LMCache's threads read them.
    """

    def __init__(self, params: Mapping[str, Any], l1_memory_desc: Any = None) -> None:
        """``l1_memory_desc`` is not used: nodes take no memory whose size its owner can change (docs/engines/lmcache.md)."""
        options = Options.of(params)
        super().__init__(int(options.max_capacity_gb * (1 << 30)))
        tell_untried(logger, "LMCache", compat.VERSION, compat.TRIED_VERSIONS)
        self._options = options
        self._namespace = namespace_of(options, "lmcache")
        self._door = door_of(options, "lmcache")
        self._space = self._door.open(self._namespace)
        self._stores, self._lookups, self._loads = (
            _Kind(gate, self._door.client) for gate in (self._door.saves, self._door.lookups, self._door.loads)
        )
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        #: Keys stored as far as this adapter can tell: a growing number, and bytes.
        self._known: OrderedDict[Any, tuple[int, int]] = OrderedDict()
        self._sequence = itertools.count(1)
        #: The keys found under each lookup's lease. A lease is given back with its last key.
        self._leases: OrderedDict[int, set[Any]] = OrderedDict()
        self._leases_of: dict[Any, list[int]] = {}

    # -- LMCache's three descriptors

    def get_store_event_fd(self) -> int:
        return self._stores.queue.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._lookups.queue.fileno()

    def get_load_event_fd(self) -> int:
        return self._loads.queue.fileno()

    def _submit(self, kind: _Kind, task: _Task, begin: Callable[[list[bytes]], Future[Any]]) -> int:
        number = next(self._numbers)
        if task.keys and not self._door.is_closed and kind.gate.allows():
            task.future = kind.gate.begin(lambda: begin(_names(task.keys)))
        kind.add(number, task)
        return number

    def _submit_objects(
        self, kind: _Kind, keys: list[Any], objects: list[Any], begin: Callable[..., Future[Any]]
    ) -> int:
        task = _Task(list(keys))

        def send(names: list[bytes]) -> Future[Any]:
            views = [each.byte_array for each in objects]
            task.sizes = [len(each) for each in views]
            return begin(kind.queue, names, views, deadline=self._options.deadline)

        return self._submit(kind, task, send)

    @staticmethod
    def _result(kind: _Kind, task: _Task) -> Any:
        """The task's result, or None."""
        return None if task.future is None else kind.gate.result(task.future)

    # -- stores

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        return self._submit_objects(self._stores, keys, objects, self._space._put)

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        return {number: self._stored(task) for number, task in self._stores.take_all()}

    def _stored(self, task: _Task) -> L2StoreResult:
        put = self._result(self._stores, task)
        if put is None:
            return L2StoreResult(not task.keys, 0)
        there = np.flatnonzero(stored(put))
        keys = [task.keys[i] for i in there]
        self._tell(self._notify_keys_stored, keys, self._note(keys, [task.sizes[i] for i in there]))
        new = np.flatnonzero(np.asarray(put.states) == STORED)
        return L2StoreResult(len(keys) == len(task.keys), sum(task.sizes[i] for i in new))

    def _note(self, keys: Sequence[Any], sizes: Sequence[int]) -> list[int]:
        """Records keys that are in the store. Returns the bytes of new ones and 0 for others: LMCache counts each once."""
        new = []
        with self._lock:
            for key, size in zip(keys, sizes, strict=True):
                new.append(0 if key in self._known else size)
                if key not in self._known:
                    self._known[key] = next(self._sequence), size
            while len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
        return new

    def _tell(self, notify: Callable[..., None], keys: list[Any], *more: Any) -> None:
        """Calls LMCache's listeners."""
        if keys:
            with self._door.guarded("a listener of LMCache's"):
                notify(keys, *more)

    # -- lookups

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: Any) -> int:
        return self._submit(
            self._lookups,
            _Task(list(keys)),
            lambda names: self._space._match(
                self._lookups.queue, names, deadline=self._options.deadline, lease=True, prefetch=True
            ),
        )

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        task = self._lookups.take(task_id)
        if task is None:
            return None
        match = self._result(self._lookups, task)
        held = [] if match is None else np.flatnonzero(np.asarray(match.held)).tolist()
        if match is not None and match.lease:
            self._keep(match.lease, [task.keys[i] for i in held])
        return _bitmap(len(task.keys), held)

    def _keep(self, lease: int, keys: list[Any]) -> None:
        ended = []
        with self._lock:
            self._leases[lease] = set(keys)
            for key in self._leases[lease]:
                self._leases_of.setdefault(key, []).append(lease)
            while len(self._leases) > _UNFETCHED_MAX:
                ended.append(self._forget_lease(next(iter(self._leases))))
        self._release(ended)

    def _forget_lease(self, lease: int) -> int:
        for key in self._leases.pop(lease):
            self._forget_key(key, lease)
        return lease

    def _forget_key(self, key: Any, lease: int) -> None:
        leases = self._leases_of[key]
        leases.remove(lease)
        if not leases:
            del self._leases_of[key]

    def _release(self, leases: Iterable[int]) -> None:
        for lease in leases:
            try:
                self._space.release(lease)
            except Error as error:
                logger.debug("kvstore: lease %d: %s", lease, error)

    def submit_unlock(self, keys: list[Any]) -> None:
        ended = []
        with self._lock:
            for key in keys:
                leases = self._leases_of.get(key)
                if not leases:
                    continue
                lease = leases[0]
                self._forget_key(key, lease)
                self._leases[lease].discard(key)
                if not self._leases[lease]:
                    del self._leases[lease]
                    ended.append(lease)
        self._release(ended)

    # -- loads

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        return self._submit_objects(self._loads, keys, objects, self._space._get)

    def query_load_result(self, task_id: int) -> Any:
        task = self._loads.take(task_id)
        if task is None:
            return None
        got = self._result(self._loads, task)
        if got is None:
            return _bitmap(len(task.keys), [])
        here = np.flatnonzero(landed(got, task.sizes)).tolist()
        self._tell(self._notify_keys_accessed, [task.keys[i] for i in here])
        return _bitmap(len(task.keys), here)

    # -- the optional calls

    def delete(self, keys: list[Any]) -> None:
        if not keys or self._door.is_closed:
            return
        with self._door.guarded(f"{len(keys)} objects are not deleted"):
            self._space.drop(_names(keys), deadline=self._options.deadline)
            with self._lock:
                known = [(key, self._known.pop(key)[1]) for key in keys if key in self._known]
            self._tell(self._notify_keys_deleted, [key for key, _ in known], [size for _, size in known])

    def list_l2_keys(self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None) -> Any:
        """The keys stored by this adapter that the store still has. It names objects by hashes, so others' objects are not listed."""
        if page_size <= 0:
            raise ValueError(f"page_size must be positive (got {page_size})")
        try:
            after = 0 if cursor is None else int(cursor)
        except ValueError:
            raise ValueError(f"cursor is malformed: {cursor!r}") from None
        entries: list[Any] = []
        with self._lock:
            known = [
                (sequence, key, size)
                for key, (sequence, size) in self._known.items()
                if sequence > after and (model_name is None or key.model_name == model_name)
            ]
        page, is_last = known[:page_size], len(known) <= page_size
        if page and not self._door.is_closed:
            with self._door.guarded("keys are not listed"):
                match = self._space.match(_names([key for _, key, _ in page]), deadline=self._options.deadline)
                held = np.asarray(match.held)
                entries = [
                    KeyEntry(key.to_encoded_object_key(), size)
                    for (_, key, size), is_held in zip(page, held, strict=True)
                    if is_held
                ]
        return KeyListPage(tuple(entries), None if is_last else str(page[-1][0]))

    def report_status(self) -> dict[str, Any]:
        """Healthy while it is open: without the store LMCache still has its L1."""
        status: dict[str, Any] = {
            "is_healthy": not self._door.is_closed,
            "type": "kvstore",
            "namespace": self._namespace.text,
            "failures": {
                "stores": self._door.saves.failures,
                "lookups": self._door.lookups.failures,
                "loads": self._door.loads.failures,
            },
            "leases": len(self._leases),
            "known_keys": len(self._known),
        }
        if not self._door.is_closed:
            try:
                status["nodes"] = [
                    {name: node[name] for name in ("endpoint", "transport", "connected", "last_error") if name in node}
                    for node in self._door.client.nodes()
                ]
            except Error as error:
                status["nodes"] = str(error)
        return status

    def close(self) -> None:
        """Tasks under way end with the part done so far."""
        self._door.close()


def _names(keys: Iterable[Any]) -> list[bytes]:
    return [_kvstore.sha256(key_text(key).encode()) for key in keys]


def _bitmap(count: int, positions: Iterable[int]) -> Any:
    bitmap = Bitmap(count)
    for i in positions:
        bitmap.set(i)
    return bitmap
