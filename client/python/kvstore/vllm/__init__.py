"""vLLM's KV cache in the store: blocks computed by one engine are loaded by the others (docs/engines/vllm.md).

vllm serve MODEL --kv-transfer-config '{"kv_connector": "KVStoreConnector", "kv_connector_module_path": "kvstore.vllm",
    "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"endpoints": "unix:///run/kvstore/kvstore.sock"}}'

In reading order: messages.py (messages between the two halves), requests.py (a request's state), scheduler.py (the scheduler's half),
scheduler_loads.py (its gets), scheduler_saves.py (its puts), worker.py (a worker's half), pages.py (pages as the kernels
see them, and lent memory), modules.py (prompt modules of a request), module_pages.py (their bytes, by token), rotation.py (how keys
turn), model.py (blocks, and unsupported settings), identity.py (the worker's loaded model), told.py (its reports to the scheduler),
adapters.py (LoRA), estimate.py (which hits are worth loading), compat.py (differences between releases of vLLM), stats.py (counters).
Other doors: tier.py and chunks.py, encoder.py.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import vllm as _vllm
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.logger import init_logger

from ..doors.door import tell_untried
from . import compat
from .compat import TRIED_VERSIONS, has_choice_of_layout
from .messages import Report, Stage, Step
from .model import Model
from .stats import KVStorePromMetrics, KVStoreStats
from .told import stages_of

if TYPE_CHECKING:
    from .scheduler import SchedulerSide
    from .worker import WorkerSide

__all__ = ["KVStoreConnector"]

logger = init_logger("vllm.kvstore")


class KVStoreConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """The connector that vLLM calls: one in the scheduler's process and one in each worker's."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        tell_untried(logger, "vLLM", _vllm.__version__, TRIED_VERSIONS)
        self._model = Model(vllm_config, kv_cache_config)
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            from .scheduler import SchedulerSide

            transfer = vllm_config.kv_transfer_config
            self._scheduler = SchedulerSide(self._model, loads=transfer.is_kv_consumer, saves=transfer.is_kv_producer)
            if self._model.shard_count > 1 and not self._model.has_shared_parts:
                logger.warning(
                    "kvstore: pages of the layout %s are stored as they are: only engines of %d ranks share them",
                    self._model.layout,
                    self._model.shard_count,
                )

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Dividing a block by kv heads requires each head's bytes in one piece."""
        groups = vllm_config.kv_transfer_config.kv_connector_extra_config.get("head_groups", 0)
        return "HND" if groups and has_choice_of_layout() else None

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a lost save is a miss

    # -- scheduler

    @property
    def _side(self) -> SchedulerSide:
        assert self._scheduler is not None
        return self._scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._side.saves.bind(kv_cache_manager)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        """Takes each worker's stage, by stage and rank."""
        self._side.told(stages_of(metadata, self._model.rank_count))

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        """The same from a MultiConnector that knows no stages."""
        self.set_xfer_handshake_metadata_pp_aware({(0, rank): said for rank, said in metadata.items()})

    def on_new_request(self, request: Any) -> None:
        self._side.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._side.matched_tokens(request, num_computed_tokens)

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[Any, int]:
        return self._side.loads.hit_sources(request, num_external_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._side.admitted(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        return self._side.build_step(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        if isinstance(connector_output.kv_connector_worker_meta, Report):
            self._side.received(connector_output.kv_connector_worker_meta)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._side.finished(request, block_ids)
        return False, None  # the pages of saves have references of their own

    def register_finished_partial_tail(
        self, request: Any, block_ids: tuple[list[int], ...], partial_tail_offloads: list[tuple[int, int, int]]
    ) -> bool:
        self._side.finished_inside(request, block_ids, partial_tail_offloads)
        return False

    def has_pending_block_frees(self) -> bool:
        return self._side.saves.will_free_pages

    def has_pending_push_work(self) -> bool:
        return self._side.saves.has_pending

    def reset_cache(self) -> bool:
        self._side.reset()
        return True

    # -- worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        from .identity import identity_of
        from .worker import WorkerSide

        worker = compat.worker_here()
        self._model.name_by(identity_of(self._vllm_config, self._model.options, worker))
        parallel, model = self._vllm_config.parallel_config, self._model
        number = parallel.rank % (model.rank_count * model.stage_count)
        self._worker = WorkerSide(model, number % model.rank_count, kv_caches, worker, number, self._vllm_config)

    def get_handshake_metadata(self) -> Stage | None:
        return self._worker.stage if self._worker is not None and compat.is_heard(self) else None

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """A worker's first call for a step. vLLM starts loads later if the step does not wait for them."""
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None:
            self._worker.begin_step(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        step = self._get_connector_metadata()
        assert isinstance(step, Step)
        if self._worker is not None:
            self._worker.start_step(step)

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass  # a load is reported once the next step follows it; and a full CUDA graph runs no hook inside

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        step = self._get_connector_metadata()
        assert isinstance(step, Step)
        if self._worker is not None:
            self._worker.end_step(step)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        return KVConnectorTransferResults() if self._worker is None else self._worker.end_loads()

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set() if self._worker is None else self._worker.take_bad_pages()

    def build_connector_worker_meta(self) -> Report | None:
        return None if self._worker is None else self._worker.take_report()

    # -- statistics, of both halves

    def get_kv_connector_stats(self) -> KVStoreStats | None:
        half = self._worker if self._scheduler is None else self._scheduler
        return None if half is None else half.take_stats()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVStoreStats:
        return KVStoreStats(data={} if data is None else data)

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> KVStorePromMetrics:
        return KVStorePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        if self._scheduler is not None:
            self._scheduler.close()


# MultiConnector looks up its parts' classes by name when their statistics come from another process.
with contextlib.suppress(ValueError):  # already registered
    KVConnectorFactory.register_connector("KVStoreConnector", __name__, "KVStoreConnector")
