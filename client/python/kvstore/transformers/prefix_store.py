"""``generate()`` that begins with the stored prefix of a prompt, and stores what it computed."""

from __future__ import annotations

import functools
import inspect
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache

from .._identity import computed, digest, loaded_digest, model_name, remote_code_digest, rotation_digest, short
from ..client import Client
from ..errors import BadRequest, Error, Quarantined, TimedOut, Unsupported
from ..layouts import Layout, Part, gather, scatter
from ..namespaces import Namespace

__all__ = ["PrefixStore", "StoredCache", "weights_digest"]


def weights_digest(model: torch.nn.Module) -> str:
    """Digests all bytes of a model's weights, to tell two models apart; includes active adapters, whatever their names."""
    return loaded_digest(_tensors(model))


class PrefixStore:
    """The blocks of one model, as its cache in ``generate()`` has them.

    ``block_size``: tokens of a block. A prefix is found in whole blocks, and, with one node, in the first tokens of a block that goes on in
    another way, if these are at least a quarter of it. ``name``: by default the model's name in the hub, or its folder's.
    The namespace binds the loaded model: all bytes of weights and active adapters, rotations, configuration. If one of these changes, calls
    raise BadRequest: make another store then. Other fields go to the namespace. Not for several threads at once.
    """

    def __init__(
        self,
        model: Any,
        client: Client,
        *,
        block_size: int = 32,
        deadline: float | None = None,
        name: str | None = None,
        revision: str | None = None,
        **fields: object,
    ) -> None:
        self._model = model
        self._client = client
        self._deadline = deadline
        _check_rotations(model)
        self._shape = _probe(model)
        self._state = _state_of(model)
        config = computed(model.config)
        config.pop("architectures", None)  # set only for a loaded model
        path = getattr(model.config, "_name_or_path", "")
        self._layout = self._shape.layout(block_size).store_block(1, block_tokens=block_size)
        self.namespace = Namespace(
            {
                "model": short(name or (model_name(path) if path else "") or config.get("model_type") or "model"),
                "revision": revision,
                "dtype": str(self._shape.dtype).removeprefix("torch."),
                "block_size": block_size,
                "block_bytes": self._layout.store_block_bytes,
                "layout": "transformers",
                "rope": rotation_digest(dict(model.named_buffers())),
                "x.weights": weights_digest(model),
                "x.adapters": digest(self._state.adapters) if self._state.adapters else None,
                "x.config": digest(config),
                "x.code": _code_of(model),
                "x.shape": self._shape.text,
            }
            | fields
        )
        self.space = client.open(self.namespace, deadline=deadline)
        self.block_size = block_size
        self._blocks: npt.NDArray[np.uint8] | None = None
        #: The cache whose blocks are in the lent memory.
        self._owner: StoredCache | None = None

    def cache(self, input_ids: torch.Tensor) -> StoredCache:
        """A cache with the stored prefix of the prompts ``[batch, tokens]``, without padding; the shortest prefix limits all prompts."""
        self._check_unchanged()
        ids = _ids_of(input_ids)
        cache = StoredCache(self)
        count = (ids.shape[1] - 1) // self.block_size  # the last token has to be computed: its logits choose the next
        if count == 0:
            return cache
        hashes = [self.space.hash_chain(row) for row in ids]
        try:
            tokens, names = self._find(ids[:, :-1], hashes, count)
            if tokens:
                each = len(names[0])
                blocks = self._memory(len(names) * each)
                for i, row in enumerate(names):
                    got = self.space.get(row, blocks[i * each : (i + 1) * each], deadline=self._deadline)
                    if got.block_count < each:
                        tokens = min(tokens, got.block_count * self.block_size)
                        cache.why = cache.why or _fewer(got.why)
                    cache.why = cache.why or got.why
                if tokens:
                    self._fill(cache, blocks, len(names), tokens)
        except Error as error:
            if isinstance(error, (Quarantined, TimedOut)):
                self._blocks = None  # a node may still write there
            cache.why = error
        return cache

    def generate(self, input_ids: torch.Tensor, **options: Any) -> torch.Tensor:
        """``model.generate()`` from the stored prefix; stores the new tokens afterwards. Greedy or sampled, without beams."""
        cache = self.cache(input_ids)
        options.setdefault("attention_mask", torch.ones_like(input_ids))
        out = self._model.generate(input_ids, past_key_values=cache, **options)
        cache.store(out if isinstance(out, torch.Tensor) else out.sequences)
        return out

    @property
    def lent_bytes(self) -> int:
        """Memory that blocks pass through on their way to and from the nodes, kept for the next prompt."""
        return 0 if self._blocks is None else self._blocks.nbytes

    def _find(
        self, ids: npt.NDArray[Any], hashes: Sequence[npt.NDArray[np.uint8]], count: int
    ) -> tuple[int, list[npt.NDArray[np.uint8]]]:
        """How many leading tokens of all prompts are stored, and the blocks of each prompt that hold them."""
        size = self.block_size
        matches = [
            self.space.match(row[:count], token_ids=own, deadline=self._deadline)
            for own, row in zip(ids, hashes, strict=True)
        ]
        # The beginnings of all prompts share a token or a few. Computing these is cheaper than a block's way here.
        partial = [m.partial_token_count if m.partial_token_count * 4 >= size else 0 for m in matches]
        tokens = min(m.block_count * size + extra for m, extra in zip(matches, partial, strict=True))
        whole = tokens // size
        names = [row[:whole] for row in hashes]
        if tokens % size:
            for i, match in enumerate(matches):
                own_block = hashes[i][whole : whole + 1]
                other = np.frombuffer(match.partial_block, np.uint8)[None]
                names[i] = np.concatenate([names[i], own_block if match.block_count > whole else other])
        return tokens, names

    def _check_unchanged(self) -> None:
        if _state_of(self._model) != self._state:
            raise BadRequest(
                "model: its weights or its active adapters have changed since the store was made: make another one"
            )

    def _memory(self, block_count: int) -> npt.NDArray[np.uint8]:
        """Lent memory for so many blocks. Kept for the next prompt: allocating takes 0.3 s per GiB."""
        self._owner = None
        if self._blocks is None or len(self._blocks) < block_count:
            kept = self._blocks
            self._blocks = self._client.empty((max(64, block_count * 3 // 2), self.namespace.block_bytes))
            if kept is not None:
                self._blocks[: len(kept)] = kept
        return self._blocks[:block_count]

    def _fill(self, cache: StoredCache, blocks: npt.NDArray[np.uint8], rows: int, tokens: int) -> None:
        slots = np.full((rows, len(blocks) // rows * self.block_size), -1)
        slots[:, :tokens] = np.arange(rows * tokens).reshape(rows, tokens)
        source = self._layout_of(len(blocks)).bind(blocks)
        device = next(self._model.parameters()).device
        made = [
            [torch.empty((rows, heads, tokens, size), dtype=self._shape.dtype) for heads, size in self._shape.sizes]
            for _ in range(self._shape.layer_count)
        ]
        scatter(
            self._shape.layout_of(made).bind(functools.reduce(operator.iadd, made, [])),
            source,
            slots=slots.reshape(-1),
        )
        for layer, (keys, values) in enumerate(made):
            cache.update(keys.to(device), values.to(device), layer)
        cache.cached_token_count = tokens
        self._owner = cache

    def _store(self, cache: StoredCache, sequences: torch.Tensor) -> int:
        self._check_unchanged()
        ids = _ids_of(sequences)
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        if not layers or layers[0][0] is None:
            return 0
        tokens = int(layers[0][0].shape[-2])
        count = min(tokens, ids.shape[1]) // self.block_size
        if layers[0][0].shape[0] != len(ids):
            raise BadRequest(f"sequences: {len(ids)} rows, the cache has {layers[0][0].shape[0]}")
        if count == 0:
            return 0
        tensors = [[each.detach().cpu() for each in layer] for layer in layers]
        if any(
            tuple(t.shape[1::2]) != size for layer in tensors for t, size in zip(layer, self._shape.sizes, strict=True)
        ):
            raise Unsupported("the cache's layers are not those of the model")
        whole = self._shape.layout_of(tensors).bind(functools.reduce(operator.iadd, tensors, []))
        stored = 0
        for row, own in enumerate(ids):
            # A single prompt's loaded blocks are still in memory: only the new ones are gathered.
            loaded = cache.cached_token_count // self.block_size if len(ids) == 1 and self._owner is cache else 0
            blocks = self._memory(count)
            rest = count - loaded
            if rest:
                first = row * tokens + loaded * self.block_size
                target = self._layout_of(rest).bind(blocks[loaded:])
                gather(target, whole, slots=np.arange(first, first + rest * self.block_size))
            named = own[: count * self.block_size]
            put = self.space.put(self.space.hash_chain(named), blocks, token_ids=named, deadline=self._deadline)
            stored += put.stored
            cache.why = cache.why or put.why
        return stored

    def _layout_of(self, block_count: int) -> Layout:
        return self._shape.layout(self.block_size).store_block(block_count, block_tokens=self.block_size)


class StoredCache(DynamicCache):  # type: ignore[misc]
    """A ``DynamicCache`` that began with a stored prefix. Keeps all tokens of layers with windows too, which mask them."""

    def __init__(self, store: PrefixStore) -> None:
        super().__init__()
        self._store_of = store
        #: Tokens that need not be computed.
        self.cached_token_count = 0
        #: Why not more was loaded or stored; None: no error.
        self.why: Error | None = None

    def store(self, sequences: torch.Tensor) -> int:
        """Stores the full blocks of the computed tokens: ``sequences`` are the prompts with the generated tokens, as ``generate()`` returns
        them. Returns how many blocks were new. An absent store costs at most its deadline.
        """
        try:
            return self._store_of._store(self, sequences)
        except (Unsupported, BadRequest):
            raise
        except Error as error:
            self.why = error
            return 0


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


def _check_rotations(model: Any) -> None:
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


class _Shape:
    """The cache's shape per layer: (heads, head size) of keys and of values, the same for all layers."""

    def __init__(self, layer_count: int, sizes: Sequence[tuple[int, int]], dtype: torch.dtype) -> None:
        self.layer_count = layer_count
        self.sizes = tuple(sizes)
        self.dtype = dtype
        (self.heads, key_size), (_, value_size) = self.sizes
        self.text = f"{layer_count}x{self.heads}x{key_size}+{value_size}"

    def layout(self, tokens: int) -> Layout:
        """A layout with a batch of one, to derive the store's block."""
        one = [torch.empty((1, heads, tokens, size), dtype=self.dtype) for heads, size in self.sizes]
        return self.layout_of([one] * self.layer_count)

    def layout_of(self, layers: Sequence[Sequence[torch.Tensor]]) -> Layout:
        keys, values = [layer[0] for layer in layers], [layer[1] for layer in layers]
        return Layout.of_parts([Part(keys, "bhtf", ("key",)), Part(values, "bhtf", ("value",))], name="transformers")


def _probe(model: Any) -> _Shape:
    """The shape of the model's cache, from a forward pass of one token instead of a formula."""
    device = next(model.parameters()).device
    with torch.no_grad():
        out = model(
            torch.zeros((1, 1), dtype=torch.long, device=device), past_key_values=DynamicCache(), use_cache=True
        )
    layers = getattr(getattr(out, "past_key_values", None), "layers", None)
    name = type(model).__name__
    if not layers:
        raise Unsupported(f"{name}: its cache has no layers of keys and values")
    shapes = set()
    for layer in layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if not isinstance(keys, torch.Tensor) or not isinstance(values, torch.Tensor) or keys.ndim != 4:
            raise Unsupported(f"{name}: a layer keeps a {type(layer).__name__}, not keys and values of every token")
        shapes.add((tuple(keys.shape[1::2]), tuple(values.shape[1::2]), keys.dtype))
    if len(shapes) != 1:
        raise Unsupported(f"{name}: layers keep keys and values of different sizes: {sorted(map(str, shapes))}")
    keys_shape, values_shape, dtype = shapes.pop()
    return _Shape(len(layers), [keys_shape, values_shape], dtype)


def _ids_of(input_ids: torch.Tensor) -> npt.NDArray[Any]:
    ids = input_ids.detach().cpu().numpy()
    if ids.ndim != 2:
        raise BadRequest(f"input_ids: has {ids.ndim} axes, not 2")
    return np.asarray(ids)


def _fewer(why: Error | None) -> Error:
    """A matched block was evicted before its get."""
    return why if why is not None else Error("a block went between match and get")
