"""An engine's blocks: its cache groups, their sizes, and their layout in the namespace that a worker names.

Unsupported settings are refused here, at the engine's start, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, MLAAttentionSpec, SlidingWindowSpec

from ..doors.groups import LayerGroup
from ..doors.identity import digest, short
from ..doors.names import BlockNames
from ..doors.options import StoreOptions as AnyStoreOptions
from ..errors import BadRequest, Unsupported
from ..namespaces import Namespace
from . import compat


@dataclass(frozen=True)
class StoreOptions(AnyStoreOptions):
    """Options common to all of vLLM's connections to the store."""

    #: How long a request waits for the store's answer before it is computed.
    lookup_timeout: float = 0.02


@dataclass(frozen=True)
class Options(StoreOptions):
    """``kv_connector_extra_config``."""

    place = "kv_connector_extra_config"
    lookup_timeout: float = 0.002
    #: Memory lent to nodes: half for loads, half for saves.
    staging_bytes: int = 512 << 20
    #: Whether blocks of generated tokens are stored too.
    save_decode: bool = True
    #: Hits of fewer blocks are computed.
    load_blocks_min: int = 1
    #: Whether hits are computed where measurements show that to be faster than loading.
    compute_cheap_hits: bool = True
    #: How many parts the kv heads of a block are divided into. Engines share blocks if this is equal and divisible by each one's
    #: tensor-parallel size. 0: as many as this engine has ranks with heads of their own.
    head_groups: int = 0


@dataclass(frozen=True)
class Group(LayerGroup):
    """Layers that share a page table."""

    layers: tuple[str, ...]
    page_bytes: int
    window_tokens: int
    text: str
    is_state: bool = False
    #: A rank's share of a block is stored in so many parts of some kv heads each.
    part_count: int = 1

    @property
    def block_bytes(self) -> int:
        """Bytes of one part."""
        return self.page_bytes // self.part_count * len(self.layers)


class Model(BlockNames):
    """An engine's blocks, the same for the scheduler and all workers.

    1. Equal namespaces mean equal bytes under equal names, whichever process made them.
    2. The scheduler's half gets its namespaces from the workers. Each pipeline stage has its own.
    3. A block is stored in parts, each under its own name. A part has some kv heads of all layers of a stage, so the number of parts per
       rank depends on the tensor-parallel size. Exactly one rank stores a part.
    """

    groups: tuple[Group, ...]

    def __init__(self, config: Any, cache: Any, options: Options | None = None) -> None:
        """``options``: given by another connector that has checked the engine."""
        if options is None:
            options = Options.of(config.kv_transfer_config.kv_connector_extra_config)
            _check_connector(config)
        self.options = options
        parallel = config.parallel_config
        self.block_size = int(config.cache_config.block_size)
        if not cache.kv_cache_groups:
            raise Unsupported("the model keeps no KV cache")
        #: A block's name is the last of so many vLLM hashes: a hash may cover fewer tokens than a page.
        hash_tokens = compat.hash_tokens(config, cache)
        self.hash_tokens = hash_tokens
        self.hashes_per_block, rest = divmod(self.block_size, hash_tokens)
        if rest != 0:
            raise Unsupported(f"hashes of {hash_tokens} tokens, pages of {self.block_size}")
        self._algorithm = str(config.cache_config.prefix_caching_hash_algo)
        #: Whether a hit may end inside a page, at a hash: then the page and the states there are stored under that hash.
        self.has_tails = compat.hit_tokens(config, cache) == hash_tokens < self.block_size
        self.page_count = int(cache.num_blocks)
        self.is_mla = all(isinstance(each.kv_cache_spec, MLAAttentionSpec) for each in cache.kv_cache_groups)
        #: Ranks of one pipeline stage; worker numbers count these first.
        self.rank_count = int(parallel.tensor_parallel_size)
        self.stage_count = int(parallel.pipeline_parallel_size)
        #: So many consecutive ranks hold the same bytes: the first one stores.
        self.replicas = self.rank_count if self.is_mla else compat.replicas_of(cache)
        if self.rank_count % self.replicas != 0:
            raise Unsupported(f"{self.rank_count} tensor-parallel ranks in sets of {self.replicas}")
        self.shard_count = self.rank_count // self.replicas
        self.layout = compat.layout_of(config, cache)
        if len(self.layout) != 5:
            raise Unsupported(f"kv_cache_layout: {self.layout!r} is not known")
        #: Whether any engine shares parts, or only engines with as many ranks.
        self.has_shared_parts = compat.has_heads_apart(self.layout) or self.is_mla
        #: Parts of a block on all ranks of a stage, and on one rank.
        self.part_count = self._parts_of_all()
        self.parts_per_rank = self.part_count // self.shard_count
        self.groups = tuple(self._group_of(i, each) for i, each in enumerate(cache.kv_cache_groups))
        #: Set by the worker (``name_by``), which sends it to the scheduler's half.
        self.namespace: Namespace | None = None
        self._packing = compat.packing(config, self.block_size, self.is_mla)

    @property
    def block_bytes_max(self) -> int:
        return max(group.block_bytes for group in self.groups)

    @cached_property
    def hasher(self) -> Callable[[Any], list[bytes]]:
        """vLLM's own function: hashes of a request's tokens that ``block_hashes`` lacks."""
        made: Callable[[Any], list[bytes]] = get_request_block_hasher(
            self.hash_tokens, get_hash_fn_by_name(self._algorithm)
        )
        return made

    def hash_count(self, request: Any) -> int:
        """How many of the request's blocks have a name."""
        return len(request.block_hashes) // self.hashes_per_block

    def hashes(self, request: Any, first: int, end: int) -> list[bytes]:
        """Hashes of the blocks from ``first`` up to ``end``."""
        step = self.hashes_per_block
        hashes = request.block_hashes
        if step == 1:
            return list(hashes[first:end])
        return [hashes[i] for i in range((first + 1) * step - 1, end * step, step)]

    def tail_hash(self, request: Any, tokens: int) -> bytes:
        """Hash of the leading ``tokens``, which end at a hash."""
        return bytes(request.block_hashes[tokens // self.hash_tokens - 1])

    def _parts_of_all(self) -> int:
        asked = self.options.head_groups
        if self.is_mla or asked in (0, self.shard_count):
            return self.shard_count
        if not self.has_shared_parts:
            raise Unsupported(
                f"head_groups: pages of the layout {self.layout} do not have the bytes of a kv head in one piece, so that "
                "only whole ranks' parts can be stored. Leave it out"
            )
        if asked % self.shard_count != 0:
            raise BadRequest(
                f"head_groups is {asked}, which {self.shard_count} ranks with heads of their own do not divide"
            )
        return asked

    def _group_of(self, index: int, group: Any) -> Group:
        layers, page_bytes, window, kind = _checked_group(index, group, self.block_size)
        spec = group.kv_cache_spec
        if kind == "state":
            if self.parts_per_rank != 1:
                raise Unsupported(f"head_groups: cache group {index} has states, which cannot be divided")
            shapes = f"{spec.shapes} {spec.dtypes} {spec.mamba_type}"
            text = f"state {len(layers)}x{digest(str(shapes))[:16]} {digest(layers)[:8]}"
            return Group(layers, page_bytes, 0, text, is_state=True)
        heads = compat.head_count(spec)
        if heads % self.parts_per_rank != 0:
            raise BadRequest(
                f"head_groups is {self.part_count}: cache group {index} has {heads * self.shard_count} kv heads on "
                f"{self.shard_count} ranks, which cannot be divided so"
            )
        # Equal for ranks of other sizes: all heads, without a rank.
        text = f"{kind}{window or ''} {len(layers)}x{compat.heads_text(spec, self.shard_count)} {spec.dtype}"
        return Group(layers, page_bytes, window, f"{text} {digest(layers)[:8]}", part_count=self.parts_per_rank)

    def name_by(self, identity: Mapping[str, Any]) -> Namespace:
        """``identity``: the worker's model (identity.py)."""
        self.namespace = Namespace(
            dict(identity)
            | {
                "block_bytes_max": self.block_bytes_max,
                # Only inside a page: the order of pages of layers and blocks does not affect a block. One head is the same in every order.
                "layout": "vllm-" + ("HNC" if self.is_mla else self.layout[-3:]),
                # Pages are copied as they are, and releases or processors may pack them differently.
                "x.engine": f"{compat.engine_name()} {self._packing}",
                "x.block_size": self.block_size,
                # Hash chains over other numbers of tokens differ.
                "x.hash_tokens": self.block_size // self.hashes_per_block if self.hashes_per_block > 1 else None,
                "x.groups": short("; ".join(group.text for group in self.groups)),
                "x.parts" if self.has_shared_parts else "x.ranks": self.part_count if self.part_count > 1 else None,
                "layer_range": _layer_range(self.groups) if self.stage_count > 1 else None,
            }
        )
        return self.namespace


def _check_connector(config: Any) -> None:
    check_engine(config)
    transfer = config.kv_transfer_config
    if transfer.kv_load_failure_policy != "recompute":
        raise BadRequest(
            f"kv_load_failure_policy: {transfer.kv_load_failure_policy!r} fails requests when a node of the store goes "
            'away. Add "kv_load_failure_policy": "recompute" to --kv-transfer-config (inside MultiConnector: to this '
            "connector's entry, and to the outer one)"
        )
    if why := compat.why_not_here():
        raise Unsupported(f"{compat.engine_name()}: {why}")


def check_engine(config: Any) -> None:
    """Raises unless the data kept under a block's hash suffices for the tokens after it."""
    if why := compat.why_too_old():
        raise Unsupported(f"{compat.engine_name()}: {why}")
    parallel = config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) != 1:
            raise Unsupported(f"{name}: {getattr(parallel, name)} is not supported, only 1 is")
    if config.speculative_config is not None:
        _check_speculation(config.speculative_config, parallel)
    if not config.cache_config.enable_prefix_caching:
        raise Unsupported(
            "enable_prefix_caching: it is off, so nothing says that the engine computes rightly what follows a hit. Set "
            "--enable-prefix-caching. vLLM turns it off by itself for MLA on a CPU without AMX: what its kernels compute there "
            "after a hit is wrong"
        )
    algorithm = config.cache_config.prefix_caching_hash_algo
    if compat.draws_hashes(algorithm):
        raise BadRequest(
            f"prefix_caching_hash_algo: {algorithm!r} begins with a seed that each process draws for itself, so that no "
            "other process finds a block. Set PYTHONHASHSEED to one value for all engines; "
            "--prefix-caching-hash-algo sha256_cbor does without"
        )
    if algorithm not in ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor"):
        raise Unsupported(f"prefix_caching_hash_algo: {algorithm!r} is not known")


def _check_speculation(speculative: Any, parallel: Any) -> None:
    """A draft model's keys and values lie in the same pages and are stored with the rest; an n-gram table has none."""
    if not compat.SERVES_DRAFTS:
        raise Unsupported(f"{compat.engine_name()}: speculative_config: speculative decoding is served from 0.32 on")
    if speculative.method not in ("draft_model", "ngram"):
        raise Unsupported(
            f"speculative_config: method {speculative.method!r} is not supported, only draft_model and ngram are: what layers "
            "that read the model's hidden states keep of a token depends on the token after it, which a block's name does not know"
        )
    if speculative.method == "ngram":
        return
    if parallel.pipeline_parallel_size != 1:
        raise Unsupported("speculative_config: a draft model beside pipeline_parallel_size over 1 is not supported")
    ranks = speculative.draft_tensor_parallel_size
    if ranks not in (None, parallel.tensor_parallel_size):
        raise Unsupported(
            f"speculative_config: draft_tensor_parallel_size is {ranks}, only that of the model is supported: "
            f"{parallel.tensor_parallel_size}"
        )


def _checked_group(index: int, group: Any, block_size: int) -> tuple[tuple[str, ...], int, int, str]:
    """Layers, bytes of a page, tokens of a window, and the kind's name."""
    spec = group.kv_cache_spec
    name = type(spec).__name__
    kinds = {FullAttentionSpec: "full", MLAAttentionSpec: "mla", SlidingWindowSpec: "window", MambaSpec: "state"}
    if type(spec) not in kinds:
        raise Unsupported(
            f"cache group {index}: {name} is not supported, only {', '.join(k.__name__ for k in kinds)} are"
        )
    if spec.block_size != block_size:
        raise Unsupported(f"cache group {index}: pages of {spec.block_size} tokens, others have {block_size}")
    if type(spec) is MambaSpec:
        if spec.mamba_cache_mode != "align":
            raise Unsupported(
                f"cache group {index}: mamba_cache_mode {spec.mamba_cache_mode!r} keeps no states that could be stored. Set "
                "--mamba-cache-mode align"
            )
    elif spec.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise Unsupported(f"cache group {index}: a quantised cache ({spec.dtype}) is not supported")
    window = int(spec.sliding_window) if type(spec) is SlidingWindowSpec else 0
    if not compat.is_plain(group):
        raise Unsupported(
            f"cache group {index}: {name} of a draft model, of the host, quantised or of compressed states"
        )
    return tuple(group.layer_names), int(spec.real_page_size_bytes), window, kinds[type(spec)]


def _layer_range(groups: tuple[Group, ...]) -> str:
    """The first and last layer of a pipeline stage, by the numbers in their names."""
    numbers = [int(part) for group in groups for name in group.layers for part in name.split(".") if part.isdigit()]
    if not numbers:
        raise Unsupported("pipeline_parallel_size: layers without numbers in their names are not supported")
    return f"{min(numbers)}-{max(numbers)}"
