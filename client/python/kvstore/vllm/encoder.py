"""vLLM's encoder outputs for images, audio and video, in the store: one engine's outputs are loaded by the others.

vllm serve MODEL --ec-transfer-config '{"ec_connector": "KVStoreECConnector", "ec_connector_module_path": "kvstore.vllm.encoder",
    "ec_role": "ec_both", "ec_connector_extra_config": {"endpoints": "unix:///run/kvstore/kvstore.sock"}}'

vLLM plans a step with an available output, and ends if it is then missing. So the scheduler's half loads outputs itself, before it reports
them as available, and hands them to the workers with the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.logger import init_logger
from vllm.platforms import current_platform

from ..doors.door import Door, take_ended
from ..doors.outputs import HEADER_BYTES, decoded, encoded
from ..errors import Unsupported
from ..futures import Future
from ..namespaces import Namespace
from ..sets import SetGetResult, SetMatchResult, SetPutResult, SetSpace
from . import compat
from .identity import Loaded, difference, identity_of, is_named
from .model import StoreOptions
from .stats import Metrics, Sums

try:
    from vllm.distributed.ec_transfer.ec_connector.base import (
        ECConnectorBase,
        ECConnectorMetadata,
        ECConnectorRole,
        ECConnectorWorkerMetadata,
    )
except ImportError as _error:
    raise Unsupported(f"{compat.engine_name()} has no connectors for encoders' outputs: {_error}") from _error
try:
    from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorPromMetrics, ECConnectorStats
except ImportError:  # an older release, without statistics for encoder connectors
    ECConnectorPromMetrics = ECConnectorStats = object

logger = init_logger("vllm.kvstore")

#: Limit on outputs on their way to the store.
_SAVING_BYTES_MAX = 256 << 20

COUNTERS = {
    "lookups": "Outputs that the store was asked about.",
    "hit_outputs": "Outputs that the store had.",
    "loaded_outputs": "Outputs that were loaded instead of encoded.",
    "loaded_bytes": "Their bytes.",
    "stored_outputs": "Outputs that the store has taken.",
    "dropped_outputs": "Outputs not given to be stored: too large, too many at once, or the store is away.",
    "failures": "Calls to the store that failed.",
}


class EncoderStats(Sums, ECConnectorStats):  # type: ignore[misc]
    counters = COUNTERS


class EncoderMetrics(Metrics, ECConnectorPromMetrics):  # type: ignore[misc]
    prefix = "vllm:kvstore_encoder_"
    counters = COUNTERS


@dataclass(frozen=True)
class EncoderOptions(StoreOptions):
    """``ec_connector_extra_config``. A request waits ``lookup_timeout`` for the lookup and then ``load_timeout`` for the output."""

    place = "ec_connector_extra_config"
    #: Larger outputs are neither stored nor loaded.
    output_bytes_max: int = 64 << 20


@dataclass
class Step(ECConnectorMetadata):  # type: ignore[misc]
    """From the scheduler to the workers: outputs that this step needs."""

    loads: dict[str, npt.NDArray[np.uint8]] = field(default_factory=dict)


@dataclass
class Word(ECConnectorWorkerMetadata):  # type: ignore[misc]
    """From the workers to the scheduler, once: the record of the outputs' namespace."""

    namespace: str

    def aggregate(self, other: ECConnectorWorkerMetadata) -> Word:
        assert isinstance(other, Word)
        if why := difference(self.namespace, other.namespace):
            raise Unsupported(f"workers of one engine have different models: {why}")
        return self


@dataclass
class _Item:
    """An output that is looked up, then loaded. ``is_over``: it has arrived, or will not come."""

    row_count: int
    match: Future[SetMatchResult] | None = None
    get: Future[SetGetResult] | None = None
    data: npt.NDArray[np.uint8] | None = None
    is_over: bool = False
    requests: set[str] = field(default_factory=set)


@dataclass
class _Save:
    nbytes: int
    future: Future[SetPutResult]


class KVStoreECConnector(ECConnectorBase):  # type: ignore[misc]
    """The connector that vLLM calls: one in the scheduler's process and one in each worker's.

    1. An output is reported as available only when all its bytes are in the scheduler's process, verified.
    2. A request waits for the store until both timeouts at most; missing outputs are then encoded.
    3. After the engine's start, calls do not raise into vLLM, and the store may be away.
    4. Lookups begin once a worker has reported its model: an engine's first step encodes.
    """

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role)
        self._options = EncoderOptions.of(vllm_config.ec_transfer_config.ec_connector_extra_config)
        options = self._options
        lora = vllm_config.lora_config
        if lora is not None and getattr(lora, "enable_tower_connector_lora", False):
            raise Unsupported(
                "enable_tower_connector_lora: an output's name has an adapter's name, and not what the adapter is"
            )
        #: Made by a worker, which has the model; the scheduler's half gets it after the first step.
        self.namespace: Namespace | None = None
        self._is_told = role == ECConnectorRole.SCHEDULER
        self._door = Door(
            options,
            f"vllm-encoder-{role.name.lower()}",
            logger,
            of=" of encoders' outputs",
            numa_nodes=options.numa_nodes,
        )
        self._space: SetSpace | None = None
        self.counters = self._door.counters
        self._items: dict[str, _Item] = {}
        #: Outputs that the engine has, or will have after this step.
        self._held: set[str] = set()
        self._loads: dict[str, npt.NDArray[np.uint8]] = {}
        self._saves: list[_Save] = []
        self._does_save = self.is_producer and vllm_config.parallel_config.rank == 0

    def _open(self, namespace: Namespace, what: str = "") -> None:
        self.namespace = namespace
        self._space = self._door.open(namespace, what)

    @staticmethod
    def _name(identifier: str) -> bytes:
        return b"encoder output " + identifier.encode()

    # -- scheduler

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """Whether the request can be planned: all outputs it needs have arrived or failed."""
        if not self.is_consumer:
            return True
        is_ready = True
        for feature in request.mm_features:
            position = feature.mm_position
            if position.offset + position.length <= num_computed_tokens or feature.identifier in self._held:
                continue
            item = self._items.get(feature.identifier)
            if item is None:
                item = self._items[feature.identifier] = _Item(int(position.get_num_embeds()))
            item.requests.add(request.request_id)
            is_ready &= self._go_on(feature.identifier, item)
        return is_ready

    def _go_on(self, identifier: str, item: _Item) -> bool:
        """Makes the item's next call to the store, if the last one has ended. Returns whether it is over."""
        if item.is_over:
            return True
        with self._door.guarded("an encoder's output"):
            self._advance(self._name(identifier), item)
            return item.is_over
        item.is_over, item.data = True, None
        return True

    def _advance(self, name: bytes, item: _Item) -> None:
        space, lookups, loads = self._space, self._door.lookups, self._door.loads
        if space is None:
            item.is_over = True
        elif item.match is None:
            match_it = partial(space.submit_match, [name], deadline=self._options.lookup_timeout, lease=True)
            item.match = lookups.begin(match_it) if lookups.allows() else None
            item.is_over = item.match is None
            self.counters["lookups"] += not item.is_over
        elif item.get is None and item.match.done():
            match = lookups.result(item.match)
            if match is not None and match.held[0] and loads.allows():
                self.counters["hit_outputs"] += 1
                item.data = np.empty(int(match.block_bytes[0]), np.uint8)
                get_it = partial(space.submit_get, [name], [item.data], deadline=self._options.load_timeout)
                item.get = loads.begin(get_it)
            if item.get is None:
                item.is_over, item.data = True, None
        elif item.get is not None and item.get.done():
            item.is_over = True
            got = loads.result(item.get)
            assert item.data is not None
            output = decoded(item.data) if got is not None and got.landed[0] else None
            if output is None or output.shape[0] != item.row_count:
                item.data = None

    def has_cache_item(self, identifier: str) -> bool:
        item = self._items.get(identifier)
        return item is not None and item.is_over and item.data is not None

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        identifier = request.mm_features[index].identifier
        item = self._items.pop(identifier, None)
        if item is not None and item.is_over and item.data is not None:
            self._loads[identifier] = item.data
            self.counters["loaded_outputs"] += 1
            self.counters["loaded_bytes"] += len(item.data)
        self._held.add(identifier)

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        step, self._loads = Step(self._loads), {}
        self._held -= set(scheduler_output.free_encoder_mm_hashes)
        return step

    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        for feature in request.mm_features:
            item = self._items.get(feature.identifier)
            if item is not None:
                item.requests.discard(request.request_id)
                if not item.requests:
                    del self._items[feature.identifier]
        return False, None

    def update_connector_output(self, connector_output: Any) -> None:
        word = connector_output.ec_connector_worker_meta
        if isinstance(word, Word) and self.namespace is None:
            self._open(Namespace.from_text(word.namespace), "encoders' outputs")

    # -- worker

    def start_worker_services(self) -> None:
        """Called once the model is loaded."""
        self._name_by(compat.worker_here())

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        if self.namespace is None and not self._is_told:  # releases without start_worker_services
            self._name_by(compat.worker_here())

    def _name_by(self, worker: Any) -> None:
        config, options = self._vllm_config, self._options
        identity = identity_of(config, options, worker)
        if not is_named(identity):
            loaded = Loaded(worker)
            if not loaded.is_seen or config.parallel_config.world_size != 1:
                logger.warning(
                    "kvstore: weights are no files on this machine: encoders' outputs are not shared, unless one worker has all of "
                    "them where they can be seen"
                )
                self._is_told = True
                return
            identity["x.weights"] = "loaded " + loaded.digest(False).hex()
        engine = f"{compat.engine_name()} {current_platform.device_type} encoder"
        fields = {"block_bytes_max": options.output_bytes_max, "hash": "vllm-mm", "x.engine": engine}
        self._open(Namespace(identity | fields))

    def build_connector_worker_meta(self) -> Word | None:
        if self._is_told or self.namespace is None:
            return None
        self._is_told = True
        return Word(self.namespace.text)

    def start_load_caches(self, encoder_cache: dict[str, torch.Tensor], **kwargs: Any) -> None:
        step = self._get_connector_metadata()
        assert isinstance(step, Step)
        for identifier, data in step.loads.items():
            if identifier in encoder_cache:
                continue
            output = decoded(np.array(data))  # arrays from another process may be read-only
            assert output is not None  # 1
            encoder_cache[identifier] = output.to(current_platform.device_type)

    def save_caches(self, encoder_cache: dict[str, torch.Tensor], mm_hash: str, **kwargs: Any) -> None:
        if not self._does_save or self._space is None:
            return
        with self._door.guarded("save_caches"):
            self._save(self._space, mm_hash, encoder_cache[mm_hash])

    def _save(self, space: SetSpace, identifier: str, output: torch.Tensor) -> None:
        self._end_saves()
        nbytes = output.numel() * output.element_size() + HEADER_BYTES
        has_room = sum(each.nbytes for each in self._saves) + nbytes <= _SAVING_BYTES_MAX
        is_wanted = nbytes <= self._options.output_bytes_max and has_room and self._door.saves.allows()
        data = encoded(output) if is_wanted else None
        if data is None:
            self.counters["dropped_outputs"] += 1
            return
        put_it = partial(space.submit_put, [self._name(identifier)], [data], deadline=self._options.save_timeout)
        future = self._door.saves.begin(put_it)
        if future is not None:
            self._saves.append(_Save(nbytes, future))

    def _end_saves(self) -> None:
        for each in take_ended(self._saves):
            put = self._door.saves.result(each.future)
            self.counters["stored_outputs"] += 0 if put is None else put.stored

    # -- statistics, of both halves

    def get_ec_connector_stats(self) -> EncoderStats | None:
        return EncoderStats.of(self._door)

    @classmethod
    def build_ec_connector_stats(cls, data: dict[str, Any] | None = None) -> EncoderStats:
        return EncoderStats(data={} if data is None else data)

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> EncoderMetrics:
        return EncoderMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        self._door.close(each.future for each in self._saves)
