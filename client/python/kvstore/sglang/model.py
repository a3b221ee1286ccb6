"""Options, and the namespaces of host pools' pages.

Unsupported settings are refused here, at the engine's start, by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..doors.options import StoreOptions
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


def fields_of(facts: Facts, options: Options, config: Any) -> dict[str, object]:
    """Fields of the namespaces of all pools. ``config``: SGLang's own for this rank. DP ranks are not distinguished: they hold the same bytes
    for the same tokens.
    """
    return {
        **options.fields(facts.model),
        **facts.fields,
        "kind": "set",
        "hash": "sglang",
        "x.engine": engine_name(),
        "x.kv_dtype": facts.kv_dtype,
        "x.draft": facts.draft,
        "lora": facts.adapters,
        "rope": facts.rotation,
        # Context-parallel ranks each hold another part of a page.
        "x.cp_rank": f"{config.attn_cp_rank} of {config.attn_cp_size}" if config.attn_cp_size > 1 else None,
    }
