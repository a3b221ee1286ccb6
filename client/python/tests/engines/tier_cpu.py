"""vLLM's tiers without a GPU: its own spec, manager, shared region and scheduling; NumPy copies between pages and chunks.

As shipped ``get_worker`` refuses a CPU, because its copies are CUDA's. Here copies run on submission.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from kvstore.vllm.tier import KVStoreTier

Indices = npt.NDArray[np.int64]


class Worker(OffloadingWorker):  # type: ignore[misc]
    def __init__(self, caches: Any, region: SharedOffloadRegion, blocks_per_chunk: int) -> None:
        self.region = region
        self.blocks_per_chunk = blocks_per_chunk
        self.refs = caches.group_data_refs
        #: Bytes. NumPy copies whole pages, torch element by element.
        self.pages = [each.tensor.view(torch.int8).numpy() for each in caches.tensors]
        self.chunks = [
            region.create_next_worker_view(blocks_per_chunk * each.shape[1])
            .unflatten(1, (blocks_per_chunk, -1))
            .numpy()
            for each in self.pages
        ]
        self.ended: list[TransferResult] = []

    def _places(self, pages: Any, chunks: Any) -> Iterator[tuple[int, Indices, Indices, Indices]]:
        """For each group with any: pages, and for each page its chunk and its block of the chunk."""
        page = chunk = 0
        for group, (size, first) in enumerate(zip(pages.group_sizes, pages.block_indices, strict=True)):
            if size == 0:
                continue
            blocks = first % self.blocks_per_chunk + np.arange(size)
            there = np.asarray(chunks.block_ids)[chunk + blocks // self.blocks_per_chunk]
            yield (
                group,
                np.asarray(pages.block_ids[page : page + size]),
                there,
                blocks % self.blocks_per_chunk,
            )
            page += size
            chunk += int(blocks[-1]) // self.blocks_per_chunk + 1
        assert chunk == len(chunks.block_ids), (chunk, len(chunks.block_ids))

    def _end(self, job: int, count: int) -> bool:
        self.ended.append(TransferResult(job, True, count, 1e-6))
        return True

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        count = 0
        for group, pages, chunks, blocks in self._places(src_spec, dst_spec):
            count += len(pages)
            for ref in self.refs[group]:
                self.chunks[ref.tensor_idx][chunks, blocks] = self.pages[ref.tensor_idx][pages]
        return self._end(job_id, count)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        count = 0
        for group, pages, chunks, blocks in self._places(dst_spec, src_spec):
            count += len(pages)
            for ref in self.refs[group]:
                self.pages[ref.tensor_idx][pages] = self.chunks[ref.tensor_idx][chunks, blocks]
        return self._end(job_id, count)

    def get_finished(self) -> list[TransferResult]:
        ended, self.ended = self.ended, []
        return ended

    def wait(self, job_ids: set[int]) -> None:
        pass

    def shutdown(self) -> None:
        self.chunks.clear()
        self.region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):  # type: ignore[misc]
    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        if self._worker is None:
            rank = 0 if self.replicated_layout else self.config.parallel.rank
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = Worker(kv_caches, region, self.blocks_per_chunk)
        return self._worker


class TimedTier(KVStoreTier):
    """Records in the file ``KV_TIER_TIMES`` how long each call holds the scheduler's thread, by the clock and in thread time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.times: dict[str, list[tuple[float, float]]] = {}
        for name in ("lookup", "submit_load", "submit_store", "get_finished_jobs", "on_schedule_end", "on_new_request"):
            setattr(self, name, self._timed(name, getattr(self, name)))

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        times = self.times.setdefault(name, [])

        def timed(*arguments: Any) -> Any:
            began = time.perf_counter(), time.thread_time()
            try:
                return call(*arguments)
            finally:
                times.append((time.perf_counter() - began[0], time.thread_time() - began[1]))

        return timed

    def on_request_finished(self, req_context: Any) -> None:
        super().on_request_finished(req_context)
        path = os.environ["KV_TIER_TIMES"]
        with open(path + ".new", "w") as file:  # an engine that is ended writes nothing more
            json.dump(self.times, file)
        os.replace(path + ".new", path)


def transfer_config(
    endpoint: str, nbytes: int = 64 << 20, tier: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """``tier``: the tier's own options. ``more``: of vLLM's connector."""
    options = {"endpoints": endpoint, "lookup_timeout": 5.0, "load_timeout": 5.0} | (tier or {})
    return {
        "kv_connector": "KVStoreOffloadingConnector",
        "kv_connector_module_path": "kvstore.vllm.tier",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "tier_cpu",
            "cpu_bytes_to_use": nbytes,
            "secondary_tiers": [{"type": "KVStoreTier", "module_path": "kvstore.vllm.tier"} | options],
            # As the connector does, so that results do not depend on who stored a block.
            "offload_prompt_only": False,
        }
        | more,
    }
