"""vLLM's own pool of KV blocks in host memory, with the store behind it (docs/engines/vllm-tier.md).

vllm serve MODEL --kv-transfer-config '{"kv_connector": "KVStoreOffloadingConnector", "kv_connector_module_path":
    "kvstore.vllm.tier", "kv_role": "kv_both", "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec",
    "cpu_bytes_to_use": 8589934592, "secondary_tiers": [{"type": "KVStoreTier", "module_path": "kvstore.vllm.tier",
    "endpoints": "unix:///run/kvstore/kvstore.sock"}]}}'

The connector is vLLM's OffloadingConnector, extended to tell the tier the model of its blocks.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import vllm
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.logger import init_logger

from ..doors.door import Door, take_ended, tell_untried
from ..doors.identity import digest
from ..doors.results import held, landed, stored
from ..errors import Unsupported
from ..futures import Future
from ..namespaces import Namespace
from ..sets import SetGetResult, SetMatchResult, SetPutResult, SetSpace
from . import compat
from .identity import Loaded, fields_of, identity_of, is_named
from .messages import Stage
from .model import StoreOptions
from .told import Told, stages_of

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
    from vllm.v1.kv_offload.base import (
        Locality,
        LookupResult,
        Medium,
        OffloadingCounterMetadata,
        OffloadingEvent,
        OffloadingGaugeMetadata,
        OffloadingMetricMetadata,
        OffloadKey,
        ReqContext,
        RequestOffloadingContext,
        ScheduleEndContext,
    )
    from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

    from .chunks import Chunks, TierOptions, the_engine
except ImportError as _error:
    raise Unsupported(
        f"{compat.engine_name()}: its tiers are not those that were tried, of {', '.join(compat.TIERS_TRIED)}: {_error}"
    ) from _error

logger = init_logger("vllm.kvstore")

#: The tier's own counters in vLLM's /metrics, besides those of every tier.
COUNTERS = {
    "lookups": "Calls in which the store was asked which chunks it has.",
    "looked_up_chunks": "Chunks that it was asked for.",
    "hit_chunks": "Those of them that it had.",
    "loaded_chunks": "Chunks that were loaded into the pool.",
    "loaded_bytes": "Their bytes.",
    "missing_chunks": "Chunks of loads that did not come.",
    "stored_chunks": "Chunks that the store has taken, or had.",
    "stored_bytes": "Their bytes.",
    "unsaved_chunks": "Chunks that were to be stored and are not.",
    "failures": "Calls to the store that failed.",
}
_METRIC = "vllm:kvstore_tier_"
_PAUSED = _METRIC + "paused"


@dataclass
class _Report(OffloadingWorkerMetadata):  # type: ignore[misc]
    """vLLM's metadata with the workers' reports about their weights, by worker number. All report in the same step."""

    stages: dict[int, Stage] = field(default_factory=dict)
    weights: dict[int, tuple[int, bytes]] = field(default_factory=dict)

    def aggregate(self, other: Any) -> _Report:
        both = super().aggregate(other)
        return _Report(
            both.completed_jobs,
            both.transfer_stats,
            self.stages | getattr(other, "stages", {}),
            self.weights | getattr(other, "weights", {}),
        )


class KVStoreOffloadingConnector(OffloadingConnector):  # type: ignore[misc]
    """vLLM's connector; also tells the tiers their model."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        token = the_engine.set((vllm_config, kv_cache_config))
        try:
            super().__init__(vllm_config, role, kv_cache_config)
        finally:
            the_engine.reset(token)
        parallel = vllm_config.parallel_config
        self._rank_count = int(parallel.tensor_parallel_size)
        self._number = parallel.rank % (self._rank_count * int(parallel.pipeline_parallel_size))
        #: In a worker: its loaded weights, and the news not yet sent to the scheduler's half.
        self._weights: Loaded | None = None
        self._stage: Stage | None = None
        self._news: dict[str, dict[int, Any]] = {}

    @property
    def _tiers(self) -> list[KVStoreTier]:
        tiers = getattr(self.scheduler.manager, "secondary_tiers", ())
        return [each for each in tiers if isinstance(each, KVStoreTier)]

    # -- worker

    def register_kv_caches(self, kv_caches: Any) -> None:
        super().register_kv_caches(kv_caches)
        worker = compat.worker_here()
        identity = identity_of(self._vllm_config, StoreOptions(), worker)
        self._weights = Loaded(worker)
        text = "".join(f"{name}={value}\n" for name, value in sorted(identity.items()) if value is not None)
        self._stage = Stage(text, (), self._weights.digest(is_named(identity)), is_named(identity))
        self._news = {"stages": {self._number: self._stage}}

    def get_handshake_metadata(self) -> Stage | None:
        return self._stage if compat.is_heard(self) else None

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        reset = getattr(connector_metadata, "kvstore_reset", 0)
        if reset and self._weights is not None and self._stage is not None:
            self._news["weights"] = {self._number: (reset, self._weights.digest(self._stage.is_named))}

    def build_connector_worker_meta(self) -> Any:
        told = super().build_connector_worker_meta()
        if not self._news:
            return told
        news, self._news = self._news, {}
        told = OffloadingWorkerMetadata() if told is None else told
        return _Report(told.completed_jobs, told.transfer_stats, **news)

    # -- scheduler

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        for tier in self._tiers:
            tier.told(stages_of(metadata, self._rank_count))

    def on_new_request(self, request: Any) -> None:
        for tier in self._tiers:
            tier.has_adapter = request.lora_request is not None
        super().on_new_request(request)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        made = super().build_connector_meta(scheduler_output)
        # Sleeping workers have no weights: they check in a step that computes.
        if scheduler_output.total_num_scheduled_tokens > 0:
            made.kvstore_reset = max((tier.reset_asked for tier in self._tiers), default=0)
        return made

    def update_connector_output(self, connector_output: Any) -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, _Report):
            for tier in self._tiers:
                tier.told(report.stages)
                tier.told_weights(report.weights)
        super().update_connector_output(connector_output)


with contextlib.suppress(ValueError):  # already registered
    KVConnectorFactory.register_connector("KVStoreOffloadingConnector", __name__, "KVStoreOffloadingConnector")


@dataclass
class _Batch:
    """Keys of one lookup call, and the store's answer for each."""

    keys: list[OffloadKey] = field(default_factory=list)
    future: Future[SetMatchResult] | None = None
    #: 1 for each held chunk; None until the answer.
    held: bytes | None = None


_MISSING = _Batch(held=b"\0")


@dataclass
class _Job:
    """A transfer under way: one call to the store, or several if it has more keys than a call takes."""

    job: TransferJob
    keys: list[OffloadKey]
    began: float
    future: Future[Any] | None = None
    sent: int = 0
    #: For the keys sent so far: whether the chunk has come, or is stored.
    done: list[npt.NDArray[np.bool_]] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return "loads" if self.job.is_promotion else "saves"


class _WithAdapter:
    """Marks a request whose chunk keys have an adapter's name and path, not its content."""


class KVStoreTier(SecondaryTierManager):  # type: ignore[misc]
    """The store as one of vLLM's tiers. All calls are made in the scheduler's thread.

    1. Calls do not wait or move bytes: the client's own thread does, without the GIL. Only ``drain_jobs`` and ``shutdown`` wait.
    2. After construction, calls do not raise: a failed lookup is a miss, a failed key is left out. Unsupported settings fail the start.
    3. A job is reported once, a little after its timeout at the latest. From then on its rows of the pool are free.
    4. A key missing from a load becomes a miss for that request, which would otherwise ask for it for ever.
    5. The store may be away, now or for ever.
    6. After a reset of the engine's caches, lookups and saves wait until the workers have reported their weights.
    7. Requests with an adapter do not share here.
    """

    medium = Medium.STORAGE
    cache_hit_source = SecondaryTierManager.cache_hit_source

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        tell_untried(logger, "tiers of vLLM", vllm.__version__, compat.TIERS_TRIED)
        self._options = TierOptions.of(options)
        self.locality = Locality[self._options.locality] if self._options.locality else None
        self._chunks = Chunks(offloading_spec, primary_kv_view, self._options)
        self._door = Door(
            self._options,
            "vllm-tier",
            logger,
            numa_nodes=self._options.numa_nodes,
            staging_bytes=self._options.staging_bytes,
        )
        parallel = self._chunks.parallel
        self._words = Told(int(parallel.tensor_parallel_size), int(parallel.pipeline_parallel_size))
        #: Opened once the workers have reported their model.
        self._space: SetSpace | None = None
        self.has_adapter = False
        #: For each request, the batch and place of each key it has looked up.
        self._asked: dict[str, dict[OffloadKey, tuple[_Batch, int]]] = {}
        self._unsent: deque[_Batch] = deque()
        self._jobs: list[_Job] = []
        #: Whether a request has named other weights: the pool and the engine's cache do not tell their blocks apart.
        self._is_mixed = False
        self._ended: list[JobResult] = []
        has_events = self._options.enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events
        self._events: list[OffloadingEvent] | None = [] if has_events else None
        self.counters = self._door.counters
        #: Whether vLLM has been told all counters once, so that they appear from the start.
        self._has_told = False
        if self._chunks.why_apart:
            logger.info("kvstore: chunks are not shared with KVStoreConnector: %s", self._chunks.why_apart)

    # -- model and weights of the chunks

    def told(self, stages: dict[int, Stage]) -> None:
        """Takes the workers' reports, once."""
        if not self._words.take(stages):
            return
        said = [fields_of(each.namespace) for each in self._words.stages]
        identity: dict[str, Any] = said[0]
        if len(said) > 1:  # a row has all stages' layers
            identity["x.rotation"] = digest([each.get("x.rotation") for each in said])
        namespace = self._chunks.name_by(identity)
        self._chunks.epoch = self._words.epoch
        self._space = self._door.open(namespace, "chunks")

    def told_weights(self, weights: dict[int, tuple[int, bytes]]) -> None:
        """Takes the workers' weights after a reset of the caches."""
        self._words.take_weights(weights)
        self._chunks.epoch = self._words.epoch

    @property
    def reset_asked(self) -> int:
        return self._words.reset_asked

    @property
    def namespace(self) -> Namespace:
        assert self._chunks.namespace is not None
        return self._chunks.namespace

    @property
    def why_apart(self) -> str:
        """Why this tier's chunks differ from KVStoreConnector's; "" if they do not."""
        return self._chunks.why_apart

    # -- metrics

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        counters = {_METRIC + name: OffloadingCounterMetadata(documentation=text) for name, text in COUNTERS.items()}
        text = "1 while failures keep the tier from making such calls."
        return counters | {_PAUSED: OffloadingGaugeMetadata(documentation=text, labelnames=("calls",))}

    def get_stats(self) -> OffloadingConnectorStats | None:
        """The growth since the last call."""
        changes = self._door.changes(COUNTERS)
        if not self._has_told:
            self._has_told = True
            changes = dict.fromkeys((*COUNTERS, *(f"paused_{kind}" for kind in self._door.gates)), 0) | changes
        stats = OffloadingConnectorStats()
        for name, value in changes.items():
            if name in COUNTERS:
                stats.increase_counter(_METRIC + name, value)
            else:
                stats.set_gauge(_PAUSED, value, (name.removeprefix("paused_"),))
        return None if stats.is_empty() else stats

    # -- lookups

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        if not self._is_mixed and "weights_epoch" in (req_context.kv_transfer_params or ()):
            self._is_mixed = True
            logger.warning(
                "kvstore: a request has a weights_epoch: until the caches are reset nothing is loaded or stored"
            )
        if self.has_adapter:
            req_context.set_state(_WithAdapter())
        return RequestOffloadingContext()

    def _is_shared(self, req_context: ReqContext) -> bool:
        """Whether the names of the request's chunks identify their content."""
        return self._chunks.epoch is not None and not self._is_mixed and req_context.get_state(_WithAdapter) is None

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._asked.pop(req_context.req_id, None)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        asked = self._asked.setdefault(req_context.req_id, {})
        place = asked.get(key)
        if place is None:
            if not self._is_shared(req_context) or not self._door.lookups.allows():
                return LookupResult.MISS
            if not self._unsent or len(self._unsent[-1].keys) >= self._chunks.keys_max:
                self._unsent.append(_Batch())
            batch = self._unsent[-1]
            asked[key] = batch, len(batch.keys)
            batch.keys.append(key)
            return LookupResult.RETRY
        batch, index = place
        if batch.held is None and not self._has_answer(batch):
            return LookupResult.RETRY
        assert batch.held is not None
        return LookupResult.HIT if batch.held[index] else LookupResult.MISS

    def _has_answer(self, batch: _Batch) -> bool:
        future = batch.future
        if future is None or not future.done():
            return False
        batch.future = None
        batch.held = bytes(len(batch.keys))
        match = self._door.lookups.result(future)
        if match is not None:
            are_held = self._chunks.whole(held(match, self._chunks.sizes(batch.keys)))
            batch.held = are_held.tobytes()
            self.counters["hit_chunks"] += int(are_held.sum())
        return True

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        if self._unsent:
            self._look(self._unsent.popleft())

    def _look(self, batch: _Batch) -> None:
        space, deadline = self._space, self._options.lookup_timeout
        assert space is not None
        batch.future = self._door.lookups.begin(
            lambda: space.submit_match(self._chunks.names(batch.keys), deadline=deadline, prefetch=True)
        )
        if batch.future is None:
            batch.held = bytes(len(batch.keys))
        else:
            self.counters["lookups"] += 1
            self.counters["looked_up_chunks"] += len(batch.keys)

    # -- loads and stores

    def submit_load(self, job_metadata: TransferJob) -> None:
        made = _Job(job_metadata, list(job_metadata.keys), time.monotonic())
        if self._send(made):
            self._jobs.append(made)
        else:
            self._end(made)

    submit_store = submit_load

    def _send(self, job: _Job) -> bool:
        """Sends the job's next call. False if there is none to send."""
        is_load, gate = job.job.is_promotion, self._door.gates[job.kind]
        timeout = self._options.load_timeout if is_load else self._options.save_timeout
        left = job.began + timeout - time.monotonic()
        keys = job.keys[job.sent : job.sent + self._chunks.keys_max]
        is_shared = self._is_shared(job.job.req_context)
        if not keys or left <= 0 or not is_shared or not gate.allows():
            return False
        assert self._space is not None
        submit = self._space.submit_get if is_load else self._space.submit_put

        def send() -> Future[Any]:
            blocks, rows = self._chunks.blocks(keys, job.job.chunk_ids[job.sent : job.sent + len(keys)])
            return submit(self._chunks.names(keys), blocks, rows=rows, deadline=left)

        job.future = gate.begin(send)
        job.sent += len(keys) if job.future is not None else 0
        return job.future is not None

    def _take(self, job: _Job) -> None:
        """Takes the result of the job's call, which has ended."""
        future, job.future = job.future, None
        assert future is not None
        keys = job.keys[sum(map(len, job.done)) : job.sent]
        result: SetGetResult | SetPutResult | None = self._door.gates[job.kind].result(future)
        if result is None:
            job.done.append(np.zeros(len(keys), np.bool_))
        elif isinstance(result, SetGetResult):
            job.done.append(self._chunks.whole(landed(result, self._chunks.sizes(keys))))
        else:
            job.done.append(self._chunks.whole(stored(result)))

    def _end(self, job: _Job) -> None:
        done = np.concatenate([*job.done, np.zeros(len(job.keys) - job.sent, np.bool_)])
        count = int(done.sum())
        done_name, missed = ("loaded", "missing") if job.job.is_promotion else ("stored", "unsaved")
        self.counters[f"{done_name}_chunks"] += count
        self.counters[f"{done_name}_bytes"] += count * self.block_size_bytes
        self.counters[f"{missed}_chunks"] += len(job.keys) - count
        is_whole = count == len(job.keys)
        keys = tuple(job.keys[i] for i in np.flatnonzero(done)) if not is_whole and count > 0 else None
        if job.job.is_promotion and not is_whole:
            asked = self._asked.get(job.job.req_context.req_id, {})
            for i in np.flatnonzero(~done):
                asked[job.keys[i]] = _MISSING, 0
        elif self._events is not None and not job.job.is_promotion and count > 0:
            told = job.keys if keys is None else list(keys)
            self._events.append(OffloadingEvent(told, self.medium, removed=False, locality=self.locality))
        self._ended.append(
            JobResult(
                job.job.job_id,
                is_whole,
                keys if job.job.is_promotion else None,
                time.monotonic() - job.began,
                count * self.block_size_bytes,
            )
        )

    def get_finished_jobs(self) -> Iterable[JobResult]:
        for job in take_ended(self._jobs):
            if job.future is not None:
                self._take(job)
            if self._send(job):
                self._jobs.append(job)
            else:
                self._end(job)
        ended, self._ended = self._ended, []
        return ended

    def take_events(self) -> Iterable[OffloadingEvent]:
        if self._events:
            events, self._events = self._events, []
            return events
        return ()

    # -- life

    def drain_jobs(self) -> None:
        """Called only when the engine's caches are reset and weights may change."""
        for job in self._jobs:
            if job.future is not None:
                job.future.wait()  # until its deadline
                self._take(job)
            self._end(job)
        self._jobs = []
        self._words.reset()
        self._chunks.epoch = None
        self._is_mixed = False
        self._unsent.clear()
        self._asked.clear()

    def shutdown(self) -> None:
        """Chunks on their way to the store get up to one more second."""
        self._door.close(job.future for job in self._jobs if job.future is not None and not job.job.is_promotion)
        self._jobs, self._asked = [], {}
        self._unsent.clear()
        self._chunks.close()
