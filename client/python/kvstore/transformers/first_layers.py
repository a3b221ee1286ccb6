"""The first layers of a model, computed for all tokens of a prompt; later passes over some of the tokens begin behind them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import torch
from transformers import DynamicCache

from .positioned import PositionedModel

__all__ = ["FirstLayers"]


class FirstLayers:
    """``cache`` has keys and values of the first ``count`` layers and of the next one."""

    def __init__(
        self,
        run: PositionedModel,
        tokens: npt.NDArray[Any],
        positions: npt.NDArray[Any],
        *,
        count: int,
        layer_count: int,
    ) -> None:
        self.cache = _EndsEarly(count)
        self._layers = _layers_of(run.model, layer_count)[:count]
        self._output: Any = None
        hook = self._layers[-1].register_forward_hook(self._keep) if self._layers else None
        try:
            with contextlib.suppress(_Reached):
                run(tokens, positions, self.cache)
        finally:
            if hook is not None:
                hook.remove()

    @contextlib.contextmanager
    def passed_over(self, rows: torch.Tensor) -> Iterator[None]:
        """Meanwhile these layers compute nothing: the last one gives its output for the tokens in ``rows``."""
        if self._output is None:
            yield
            return
        hidden, *others = self._output if isinstance(self._output, tuple) else [self._output]
        own = hidden[:, rows.to(hidden.device)]
        output = (own, *others) if isinstance(self._output, tuple) else own
        before = [vars(each).get("forward") for each in self._layers]
        try:
            for each in self._layers:
                each.forward = lambda *_, **__: output
            yield
        finally:
            for each, forward in zip(self._layers, before, strict=True):
                del each.forward
                if forward is not None:  # a library's own, such as accelerate's
                    each.forward = forward

    def _keep(self, _layer: Any, _arguments: Any, output: Any) -> None:
        self._output = output


def _layers_of(model: torch.nn.Module, layer_count: int) -> list[Any]:
    """Empty if it is not plain which they are: passes then compute all layers."""
    lists = [each for each in model.modules() if isinstance(each, torch.nn.ModuleList) and len(each) == layer_count]
    return list(lists[0]) if len(lists) == 1 else []


class _Reached(Exception):
    """The layer whose keys were wanted has them."""


class _EndsEarly(DynamicCache):  # type: ignore[misc]
    """Ends the forward pass as soon as layer ``last`` has given its keys and values: no matter how the model holds its layers."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self._last = last

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        super().update(key_states[:, :, :0], value_states[:, :, :0], layer_idx, *args, **kwargs)
        layer = self.layers[layer_idx]
        layer.keys, layer.values = key_states, value_states  # as they are: appending to nothing would copy them
        if layer_idx == self._last:
            raise _Reached
        return key_states, value_states
