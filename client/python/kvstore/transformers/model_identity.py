"""Identity of a loaded model: the fields of its namespaces, and whether it is still the same."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..doors.identity import computed, digest, model_name, remote_code_digest, short
from ..doors.tensors import loaded_digest, rotation_digest
from ..errors import BadRequest, Unsupported
from .cache_shape import CacheShape

__all__ = ["ModelIdentity", "check_rotations", "weights_digest"]


def weights_digest(model: torch.nn.Module) -> str:
    """Digests all bytes of a model's weights, to tell two models apart; includes active adapters, whatever their names."""
    return loaded_digest(_tensors(model))


class ModelIdentity:
    """All of a model that shapes the bytes of its cache. Refuses models whose keys depend on later tokens."""

    def __init__(self, model: Any, *, name: str | None = None, revision: str | None = None) -> None:
        check_rotations(model)
        self.model = model
        self.shape = CacheShape.of(model)
        self._state = _state_of(model)
        config = computed(model.config)
        config.pop("architectures", None)  # set only for a loaded model
        path = getattr(model.config, "_name_or_path", "")
        #: Fields of every namespace of the model's blocks; the sizes of blocks are the namespace's own.
        self.fields: dict[str, object] = {
            "model": short(name or (model_name(path) if path else "") or config.get("model_type") or "model"),
            "revision": revision,
            "dtype": str(self.shape.dtype).removeprefix("torch."),
            "layout": "transformers",
            "rope": rotation_digest(dict(model.named_buffers())),
            "x.weights": weights_digest(model),
            "x.adapters": digest(self._state.adapters) if self._state.adapters else None,
            "x.config": digest(config),
            "x.code": _code_of(model),
            "x.shape": self.shape.text,
        }

    def check_unchanged(self) -> None:
        if _state_of(self.model) != self._state:
            raise BadRequest(
                "model: its weights or its active adapters have changed since the store was made: make another one"
            )


@dataclass(frozen=True)
class _State:
    """State that may change while the model is used: write counts of the weights, active adapters and their factors."""

    versions: int
    names: tuple[Any, ...]
    adapters: tuple[Any, ...]


def _state_of(model: torch.nn.Module) -> _State:
    versions = sum(0 if each.is_inference() else each._version for each in model.parameters())
    names, layers = [], []
    for name, layer in model.named_modules():
        if hasattr(layer, "active_adapters") and hasattr(layer, "merged_adapters"):  # as PEFT has them
            scaling = getattr(layer, "scaling", None) or {}
            names.append(tuple(_active(layer)))
            layers.append((name, len(layer.merged_adapters), *(scaling.get(each) for each in _active(layer))))
    return _State(versions, tuple(names), tuple(layers))


def _active(layer: Any) -> list[str]:
    """Adapters whose weights a layer adds to its own as it computes."""
    if getattr(layer, "disable_adapters", False) or layer.merged_adapters:
        return []
    return list(layer.active_adapters)


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's tensors; an adapter's name is replaced by its place among the active ones."""
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if hasattr(layer, "active_adapters") and hasattr(layer, "merged_adapters")
    }
    names = set(getattr(model, "peft_config", None) or {})
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            continue
        words = name.split(".")
        at = next((each for each in layers if name.startswith(f"{each}.")), None)
        behind = range(at.count(".") + 1, len(words)) if at is not None else range(0)
        adapter = next((i for i in behind if words[i] in names), None)
        if at is not None and adapter is not None:
            active = _active(layers[at])
            if words[adapter] not in active:
                continue
            words[adapter] = f"#{active.index(words[adapter])}"
        yield ".".join(words), tensor


def check_rotations(model: Any) -> None:
    """Raises where a token's keys depend on later tokens."""
    if any(getattr(each, "is_prompt_learning", False) for each in (getattr(model, "peft_config", None) or {}).values()):
        raise Unsupported(f"{type(model).__name__}: its adapter puts tokens of its own before the prompt")
    settings: list[Any] = [getattr(model.config, "use_dynamic_ntk", False) and "dynamic"]
    for each in model.modules():
        kinds = getattr(each, "rope_type", None)
        settings += kinds.values() if isinstance(kinds, Mapping) else [kinds]
    for each in (model.config, getattr(model.config, "text_config", None)):
        given = getattr(each, "rope_parameters", None) or getattr(each, "rope_scaling", None) or {}
        of_layers = given.values() if all(isinstance(value, Mapping) for value in given.values()) else [given]
        settings += [found.get("rope_type", found.get("type")) for found in of_layers]
    for kind in settings:
        if isinstance(kind, str) and ("dynamic" in kind or kind in ("longrope", "su")):
            raise Unsupported(
                f"{type(model).__name__}: its rotation ({kind}) depends on the length of the sequence, so that keys of a short prompt "
                "are not those of a long one that begins alike"
            )


def _code_of(model: Any) -> str | None:
    """Digest of the code of a model that brings its own."""
    if not type(model).__module__.startswith("transformers_modules"):
        return None
    return remote_code_digest(os.path.dirname(inspect.getfile(type(model))))
