"""A model's forward pass over tokens at given positions."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import Cache

from ..errors import Unsupported

__all__ = ["PositionedModel"]

#: Attention that takes a mask of its caller.
_MASKED = ("eager", "sdpa")


class PositionedModel:
    """Runs a model over tokens whose positions have gaps. Refuses models without positions as an argument."""

    def __init__(self, model: Any) -> None:
        name = type(model).__name__
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT's forward takes anything
        accepted = inspect.signature(inner.forward).parameters
        if "position_ids" not in accepted:
            raise Unsupported(f"{name}: it takes no position_ids, as models with ALiBi do not")
        attention = getattr(model.config, "_attn_implementation", None) or "eager"
        if attention not in _MASKED:
            raise Unsupported(f"attn_implementation: {attention!r} takes no mask, allowed are {', '.join(_MASKED)}")
        self._check_layers(name, model.config)
        self.model = model
        self.device = next(model.parameters()).device
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def __call__(
        self, tokens: npt.NDArray[Any], positions: npt.NDArray[Any], cache: Cache, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Adds the tokens to ``cache``. Returns the last one's logits ``[1, vocabulary]``. Without a mask each token sees all before it."""
        if mask is None:  # all ones: without a mask at all, transformers takes gaps for ends of sequences
            mask = torch.ones((1, cache.get_seq_length() + len(tokens)), dtype=torch.long)
        with torch.no_grad():
            out = self.model(
                input_ids=self._row(tokens),
                position_ids=self._row(positions),
                attention_mask=mask.to(self.device),
                past_key_values=cache,
                use_cache=True,
                **self._options,
            )
        return out.logits[:, -1]

    def _row(self, numbers: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.int64)).unsqueeze(0).to(self.device)

    @staticmethod
    def _check_layers(name: str, config: Any) -> None:
        """Raises where a token does not see all that are before it."""
        inner = config.get_text_config(decoder=True)
        kinds = getattr(inner, "layer_types", None)
        other = sorted({str(each) for each in kinds or () if each != "full_attention"})
        if other:
            raise Unsupported(f"{name}: layers of {', '.join(other)}; modules need full attention in all layers")
        for field in ("sliding_window", "attention_chunk_size", "num_kv_shared_layers"):
            # Of a window that is set and not used, layer_types tells.
            if getattr(inner, field, None) and (kinds is None or field == "num_kv_shared_layers"):
                raise Unsupported(
                    f"{name}: {field} is {getattr(inner, field)}; modules need full attention in all layers"
                )
