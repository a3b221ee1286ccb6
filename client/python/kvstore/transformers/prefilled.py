"""The answer of a prefill: a cache to generate from, and where each token of the prompt came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache, GenerationMixin

from ..errors import Error, Unsupported
from ..pml import Range

__all__ = ["Origin", "Prefilled", "RangeOrigins", "origins_of"]


class Origin(IntEnum):
    """Where a token's keys and values came from."""

    STORED = 0  #: The store had them.
    ENCODED = 1  #: Of a module that the store lacked: encoded alone now, and put.
    COMPUTED = 2  #: Text and arguments; in mode exact all that is behind the stored prefix.
    RECOMPUTED = 3  #: Of a module, computed again with all that is before it.


@dataclass(frozen=True)
class RangeOrigins:
    """How many tokens of one of the plan's ranges came from where."""

    kind: str
    name: str
    stored: int
    encoded: int
    computed: int
    recomputed: int


def origins_of(ranges: Sequence[Range], origins: npt.NDArray[np.int64]) -> tuple[RangeOrigins, ...]:
    """``origins`` has one :class:`Origin` for each token of the ranges, end to end."""
    ends = np.cumsum([len(each.tokens) for each in ranges])
    counts = [np.bincount(own, minlength=len(Origin)).tolist() for own in np.split(origins, ends[:-1])]
    return tuple(RangeOrigins(each.kind, each.name, *own) for each, own in zip(ranges, counts, strict=True))


@dataclass(frozen=True)
class Prefilled:
    """A prompt's cache. ``logits`` ``[1, vocabulary]`` choose the next token, which has position ``length``. ``why``: an error for which
    tokens were computed that the store might have had, or were not stored; None: there was none.
    """

    mode: str
    cache: DynamicCache
    logits: torch.Tensor
    tokens: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    length: int
    ranges: tuple[RangeOrigins, ...]
    why: Error | None

    @property
    def stored(self) -> int:
        """Tokens that the store had; likewise the others, over all ranges."""
        return sum(each.stored for each in self.ranges)

    @property
    def encoded(self) -> int:
        return sum(each.encoded for each in self.ranges)

    @property
    def computed(self) -> int:
        return sum(each.computed for each in self.ranges)

    @property
    def recomputed(self) -> int:
        return sum(each.recomputed for each in self.ranges)

    def inputs(self) -> dict[str, Any]:
        """Arguments for one ``model.generate(**inputs, ...)``, which computes the last token again and then owns the cache."""
        places = np.append(self.positions[1:], self.length)
        if (np.diff(places) != 1).any() and not hasattr(GenerationMixin, "_prepare_position_ids_for_generation"):
            raise Unsupported("positions: this release of transformers generates at positions without gaps only")
        if self.cache.get_seq_length() == len(self.tokens):
            self.cache.crop(-1)
        device = self.logits.device
        ids = torch.from_numpy(self.tokens).unsqueeze(0).to(device)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "position_ids": torch.from_numpy(self.positions).unsqueeze(0).to(device),
            "past_key_values": self.cache,
        }
