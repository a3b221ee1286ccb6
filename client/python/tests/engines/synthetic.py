"""vLLM's own scheduler and block pool with the connector's two halves, and arithmetic in place of a model.

What a token leaves in its page depends on what the token before left there, and the next token on everything in the
pages of the sequence. So one wrong byte anywhere changes the tokens.
"""

from __future__ import annotations

import inspect
import itertools
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from kvstore.vllm import KVStoreConnector
from kvstore.vllm.compat import HAS_CACHE_MANAGER, CacheHitSource, KVConnectorTransferResults, page_parts

BLOCK = 32
HEADS, SIZE, LAYERS = 2, 8, 2
MASK = (1 << 63) - 1
PARTS = page_parts(is_mla=False)
HAS_SOURCES = "hits_by_source" in PrefixCacheStats.__dataclass_fields__  # from 0.32 on


def known(kind: type, **given: Any) -> Any:
    """Without what older releases have no word for."""
    return kind(**{name: value for name, value in given.items() if name in kind.__dataclass_fields__})


def engine_config(model: Path, endpoint: str | None, policy: str = "recompute", **more: Any) -> VllmConfig:
    options, beside = more.pop("options", {}), more.pop("beside", None)
    arguments = {
        "model": str(model),
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "max_model_len": 4096,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "block_size": BLOCK,
        "enable_prefix_caching": True,
        "prefix_caching_hash_algo": "sha256_cbor",
    }
    if endpoint is not None:
        arguments["kv_transfer_config"] = {
            "kv_connector": "KVStoreConnector",
            "kv_connector_module_path": "kvstore.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": policy,
            "kv_connector_extra_config": {"endpoints": endpoint, "lookup_timeout": 5.0, "load_timeout": 5.0} | options,
        }
    if beside is not None:
        arguments["kv_transfer_config"] = {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": policy,
            "kv_connector_extra_config": {"connectors": [beside, arguments["kv_transfer_config"]]},
        }
    return EngineArgs(**(arguments | more)).create_engine_config()


def cache_config(page_count: int, windows: bool = False) -> KVCacheConfig:
    common = {"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": SIZE, "dtype": torch.bfloat16}
    groups = [KVCacheGroupSpec([f"full.{i}" for i in range(LAYERS)], FullAttentionSpec(**common))]
    if windows:
        spec = SlidingWindowSpec(**common, sliding_window=80)
        groups += [KVCacheGroupSpec([f"window{g}.{i}" for i in range(LAYERS)], spec) for g in range(2)]
    return known(
        KVCacheConfig,
        num_blocks=page_count,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        kv_cache_layout="LBHNC",
        hash_block_size=BLOCK,
    )


def ours(connector: Any) -> Any:
    """The store's connector: itself, or the last in MultiConnector."""
    return getattr(connector, "sub_connectors", [connector])[-1]


class Engine:
    """``between``: called in each step after the scheduler's part, before the workers'. ``beside``: the configuration of
    another connector, which is asked first.
    """

    def __init__(
        self, model: Path, endpoint: str | None, *, page_count: int = 200, windows: bool = False, **more: Any
    ) -> None:
        self.config = engine_config(model, endpoint, **more)
        self.config.cache_config.num_gpu_blocks = page_count
        self.cache = cache_config(page_count, windows)
        self.worker: Any = None
        if endpoint is not None:
            self.worker = KVConnectorFactory.create_connector(self.config, KVConnectorRole.WORKER, self.cache)
        # One allocation, layer after layer; each group has the same pages in it, as in an engine.
        shape = (LAYERS, *(() if PARTS == 1 else (PARTS,)), page_count, HEADS, BLOCK, 2 * SIZE // PARTS)
        self.memory = torch.zeros(shape, dtype=torch.bfloat16)
        if self.worker is not None:
            self.worker.register_kv_caches(
                {
                    name: self.memory[i]
                    for group in self.cache.kv_cache_groups
                    for i, name in enumerate(group.layer_names)
                }
            )
        # [layer, page, head, token, word]; where keys and values lie apart, [layer, page, part, head, token, word]
        self.words = np.moveaxis(self.memory.view(torch.uint8).view(torch.int64).numpy(), -4, 1)
        hash_function = get_hash_fn_by_name(self.config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self.hasher = get_request_block_hasher(BLOCK, hash_function)
        self.scheduler = Scheduler(
            vllm_config=self.config,
            kv_cache_config=self.cache,
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=BLOCK,
            log_stats=True,
            **({"hash_block_size": BLOCK} if "hash_block_size" in inspect.signature(Scheduler).parameters else {}),
        )
        self.between: Callable[[], None] = lambda: None
        self.tokens: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.names = (f"request-{i}" for i in itertools.count())
        self.preemptions = 0
        self.has_computed = False
        self.stats = (type(self.worker) if self.worker else KVStoreConnector).build_kv_connector_stats()
        self.hits_by_source: dict[CacheHitSource, int] = {}

    @property
    def side(self) -> Any:
        return ours(self.scheduler.connector)._scheduler

    @property
    def worker_side(self) -> Any:
        return ours(self.worker)._worker

    def add(self, prompt: list[int], max_tokens: int = 8, **more: Any) -> str:
        name = next(self.names)
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        sampling.update_from_generation_config({}, None)
        request = Request(name, list(prompt), sampling, None, block_hasher=self.hasher, **more)
        self.tokens[name] = []
        self.scheduler.add_request(request)
        return name

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def step(self) -> None:
        output = self.scheduler.schedule()
        self.between()
        if self.worker is not None:
            self.worker.bind_connector_metadata(output.kv_connector_metadata)
            loads_first = getattr(output, "has_sync_kv_loads", True)  # always, up to 0.28
            if loads_first:
                self.worker.start_load_kv(None)
        self.has_computed = output.total_num_scheduled_tokens > 0
        sampled = self._compute(output.num_scheduled_tokens)
        connector_output = None
        if self.worker is not None:
            if not loads_first:
                self.worker.start_load_kv(None)
            if HAS_CACHE_MANAGER or self.has_computed:
                self.worker.wait_for_save()
            if HAS_CACHE_MANAGER:
                results = self.worker.get_transfer_results(output.finished_req_ids)
            else:
                results = KVConnectorTransferResults(*self.worker.get_finished(output.finished_req_ids))
            connector_output = known(
                KVConnectorOutput,
                finished_sending=results.finished_sending,
                finished_recving=results.finished_recving,
                failed_recving=results.failed_recving,
                invalid_block_ids=self.worker.get_block_ids_with_load_errors(),
                kv_connector_stats=self.worker.get_kv_connector_stats(),
                kv_connector_worker_meta=self.worker.build_connector_worker_meta(),
            )
            self.worker.clear_connector_metadata()
        names = list(output.num_scheduled_tokens)
        self.preemptions = max(
            [self.preemptions] + [request.num_preemptions for request in self.scheduler.requests.values()]
        )
        outputs = self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=[sampled[name] for name in names],
                kv_connector_output=connector_output,
            ),
        )
        for each in outputs.values():
            for answer in each.outputs:
                self.tokens[answer.request_id] += answer.new_token_ids
            if each.scheduler_stats is not None:
                self._count(each.scheduler_stats)

    def _count(self, stats: SchedulerStats) -> None:
        """What vLLM's front end is told."""
        if stats.kv_connector_stats:
            self.stats.aggregate(type(self.worker).build_kv_connector_stats(stats.kv_connector_stats))
        if stats.connector_prefix_cache_stats is not None:
            sources = stats.connector_prefix_cache_stats.hits_by_source if HAS_SOURCES else {}
            for source, tokens in sources.items():
                self.hits_by_source[source] = self.hits_by_source.get(source, 0) + tokens

    def _compute(self, counts: dict[str, int]) -> dict[str, list[int]]:
        sampled = {}
        for name, count in counts.items():
            request = self.scheduler.requests[name]
            tables = self.scheduler.kv_cache_manager.get_block_ids(name)
            end = request.num_computed_tokens
            begin = end - count
            if name not in self.cached:
                self.cached[name] = begin
            full = tables[0]
            value = (
                int(self.words[0, full[(begin - 1) // BLOCK], ..., 0, (begin - 1) % BLOCK, 0].flat[0]) if begin else 7
            )
            for position in range(begin, end):
                value = (value * 6364136223846793005 + request.all_token_ids[position] * 1442695040888963407 + 1) & MASK
                for table in tables:
                    page = table[position // BLOCK]
                    if page:
                        self.words[:, page, ..., position % BLOCK, :] = value
                        self.words[1, page, ..., 1, position % BLOCK, 0] ^= 5
            sampled[name] = []
            if end == request.num_tokens:
                digest = 0
                for g, table in enumerate(tables):
                    first = 0 if g == 0 else max(0, end - 80)
                    for i in range(first // BLOCK, (end + BLOCK - 1) // BLOCK):
                        low = max(first - i * BLOCK, 0)
                        high = min(end - i * BLOCK, BLOCK)
                        digest = zlib.crc32(self.words[:, table[i], ..., low:high, :].tobytes(), digest)
                token = digest % 1000
                sampled[name] = [token]
        return sampled

    def run(self, seconds_max: float = 60) -> None:
        """Until there is nothing to do. As vLLM does, waits a moment after a step that computed nothing."""
        until = time.monotonic() + seconds_max
        while self.scheduler.has_requests():
            assert time.monotonic() < until, "the scheduler does not come to an end"
            self.step()
            if not self.has_computed:
                time.sleep(0.001)

    def generate(self, *prompts: list[int], max_tokens: int = 8, **more: Any) -> list[list[int]]:
        names = [self.add(prompt, max_tokens, **more) for prompt in prompts]
        self.run()
        return [self.tokens[name] for name in names]

    def last_cached(self) -> int:
        return list(self.cached.values())[-1]

    def close(self) -> None:
        if self.worker is not None:
            self.worker.shutdown()
        self.scheduler.shutdown()
