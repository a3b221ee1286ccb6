"""The chunks of vLLM's pool in host memory: their names in the store, and their places in the pool.

Where chunks equal KVStoreConnector's blocks, they have the same names: a block stored by one of the two is found by the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import Locality, OffloadKey

from ..doors.identity import digest, short
from ..errors import BadRequest, Unsupported
from ..namespaces import Namespace
from . import compat
from .model import Model, Options, StoreOptions, check_engine

#: Keys in one call to the store: limits how long making the call holds up the scheduler's thread.
KEYS_MAX = 1024
#: The same for names that are more than a hash and are hashed first.
_NAMES_MAX = 256
_GROUP_BYTES = 4

#: The engine whose connector is being made, its configuration and cache: vLLM does not pass them to its tiers.
the_engine: ContextVar[tuple[Any, Any] | None] = ContextVar("kvstore_engine", default=None)


@dataclass(frozen=True)
class TierOptions(StoreOptions):
    """Options in ``secondary_tiers`` beside type and module_path."""

    place = "secondary_tiers"
    #: For vLLM's events and requests' filters: LOCAL or REMOTE.
    locality: str = ""
    #: Whether vLLM gets events for stored chunks, if its events are on.
    enable_kv_events: bool = False
    #: Memory lent to nodes on this host instead of the pool.
    staging_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        if self.locality and self.locality not in Locality.__members__:
            raise BadRequest(f"{self.place}: locality is {self.locality!r}, allowed are {list(Locality.__members__)}")


class Chunks:
    """The names of chunks in the store, and their places in the pool's memory.

    1. A chunk is one block, or one block per rank: a row of the pool has the ranks' blocks one after another.
    2. Where ``why_apart`` is empty, blocks are KVStoreConnector's own, under its names.
    3. The namespace exists only after ``name_by``.
    """

    def __init__(self, spec: Any, view: memoryview, options: TierOptions) -> None:
        made_for = the_engine.get()
        if made_for is None:
            raise BadRequest(
                "kv_connector: OffloadingConnector does not tell its tiers which model, weights and adapters a block is of. Set "
                '"kv_connector": "KVStoreOffloadingConnector", "kv_connector_module_path": "kvstore.vllm.tier": it is the same '
                "and does"
            )
        config, cache = made_for
        check_engine(config)
        self.parallel = config.parallel_config
        if getattr(config.cache_config, "calculate_kv_scales", False):
            raise Unsupported("calculate_kv_scales: each engine has scales of its own, so no other can read its blocks")
        self._pool = np.asarray(view).view(np.uint8)
        row_bytes = int(self._pool.shape[1])
        self._model: Model | None = None
        self.why_apart = _why_apart(config, spec)
        if not self.why_apart:
            try:
                as_connector = Options(
                    tenant=options.tenant,
                    model=options.model,
                    weights_epoch=options.weights_epoch,
                    salt=options.salt,
                )
                self._model = Model(config, cache, as_connector)
                self.why_apart = _why_rows_differ(self._model, spec, cache)
            except (Unsupported, BadRequest) as error:
                self.why_apart = str(error)
        self.namespace: Namespace | None = None
        self._options = options
        self._of_rows = _fields_of_rows(config, cache, spec, row_bytes)
        if self.why_apart or self._model is None:
            self._model = None
            self._sizes: list[int] = [row_bytes]
            self._ranks = range(1)
            self._rank_bytes = row_bytes
        else:
            self._sizes = [group.block_bytes for group in self._model.groups]
            self._ranks = range(self._model.part_count)
            self._rank_bytes = int(spec.cpu_page_size_per_worker)
        #: Suffix of names: the weights, if not the namespace's. None: unknown.
        self.epoch: bytes | None = None
        self._rows = self._pool[:, : self._sizes[0]]
        #: Whether a chunk's name is its hash, and its block a row.
        self.is_plain = self._model is not None and len(self._sizes) == len(self._ranks) == 1

    @property
    def parts(self) -> int:
        return len(self._ranks)

    def name_by(self, identity: dict[str, Any]) -> Namespace:
        """``identity``: the workers' model; this tier's options override parts of it."""
        said = identity | self._options.fields(identity["model"])
        self.namespace = Namespace(said | self._of_rows) if self._model is None else self._model.name_by(said)
        return self.namespace

    @property
    def keys_max(self) -> int:
        return KEYS_MAX if self.is_plain else max(1, _NAMES_MAX // self.parts)

    def names(self, keys: Sequence[OffloadKey]) -> npt.NDArray[np.uint8] | list[bytes]:
        """As [key, rank]. A key is a hash and a group, as are a connector's names where there are several groups, or an epoch."""
        assert self.epoch is not None
        model, epoch = self._model, self.epoch
        if model is None:
            return [key + epoch for key in keys]
        if epoch or len(self._sizes) > 1:
            return [model.part_name(key + epoch, rank) for key in keys for rank in self._ranks]
        if self.is_plain and (joined := b"".join(keys)) and len(joined) == (32 + _GROUP_BYTES) * len(keys):
            return np.ascontiguousarray(np.frombuffer(joined, np.uint8).reshape(len(keys), -1)[:, :32])
        return [model.part_name(key[:-_GROUP_BYTES], rank) for key in keys for rank in self._ranks]

    def sizes(self, keys: Sequence[OffloadKey]) -> npt.NDArray[np.int64] | int:
        """Bytes of each block, as [key, rank], or one size for all."""
        if len(self._sizes) == 1:
            return self._sizes[0]
        of_keys = [self._sizes[int.from_bytes(key[-_GROUP_BYTES:], "big")] for key in keys]
        repeated: npt.NDArray[np.int64] = np.repeat(np.asarray(of_keys, np.int64), self.parts)
        return repeated

    def blocks(self, keys: Sequence[OffloadKey], rows: npt.NDArray[Any]) -> tuple[Any, npt.NDArray[Any] | None]:
        """The blocks' memory in the client's form."""
        if len(self._sizes) == len(self._ranks) == 1:
            return self._rows, rows
        blocks = []
        for key, row in zip(keys, rows, strict=True):
            size = self._sizes[int.from_bytes(key[-_GROUP_BYTES:], "big") if len(self._sizes) > 1 else 0]
            blocks += [self._pool[row, rank * self._rank_bytes :][:size] for rank in self._ranks]
        return blocks, None

    def whole(self, blocks: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """For each chunk, whether all ranks' blocks are set."""
        return blocks if self.parts == 1 else np.asarray(blocks.reshape(-1, self.parts).all(axis=1))

    def close(self) -> None:
        self._pool = self._rows = np.empty((0, 0), np.uint8)


def _why_apart(config: Any, spec: Any) -> str:
    """Why the pool's rows differ from KVStoreConnector's blocks, by the engine's settings; "" if they do not."""
    if spec.blocks_per_chunk != 1:
        return f"blocks_per_chunk is {spec.blocks_per_chunk}: a chunk has the hash of its last block alone"
    if spec.config.canonical_layout:
        return "canonical_layout is a layout of vLLM's own"
    if config.parallel_config.world_size != config.parallel_config.tensor_parallel_size:
        return "pipeline stages have namespaces of their own"
    if current_platform.device_type != "cpu":
        return "pools of engines on a GPU have not been tried"
    return ""


def _why_rows_differ(model: Model, spec: Any, cache: Any) -> str:
    """The same, by a row: per rank a page of each tensor, in the order cache groups first name them, each group's layers first."""
    if any(group.is_state for group in model.groups):
        return "states are stored by KVStoreConnector where a step has left them"
    if not model.layout.startswith("LB"):
        return f"layout {model.layout}: pages of all layers lie together"
    if model.replicas != 1 and not spec.replicated_layout:
        return f"{model.replicas} ranks keep the same"
    places = {
        name: tensor.offset + i * tensor.layer_stride
        for tensor in cache.kv_cache_tensors
        for i, name in enumerate(tensor.layers)
    }
    order: dict[int, int] = {}
    for group in model.groups:
        for i, layer in enumerate(group.layers):
            if layer not in places or order.setdefault(places[layer], len(order)) != i:
                return "cache groups do not share their tensors layer by layer"
    page_bytes = {group.page_bytes for group in model.groups}
    if len(page_bytes) != 1 or page_bytes.pop() * len(order) != spec.cpu_page_size_per_worker:
        return f"{len(order)} tensors of pages of other sizes, or with gaps"
    return ""


def _fields_of_rows(config: Any, cache: Any, spec: Any, row_bytes: int) -> dict[str, Any]:
    """Namespace fields for whole rows, whose bytes only such an engine can read."""
    parallel = config.parallel_config
    groups = [[list(group.layer_names), str(group.kv_cache_spec)] for group in cache.kv_cache_groups]
    platform = current_platform.device_type
    if platform == "cpu":
        platform = compat.packing(config, int(config.cache_config.block_size), is_mla=False)
    return {
        "block_bytes_max": row_bytes,
        "layout": f"vllm-row-{compat.layout_of(config, cache)}",
        "x.engine": f"{compat.engine_name()} {platform}",
        "x.kv_dtype": short(str(config.cache_config.cache_dtype)),
        "x.blocks_per_chunk": spec.blocks_per_chunk,
        "x.hash_tokens": spec.tokens_per_hash,
        "x.groups": digest(groups),
        "x.ranks": f"{parallel.tensor_parallel_size}x{parallel.pipeline_parallel_size}",
        "x.row": f"{'replicated' if spec.replicated_layout else 'ranks'}"
        f"{' canonical' if spec.config.canonical_layout else ''}",
    }
