"""Options, and the namespace of one host pool's pages.

Unsupported settings are refused here, at the engine's start, by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..doors.identity import short
from ..doors.options import StoreOptions
from ..namespaces import Namespace
from .compat import engine_name
from .identity import Facts

#: SGLang's own keys in the same mapping.
_OF_SGLANG = (
    *("backend_name", "module_path", "class_name", "interface_v1", "allocator", "tp_lcm_size"),
    *("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token"),
    "hicache_storage_pass_prefix_keys",
)


@dataclass(frozen=True)
class Options(StoreOptions):
    """``--hicache-storage-backend-extra-config``. Times are in seconds, each for one call of SGLang's."""

    place = "hicache_storage_backend_extra_config"
    #: Limit on memory lent to nodes, half for loads and half for saves.
    staging_bytes: int = 512 << 20
    #: How many parts the kv heads of a page are divided into. Engines share pages if this is equal and divisible by each one's
    #: tensor-parallel size. 0: as many as this engine has ranks.
    head_groups: int = 0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        return super().of({name: value for name, value in given.items() if name not in _OF_SGLANG})


@dataclass(frozen=True)
class Ranks:
    """This process's place in the engine. DP ranks are not distinguished: they hold the same bytes for the same tokens."""

    tp_rank: int
    tp_size: int
    pp_size: int
    cp_rank: int
    cp_size: int
    #: All tensor-parallel ranks hold the same pages, and the first one stores.
    is_replicated: bool

    @classmethod
    def of(cls, config: Any) -> Ranks:
        return cls(
            config.tp_rank,
            config.tp_size,
            config.pp_size,
            config.attn_cp_rank,
            config.attn_cp_size,
            config.is_mla_model,
        )


@dataclass(frozen=True)
class PoolText:
    """A pool's pages in words: with these equal, equal names mean equal bytes."""

    name: str
    layout: str
    dtype: str
    page_tokens: int
    text: str
    block_bytes: int
    part_count: int
    #: Set if only this rank has such pages.
    rank: str | None
    layers: tuple[int, int]


def namespace_of(facts: Facts, options: Options, ranks: Ranks, pool: PoolText) -> Namespace:
    return Namespace(
        {
            **options.fields(facts.model),
            **facts.fields,
            "kind": "set",
            "dtype": pool.dtype,
            "block_bytes_max": pool.block_bytes,
            "layout": pool.layout,
            "cache_group": pool.name,
            "hash": "sglang",
            "x.engine": engine_name(),
            "x.page_size": pool.page_tokens,
            "x.pool": short(pool.text),
            "x.kv_dtype": facts.kv_dtype,
            "x.draft": facts.draft,
            "lora": facts.adapters,
            "rope": facts.rotation,
            "x.parts": pool.part_count if pool.part_count > 1 else None,
            "x.rank": pool.rank,
            # Context-parallel ranks each hold another part of a page.
            "x.cp_rank": f"{ranks.cp_rank} of {ranks.cp_size}" if ranks.cp_size > 1 else None,
            "layer_range": f"{pool.layers[0]}-{pool.layers[1] - 1}" if ranks.pp_size > 1 else None,
        }
    )
