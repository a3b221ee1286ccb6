"""A connector beside the store's in MultiConnector: promises full blocks once per request, writes wrong bytes, reports failure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)


@dataclass
class Meta(KVConnectorMetadata):
    pages: dict[str, list[int]] = field(default_factory=dict)


class FickleConnector(KVConnectorBase_V1, SupportsHMA):
    """``is_async`` in the extra config: requests wait for it. ``is_mute``: it never reports their end."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.is_async, self.is_mute = bool(extra.get("is_async")), bool(extra.get("is_mute"))
        self.block_size = vllm_config.cache_config.block_size
        self.tried: set[str] = set()
        self.meta = Meta()
        self.layers: list[torch.Tensor] = []
        self.bad: set[int] = set()
        self.ended: set[str] = set()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        count = (request.num_tokens - 1) // self.block_size * self.block_size - num_computed_tokens
        if request.request_id in self.tried or count <= 0:
            return 0, False
        return count, self.is_async

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.tried.add(request.request_id)
        if num_external_tokens > 0:
            pages = blocks.get_block_ids()[0][: (request.num_tokens - 1) // self.block_size]
            self.meta.pages[request.request_id] = pages[-(num_external_tokens // self.block_size) :]

    def build_connector_meta(self, scheduler_output: Any) -> Meta:
        meta, self.meta = self.meta, Meta()
        return meta

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        return False, None

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.layers = list(kv_caches.values())

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        meta = self._get_connector_metadata()
        assert isinstance(meta, Meta)
        for request, pages in meta.pages.items():
            for layer in self.layers:
                layer[pages] = 3.0
            if not self.is_mute:
                self.bad |= set(pages)
                self.ended |= {request} if self.is_async else set()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        ended, self.ended = self.ended, set()
        return KVConnectorTransferResults(finished_recving=ended)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self.get_transfer_results(finished_req_ids).finished_recving or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        bad, self.bad = self.bad, set()
        return bad

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass
