"""Changes as the events of vLLM and SGLang, and batches of events, before msgpack.

As in vLLM 0.32.0 and SGLang 0.5.23: a batch is a list [time, events, rank], an event a mapping whose ``type`` is its class. The store has
no tokens: ``token_ids`` is empty, and so are ``lora_id`` and ``lora_name``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .source import Change

CLEARED: Mapping[str, Any] = {"type": "AllBlocksCleared"}


@dataclass(frozen=True)
class Encoding:
    media: Mapping[str, str]
    name: Callable[[bytes], bytes | int]
    #: Fields of every BlockStored, and of every event.
    stored: Mapping[str, Any] = field(default_factory=dict)
    both: Mapping[str, Any] = field(default_factory=dict)

    def events(self, changes: Iterable[Change]) -> list[dict[str, Any]]:
        """Consecutive blocks of a chain become one event, and so do consecutive removals."""
        made: list[dict[str, Any]] = []
        last: Change | None = None
        for each in changes:
            name = self.name(each.name)
            if last is not None and self._goes_on(last, each):
                made[-1]["block_hashes"].append(name)
            elif each.is_stored:
                event: dict[str, Any] = {
                    "type": "BlockStored",
                    "block_hashes": [name],
                    "parent_block_hash": None if each.parent is None else self.name(each.parent),
                    "token_ids": [],
                    "block_size": each.space.block_size,
                    "lora_id": None,
                    "medium": self.media[each.tier],
                }
                made.append(event | dict(self.stored) | dict(self.both))
            else:
                removed = {"type": "BlockRemoved", "block_hashes": [name], "medium": self.media[each.tier]}
                made.append(removed | dict(self.both))
            last = each
        return made

    @staticmethod
    def _goes_on(last: Change, each: Change) -> bool:
        if last.is_stored != each.is_stored or last.tier != each.tier or last.space is not each.space:
            return False
        return not each.is_stored or each.parent == last.name


_REMOTE = {"locality": "REMOTE", "ownership": "kvstore"}

ENCODINGS: Mapping[str, Encoding] = {
    "vllm": Encoding({"memory": "CPU", "disk": "STORAGE"}, bytes, {"lora_name": None}, _REMOTE),
    # With VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES: the last 64 bits.
    "vllm-int": Encoding(
        {"memory": "CPU", "disk": "STORAGE"},
        lambda name: int.from_bytes(name[-8:], "big"),
        {"lora_name": None},
        _REMOTE,
    ),
    # The first 64 bits, with a sign.
    "sglang": Encoding(
        {"memory": "EXTERNAL", "disk": "DISK"}, lambda name: int.from_bytes(name[:8], "big", signed=True)
    ),
}
