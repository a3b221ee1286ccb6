"""LMCache's older, in-process interface: chunks one by one or in batches, with or without an event loop.

LMCACHE_CONFIG_FILE: remote_storage_plugins: ["kvstore"]
                     extra_config: {remote_storage_plugin.kvstore.module_path: kvstore.lmcache,
                                    remote_storage_plugin.kvstore.class_name: Remote,
                                    kvstore.endpoints: "unix:///run/kvstore/kvstore.sock", kvstore.weights_epoch: 1}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from .. import _kvstore
from ..doors.identity import short
from ..doors.outputs import decoded, encoded
from ..doors.results import leading
from ..errors import Error
from ..namespaces import Namespace
from .connector import Options, door_of, logger, namespace_of

_PREFIX = "kvstore."
#: How long the engine's start waits for a node: before one is there, chunks that are given to be stored are lost.
_PATIENCE_SECONDS = 1.0


class Remote(RemoteConnector):  # type: ignore[misc]
    """The connector that LMCache's RemoteBackend calls. Calls do not raise: a failed lookup is a miss."""

    def __init__(self, loop: Any, local_cpu_backend: Any, config: Any) -> None:
        metadata = local_cpu_backend.metadata
        super().__init__(config, metadata)
        self._local = local_cpu_backend
        given = config.extra_config or {}
        options = Options.of({k.removeprefix(_PREFIX): v for k, v in given.items() if k.startswith(_PREFIX)})
        self._deadline = options.deadline
        self._object_bytes_max = options.object_bytes_max
        self._door = door_of(options, "lmcache-remote")
        namespace = self._namespace(options)
        try:
            self._space = self._door.open(namespace, patience=min(_PATIENCE_SECONDS, options.deadline))
        except Error as error:
            # LMCache asks for a connector once: without one it would not look for a better node either.
            logger.warning("kvstore: %s; until a node takes the namespace, all lookups are misses", error)
            self._space = self._door.open(namespace)

    def _namespace(self, options: Options) -> Namespace:
        chunk = short(f"{self.meta_shapes} {self.meta_dtypes} {self.meta_fmt}")
        return namespace_of(options, "lmcache-remote", **{"x.chunk": chunk})

    @staticmethod
    def _names(keys: Sequence[Any]) -> list[bytes]:
        return [_kvstore.sha256(key.to_string().encode()) for key in keys]

    # -- lookups

    async def exists(self, key: Any) -> bool:
        return await self.batched_async_contains("", [key]) == 1

    def exists_sync(self, key: Any) -> bool:
        return self.batched_contains([key]) == 1

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: list[Any]) -> int:
        with self._door.guarded("lookup"):
            return leading(self._space.match(self._names(keys), deadline=self._deadline).held) if keys else 0
        return 0

    async def batched_async_contains(self, lookup_id: str, keys: list[Any], pin: bool = False) -> int:
        if not keys:
            return 0
        with self._door.guarded("lookup"):
            match = await self._space.submit_match(self._names(keys), deadline=self._deadline, prefetch=True)
            return leading(match.held)
        return 0

    # -- chunks

    async def get(self, key: Any) -> Any:
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: list[Any]) -> list[Any]:
        """Each chunk, or None. A prompt's last chunk may be shorter."""
        made: list[Any] = []
        for _ in keys:
            one = self._local.allocate(self.meta_shapes, self.meta_dtypes, self.meta_fmt)
            if one is None:
                break
            made.append(one)
        chunks: list[Any] = [None] * len(keys)
        with self._door.guarded("load"):
            if made:
                views = [each.byte_array for each in made]
                got = await self._space.submit_get(self._names(keys[: len(made)]), views, deadline=self._deadline)
                sizes = np.asarray(got.block_bytes)
                for i in np.flatnonzero(np.asarray(got.landed)):
                    chunks[i] = self.reshape_partial_chunk(made[i], int(sizes[i]))
        for one, chunk in zip(made, chunks, strict=False):
            if chunk is None:
                one.ref_count_down()
        return chunks

    async def batched_get_non_blocking(self, lookup_id: str, keys: list[Any]) -> list[Any]:
        chunks = await self.batched_get(keys)
        count = leading(each is not None for each in chunks)
        for each in chunks[count:]:
            if each is not None:
                each.ref_count_down()
        return chunks[:count]

    async def put(self, key: Any, memory_obj: Any) -> None:
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        return True

    async def batched_put(self, keys: list[Any], memory_objs: list[Any]) -> None:
        with self._door.guarded("save"):
            await self._put(keys, [each.byte_array for each in memory_objs])

    async def _put(self, keys: Sequence[Any], objects: Sequence[Any]) -> None:
        put = await self._space.submit_put(self._names(keys), objects, deadline=self._deadline)
        if put.refused:
            logger.warning("kvstore: %d of %d objects were not stored: %s", put.refused, len(keys), put.why)

    def remove_sync(self, key: Any) -> bool:
        with self._door.guarded("remove"):
            return self._space.drop(self._names([key]), deadline=self._deadline).block_count > 0
        return False

    # -- the rest

    async def list(self) -> list[str]:
        """Empty: the store names chunks by hashes of their keys."""
        return []

    def support_ping(self) -> bool:
        return True

    async def ping(self) -> int:
        with self._door.guarded("ping"):
            return 0 if any(each["connected"] for each in self._door.client.nodes()) else 1
        return 1

    async def close(self) -> None:
        self._door.close()


class EncoderRemote(Remote):
    """The same for LMCache's ``ECCacheEngine``: encoders' outputs, each stored with its shape.

    LMCACHE_CONFIG_FILE: ec: {remote_storage_plugins: ["kvstore"], extra_config: {...class_name: EncoderRemote, ...}}
    """

    def _namespace(self, options: Options) -> Namespace:
        return namespace_of(options, "lmcache-encoder")

    async def batched_get(self, keys: list[Any]) -> list[Any]:
        found: list[Any] = [None] * len(keys)
        with self._door.guarded("load"):
            names = self._names(keys)
            match = await self._space.submit_match(names, deadline=self._deadline)
            held = [i for i in range(len(keys)) if match.held[i] and match.block_bytes[i] <= self._object_bytes_max]
            if held:
                data = [np.empty(int(match.block_bytes[i]), np.uint8) for i in held]
                got = await self._space.submit_get([names[i] for i in held], data, deadline=self._deadline)
                for i, is_here, one in zip(held, got.landed, data, strict=True):
                    found[i] = self._made(one) if is_here else None
        return found

    def _made(self, data: npt.NDArray[np.uint8]) -> Any:
        output = decoded(data)
        made = None
        if output is not None:
            made = self._local.allocate(output.shape, output.dtype, MemoryFormat.EC_TD, busy_loop=False)
        if made is not None:
            made.tensor.copy_(output)
        return made

    async def batched_put(self, keys: list[Any], memory_objs: list[Any]) -> None:
        with self._door.guarded("save"):
            outputs = [encoded(each.tensor) for each in memory_objs]
            put = [(key, data) for key, data in zip(keys, outputs, strict=True) if data is not None]
            if len(put) < len(keys):
                logger.warning("kvstore: %d outputs are of a type that is not stored", len(keys) - len(put))
            await self._put([key for key, _ in put], [data for _, data in put])
