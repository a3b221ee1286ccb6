"""vLLM's own scheduler and block pool with the connector's two halves, and arithmetic in place of a model.

A token's state depends on the state before, and the next token on all pages of the sequence: one wrong byte changes the tokens.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.metrics.stats import PrefixCacheStats, SchedulerStats
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from kvstore.vllm import KVStoreConnector, compat
from kvstore.vllm.compat import CacheHitSource

BLOCK = 32
HEADS, SIZE, LAYERS = 2, 8, 2
MASK = (1 << 63) - 1
#: Fields of KVCacheConfig in this release.
KNOWN = KVCacheConfig.__dataclass_fields__
#: Whether KVCacheTensor states each layer's place.
HAS_PLACES = "layer_stride" in KVCacheTensor.__dataclass_fields__
TAKES_HASH_TOKENS = "hash_block_size" in inspect.signature(Scheduler).parameters
#: From 0.32 on vLLM asks where hits come from.
HAS_SOURCES = "hits_by_source" in PrefixCacheStats.__dataclass_fields__
#: Models are made in the process that then loads them.
compat.load_began = lambda: math.inf


class Worker:
    """vLLM's worker as its connector sees it: it has loaded a model and adapters, and makes the calls."""

    def __init__(self, weight: float = 1.0) -> None:
        self.model = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
        self.change(weight)
        self.adapters: dict[int, Any] = {}
        manager = SimpleNamespace(list_adapters=lambda: self.adapters)
        self.model_runner = SimpleNamespace(lora_manager=SimpleNamespace(_adapter_manager=manager))

    def get_model(self) -> torch.nn.Module:
        return self.model

    def change(self, weight: float) -> None:
        """As an update of the weights does."""
        for each in self.model.parameters():
            torch.nn.init.constant_(each, weight)

    def load(self, lora: Any, content: int) -> None:
        if lora.load_inplace or lora.lora_int_id not in self.adapters:
            layer = SimpleNamespace(module_name=lora.lora_name, rank=1, lora_a=torch.full((1, 4), content))
            self.adapters[lora.lora_int_id] = SimpleNamespace(id=lora.lora_int_id, loras={"q": layer})

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        return method(*arguments)


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
            # Little lent memory, since all of it is touched at the start.
            "kv_connector_extra_config": {
                "endpoints": endpoint,
                "lookup_timeout": 5.0,
                "load_timeout": 5.0,
                "staging_bytes": 16 << 20,
                # Computing takes no time here: otherwise every hit would be computed.
                "compute_cheap_hits": False,
            }
            | options,
        }
    if beside is not None:
        arguments["kv_transfer_config"] = {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": policy,
            "kv_connector_extra_config": {"connectors": [beside, arguments["kv_transfer_config"]]},
        }
    return EngineArgs(**(arguments | more)).create_engine_config()


def _tensors(groups: list[KVCacheGroupSpec], page_count: int) -> list[KVCacheTensor]:
    """One allocation, layer after layer, shared by all groups."""
    page = groups[0].kv_cache_spec.page_size_bytes
    layer = page * page_count
    return [KVCacheTensor(len(group.layer_names) * layer, list(group.layer_names), layer, page) for group in groups]


def cache_config(
    page_count: int,
    windows: bool = False,
    heads: int = HEADS,
    layers: range = range(LAYERS),
    states: bool = False,
    **more: Any,
) -> KVCacheConfig:
    """One rank's configuration, with so many heads of these layers."""
    common = {"block_size": BLOCK, "num_kv_heads": heads, "head_size": SIZE, "dtype": torch.bfloat16}
    groups = [KVCacheGroupSpec([f"full.{i}" for i in layers], FullAttentionSpec(**common))]
    if windows:
        spec = SlidingWindowSpec(**common, sliding_window=80)
        groups += [KVCacheGroupSpec([f"window{g}.{i}" for i in layers], spec) for g in range(2)]
    if states:
        page = heads * BLOCK * 2 * SIZE * 2  # as large as the others
        state = MambaSpec(block_size=BLOCK, shapes=((page,),), dtypes=(torch.uint8,), mamba_cache_mode="align")
        groups += [KVCacheGroupSpec([f"state{g}.{i}" for i in layers], state) for g in range(2)]
    given = {
        "num_blocks": page_count,
        "kv_cache_tensors": _tensors(groups, page_count) if HAS_PLACES else [],
        "kv_cache_groups": groups,
        "kv_cache_layout": "LBHNC",
        "hash_block_size": BLOCK,
    } | more
    return KVCacheConfig(**{name: value for name, value in given.items() if name in KNOWN})


def named(model: Any, config: VllmConfig) -> Any:
    """A Model with the namespace that a worker gives it."""
    from kvstore.vllm.identity import identity_of

    model.name_by(identity_of(config, model.options, Worker()))
    return model


def ours(connector: Any) -> Any:
    """The store's connector: itself, or the last in MultiConnector."""
    return (getattr(connector, "sub_connectors", None) or getattr(connector, "_connectors", [connector]))[-1]


class Engine:
    """``between``: called in each step after the scheduler's part, before the workers'. ``beside``: the configuration of another connector,
    which is asked first. Heads are divided among ``ranks``, each followed by ``replicas`` - 1 others with the same bytes; layers among
    ``stages``. With ``states``, two groups of layers keep a state instead of every token.
    """

    def __init__(
        self,
        model: Path,
        endpoint: str | None,
        *,
        page_count: int = 200,
        windows: bool = False,
        heads: int = HEADS,
        ranks: int = 1,
        replicas: int = 1,
        stages: int = 1,
        states: bool = False,
        hash_tokens: int = BLOCK,
        weight: float = 1.0,
        adapters: dict[str, int] | None = None,
        **more: Any,
    ) -> None:
        #: Content of an adapter's folder, by its path. It alone determines the results.
        self.contents = adapters or {}
        self.config = engine_config(model, endpoint, **more)
        self.config.cache_config.num_gpu_blocks = page_count
        self.config.parallel_config.tensor_parallel_size = ranks * replicas
        self.config.parallel_config.pipeline_parallel_size = stages
        self.config.parallel_config.world_size = ranks * replicas * stages
        of_stage = LAYERS // stages
        self.config.cache_config.mamba_cache_mode = "align" if states else "none"
        if hash_tokens != BLOCK:
            self.config.cache_config.prefix_match_unit = hash_tokens
        caches = [
            cache_config(
                page_count,
                windows,
                heads // ranks,
                range(i * of_stage, (i + 1) * of_stage),
                states,
                kv_tp_replicas=replicas,
                hash_block_size=hash_tokens,
            )
            for i in range(stages)
        ]
        self.cache = caches[0]
        #: The workers' connectors, by stage and then by rank.
        self.workers: list[Any] = []
        self.loaded: list[Worker] = []
        # [layer, page, head, token, word, part] of each worker, and its first layer and head
        self.words: list[Any] = []
        self.corners: list[tuple[int, int]] = []
        for number in range(ranks * replicas * stages):
            stage, rank = divmod(number, ranks * replicas)
            # One allocation, layer after layer; each group has the same pages, as in an engine.
            shape = (of_stage, 1, page_count, heads // ranks, BLOCK, 2 * SIZE)
            memory = torch.zeros(shape, dtype=torch.bfloat16)
            self.words.append(np.moveaxis(memory.view(torch.uint8).view(torch.int64).numpy(), 1, -1))
            self.corners.append((stage * of_stage, rank // replicas * (heads // ranks)))
            if endpoint is None:
                continue
            config = copy.copy(self.config)
            config.parallel_config = copy.copy(config.parallel_config)
            config.parallel_config.rank = number
            self.workers.append(KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, caches[stage]))
            self.loaded.append(Worker(weight))
            self.loaded[-1].call(
                self.workers[-1].register_kv_caches,
                {
                    name: self._given(
                        memory[i, 0].flatten(1)[:, None, None].view(torch.uint8)
                        if name.startswith("state")
                        else memory[i].squeeze(0),
                        memory,
                    )
                    for group in caches[stage].kv_cache_groups
                    for i, name in enumerate(group.layer_names)
                },
            )
        self.worker = self.workers[0] if self.workers else None
        self.is_state = [isinstance(group.kv_cache_spec, MambaSpec) for group in self.cache.kv_cache_groups]
        self.aggregator = KVOutputAggregator(len(self.workers))
        # So that the bytes of each layer and head are unique.
        salts = np.arange(LAYERS * heads, dtype=np.int64).reshape(LAYERS, heads, 1, 1) * 0x1234567
        self.salts = [salts[layer : layer + of_stage, head : head + heads // ranks] for layer, head in self.corners]
        #: Workers to read: one of each set of replicas.
        self.read = [number for number in range(len(self.words)) if number % replicas == replicas - 1]
        self.columns = ranks
        hash_function = get_hash_fn_by_name(self.config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_function)
        self.hasher = get_request_block_hasher(hash_tokens, hash_function)
        self.scheduler = Scheduler(
            vllm_config=self.config,
            kv_cache_config=self.cache,
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=BLOCK,
            log_stats=True,
            **({"hash_block_size": hash_tokens} if TAKES_HASH_TOKENS else {}),
        )
        self._collect_words(ranks * replicas)
        self.between: Callable[[], None] = lambda: None
        self.tokens: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.names = (f"request-{i}" for i in itertools.count())
        self.preemptions = 0
        self.silent: set[int] = set()
        self.has_computed = False
        self.stats = (type(self.worker) if self.worker else KVStoreConnector).build_kv_connector_stats()
        self.hits_by_source: dict[CacheHitSource, int] = {}

    def _collect_words(self, rank_count: int) -> None:
        """Passes on the workers' handshakes, as vLLM does before the first step."""
        said = {
            divmod(number, rank_count): worker.call(connector.get_handshake_metadata)
            for number, (worker, connector) in enumerate(zip(self.loaded, self.workers, strict=True))
        }
        if said := {at: each for at, each in said.items() if each is not None}:
            self.scheduler.connector.set_xfer_handshake_metadata_pp_aware(said)

    # -- pages on the host

    def _given(self, tensor: torch.Tensor, memory: torch.Tensor) -> Any:
        """The worker's view of a tensor in ``memory``."""
        return tensor

    def _begin_forward(self) -> None:
        """Makes the pages visible to the arithmetic."""

    def _end_forward(self) -> None:
        """Makes its results visible to the workers."""

    @property
    def side(self) -> Any:
        return ours(self.scheduler.connector)._scheduler

    @property
    def worker_side(self) -> Any:
        return ours(self.worker)._worker

    def add(self, prompt: list[int], max_tokens: int = 8, params: dict[str, Any] | None = None, **more: Any) -> str:
        """``params``: the request's kv_transfer_params."""
        name = next(self.names)
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        if params is not None:
            sampling.extra_args = {"kv_transfer_params": params}
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
        loads_first = output.has_sync_kv_loads
        for worker in self.workers:
            worker.bind_connector_metadata(output.kv_connector_metadata)
            if loads_first:
                worker.start_load_kv(None)
        self._begin_forward()
        for copied in getattr(output, "kv_cache_block_copies", None) or ():
            for words in self.words:
                words[:, copied.dst_block_id] = words[:, copied.src_block_id]
        self.has_computed = output.total_num_scheduled_tokens > 0
        self._load_adapters(output.num_scheduled_tokens)
        sampled = self._compute(output.num_scheduled_tokens)
        self._end_forward()
        names = list(output.num_scheduled_tokens)
        told = [self._told(number, output, names, sampled) for number in range(max(1, len(self.workers)))]
        answer = self.aggregator.aggregate(told) if self.workers else told[0]
        self.preemptions = max(
            [self.preemptions] + [request.num_preemptions for request in self.scheduler.requests.values()]
        )
        outputs = self.scheduler.update_from_output(
            output,
            answer,
        )
        for each in outputs.values():
            for answer in each.outputs:
                self.tokens[answer.request_id] += answer.new_token_ids
            if each.scheduler_stats is not None:
                self._count(each.scheduler_stats)

    def _load_adapters(self, names: Iterable[str]) -> None:
        for name in names:
            lora = self.scheduler.requests[name].lora_request
            for worker in self.loaded if lora is not None else ():
                worker.load(lora, self.contents.get(lora.lora_path, zlib.crc32(lora.lora_path.encode())))

    def _told(self, number: int, output: Any, names: list[str], sampled: dict[str, list[int]]) -> ModelRunnerOutput:
        """A worker's output at a step's end. Workers in ``silent`` do not check their loads."""
        connector_output = None
        if self.workers:
            worker = self.workers[number]
            if not output.has_sync_kv_loads:
                worker.start_load_kv(None)
            worker.wait_for_save()
            results = KVConnectorTransferResults()
            if number not in self.silent:
                results = worker.get_transfer_results(output.finished_req_ids)
            connector_output = KVConnectorOutput(
                finished_sending=results.finished_sending,
                finished_recving=results.finished_recving,
                failed_recving=results.failed_recving,
                invalid_block_ids=worker.get_block_ids_with_load_errors(),
                kv_connector_stats=worker.get_kv_connector_stats(),
                kv_connector_worker_meta=worker.build_connector_worker_meta(),
            )
            worker.clear_connector_metadata()
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[sampled[name] for name in names],
            kv_connector_output=connector_output,
        )

    def _write(self, page: int, position: int, value: int) -> None:
        for words, salts in zip(self.words, self.salts, strict=True):
            words[:, page, :, position % BLOCK, :] = value ^ salts

    def _run_state(self, table: list[int], begin: int, end: int, tokens: Any) -> None:
        """The state after a chunk depends on the previous state and on the chunk's tokens."""
        state = int(self.words[0][0, table[(begin - 1) // BLOCK], 0, 0, 0, 0]) if begin else 11
        for position in range(begin, end):
            state = (state * 2862933555777941757 + tokens[position] * 3037000493 + 1) & MASK
        for words, salts in zip(self.words, self.salts, strict=True):
            words[:, table[(end - 1) // BLOCK]] = state ^ salts[:, :, None]

    def _bytes(self, page: int, low: int, high: int) -> bytes:
        """As if from a single rank: layers first, then heads."""
        parts = [self.words[number][:, page, :, low:high] for number in self.read]
        rows = [np.concatenate(parts[i : i + self.columns], axis=1) for i in range(0, len(parts), self.columns)]
        return np.concatenate(rows).tobytes()

    def _count(self, stats: SchedulerStats) -> None:
        """Collects the statistics for vLLM's front end."""
        if stats.kv_connector_stats:
            self.stats.aggregate(type(self.worker).build_kv_connector_stats(stats.kv_connector_stats))
        if HAS_SOURCES and stats.connector_prefix_cache_stats is not None:
            for source, tokens in stats.connector_prefix_cache_stats.hits_by_source.items():
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
            value = int(self.words[0][0, full[(begin - 1) // BLOCK], 0, (begin - 1) % BLOCK, 0, 0]) if begin else 7
            if begin == 0 and request.lora_request is not None:
                path = request.lora_request.lora_path
                value += self.contents.get(path, zlib.crc32(path.encode()))
            for position in range(begin, end):
                value = (value * 6364136223846793005 + request.all_token_ids[position] * 1442695040888963407 + 1) & MASK
                for g, table in enumerate(tables):
                    page = table[position // BLOCK]
                    if page and not self.is_state[g]:
                        self._write(page, position, value)
            for g in np.flatnonzero(self.is_state):
                self._run_state(tables[g], begin, end, request.all_token_ids)
            sampled[name] = []
            if end == request.num_tokens:
                digest = 0
                for g, table in enumerate(tables):
                    if self.is_state[g]:
                        digest = zlib.crc32(self._bytes(table[(end - 1) // BLOCK], 0, BLOCK), digest)
                        continue
                    first = 0 if g == 0 else max(0, end - 80)
                    for i in range(first // BLOCK, (end + BLOCK - 1) // BLOCK):
                        low = max(first - i * BLOCK, 0)
                        high = min(end - i * BLOCK, BLOCK)
                        digest = zlib.crc32(self._bytes(table[i], low, high), digest)
                token = digest % 1000
                sampled[name] = [token]
        return sampled

    def run(self, seconds_max: float = 60) -> None:
        """Runs until idle. As vLLM does, waits a moment after a step that computed nothing."""
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
        for worker in self.workers:
            worker.shutdown()
        self.scheduler.shutdown()
