"""A model's cache per sequence, from the ``config.json`` beside its weights, or by the name of a common model.

Layers that keep the same kind of data are a *group*, with a namespace of its own: full attention, sliding windows, the states of Mamba and
linear attention. The ``model_type`` gives the family; an unknown one is refused by name, since reading it with another family's field names
could give seventy KV heads instead of one. The rules and the arithmetic are those of ``kvstorectl size``, in C++.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _kvstore
from ._fields import dtype_name
from .errors import BadRequest, Unsupported
from .namespaces import Namespace

__all__ = [
    "CacheGroup",
    "Generation",
    "Work",
    "cache_groups",
    "cache_of",
    "generation",
    "known_config",
    "known_models",
    "load_config",
    "namespace_of",
    "shape_of",
]

#: The cache's form in C++, which has the size of an element.
_DTYPES = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "fp16",
    "float8_e4m3": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "int8": "fp8",
}

#: Fields that affect keys besides the weights.
_ROPE_KEYS = (
    *("rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq", "rope_interleave"),
    *("partial_rotary_factor", "rotary_pct", "rotary_dim"),
    *("max_position_embeddings", "original_max_position_embeddings"),
)


@dataclass(frozen=True)
class CacheGroup:
    """Layers that keep the same kind of data for a sequence."""

    #: "full", "window-4096", "chunk-8192" or "state".
    name: str
    #: "full": every token. "window": the last ``window_tokens``. "chunk": those since the last multiple of ``window_tokens``. "state": one
    #: state, for any length.
    kind: str
    layers: tuple[int, ...]
    dtype: str
    #: For all these layers: one token, or 0 for states.
    bytes_per_token: int
    #: For all these layers: one state, or 0.
    state_bytes: int = 0
    window_tokens: int = 0
    kv_head_count: int = 0
    head_size: int = 0
    model: str = ""
    layer_count: int = 0
    rope: str = ""

    def namespace(
        self, *, block_size: int = 16, tensor_parallel: tuple[int, int] = (0, 1), **more: object
    ) -> Namespace:
        """The namespace of this group's blocks. ``tensor_parallel`` is (rank, ranks): the record then names the heads."""
        rank, ranks = tensor_parallel
        if not 0 <= rank < ranks:
            raise BadRequest(f"tensor_parallel: rank {rank} is not in [0, {ranks})")
        if self.kind == "chunk":
            raise Unsupported(
                f"group {self.name}: blocks of chunked attention have no namespace yet; use windows=False"
            )
        total = self.state_bytes if self.kind == "state" else self.bytes_per_token * block_size
        fields: dict[str, object] = {"model": self.model, "dtype": self.dtype, "block_size": block_size}
        if ranks > 1 and self.kv_head_count != 1:
            if self.kind == "state" or self.kv_head_count % ranks != 0:
                raise Unsupported(f"{self.kv_head_count} heads of group {self.name} cannot be divided by {ranks} ranks")
            heads = self.kv_head_count // ranks
            fields["head_range"] = f"{rank * heads}-{rank * heads + heads - 1}"
            total //= ranks
        fields["block_bytes"] = total
        if len(self.layers) < self.layer_count or self.name != "full":
            fields["cache_group"] = self.name
        if self.rope:
            fields["rope"] = self.rope
        return Namespace(fields | more)


def load_config(config: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Loads a ``config.json``, the folder that holds it, or its content."""
    if isinstance(config, Mapping):
        return dict(config)
    path = Path(config)
    if path.is_dir():
        path = path / "config.json"
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRequest(f"config: {path}: {error.strerror}") from error
    except ValueError as error:
        raise BadRequest(f"config: {path} is no JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise BadRequest(f"config: {path} holds no JSON object")
    loaded.setdefault("_name_or_path", path.parent.resolve().name)
    return loaded


def known_models() -> dict[str, str]:
    """The names of common models, and where their facts are from."""
    return {name: source for name, source, _ in _kvstore.known_models()}


def known_config(name: str) -> dict[str, Any]:
    """What a common model's ``config.json`` says about its cache. Raises BadRequest for an unknown name."""
    for known, _, config in _kvstore.known_models():
        if known == name.lower():
            loaded: dict[str, Any] = json.loads(config)
            return loaded | {"_name_or_path": known}
    raise BadRequest(f"model: {name!r} is not known; known are {', '.join(known_models())}")


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    for name in ("thinker_config", "text_config", "llm_config", "language_config"):
        inner = config.get(name)
        if isinstance(inner, dict):
            config = inner
    return config


def shape_of(config: str | Path | Mapping[str, Any]) -> _kvstore.ModelShape:
    """Layers, heads and sizes of a family whose layers all keep keys and values."""
    return _kvstore.ModelShape.from_config(json.dumps(load_config(config)))


def cache_groups(
    config: str | Path | Mapping[str, Any],
    *,
    dtype: Any = None,
    model: str | None = None,
    windows: bool = True,
) -> list[CacheGroup]:
    """The groups of a model's layers, full attention first.

    ``dtype``: of the cache; by default the model's own. ``model``: its name in namespaces; by default the file's ``_name_or_path``.
    ``windows=False``: windows and chunks count as full attention, as whole-prefix stores do. Raises Unsupported: unknown family,
    cross-attention.
    """
    whole = load_config(config)
    inner = _text_config(whole)
    cache = cache_of(whole, windows=windows)
    name = model or str(whole.get("_name_or_path") or inner.get("_name_or_path") or inner["model_type"])
    element = _element_of(whole, inner, dtype)
    form = _DTYPES[element]
    rope = _fingerprint({key: inner[key] for key in _ROPE_KEYS if inner.get(key) is not None})
    groups = []
    for group in cache.groups:
        has_heads = group.kind != "state"
        groups.append(
            CacheGroup(
                name=f"{group.kind}-{group.token_limit}" if group.token_limit else group.kind,
                kind=group.kind,
                layers=tuple(group.layers),
                dtype=element,
                bytes_per_token=cache.group_bytes_per_token(group, form),
                state_bytes=cache.group_state_bytes(group, form),
                window_tokens=group.token_limit,
                kv_head_count=cache.shape.kv_head_count if has_heads else 0,
                head_size=cache.shape.head_size if has_heads else 0,
                model=name,
                layer_count=cache.shape.layer_count,
                rope=rope if has_heads else "",
            )
        )
    return groups


def namespace_of(
    config: str | Path | Mapping[str, Any],
    *,
    block_size: int = 16,
    dtype: Any = None,
    tensor_parallel: tuple[int, int] = (0, 1),
    **more: object,
) -> Namespace:
    """The namespace of a Hugging Face model's blocks in the store's own layout. ``tensor_parallel`` is (rank, ranks): the record then names
    the blocks' heads. Raises Unsupported for unknown families, and for models of several groups, each with a namespace of its own.
    """
    groups = cache_groups(config, dtype=dtype)
    if len(groups) != 1:
        names = ", ".join(group.name for group in groups)
        raise Unsupported(
            f"the layers keep different things ({names}): use kvstore.models.cache_groups(), which gives a namespace for each"
        )
    return groups[0].namespace(block_size=block_size, tensor_parallel=tensor_parallel, **more)


@dataclass(frozen=True)
class Work:
    """Floating point operations of the same work, done both ways."""

    with_cache: float
    without_cache: float

    @property
    def ratio(self) -> float:
        return self.without_cache / self.with_cache


@dataclass(frozen=True)
class Generation:
    """A batch of sequences with a prompt and then new tokens, one a step: cache and operations.

    The operations are ``None`` for a model whose weights are in no formula (states, shared layers): give ``parameters``.
    """

    #: Bytes of the cache after the last step.
    peak_bytes: int
    #: The prompt's pass, the last step, and all steps, of all layers.
    prompt: Work | None = None
    last_step: Work | None = None
    steps: Work | None = None
    #: The last step's, and of all tokens. ``None`` also where ``parameters`` were given: those have the logits' weights.
    last_step_logits: Work | None = None
    logits: Work | None = None
    #: Prompt, steps and logits.
    total: Work | None = None


def generation(
    config: str | Path | Mapping[str, Any],
    *,
    prompt_tokens: int,
    new_tokens: int,
    batch: int = 1,
    dtype: Any = None,
    windows: bool = True,
    parameters: float = 0,
) -> Generation:
    """The cache and the work of generating ``new_tokens`` behind a prompt, with a KV cache and without.

    As in textbooks: without a cache each step computes the whole sequence again, and all of the square of scores. ``parameters``: those that
    a token meets, in place of the shape's. Raises BadRequest and Unsupported, as cache_groups().
    """
    for name, value, least in (("batch", batch, 1), ("prompt_tokens", prompt_tokens, 1), ("new_tokens", new_tokens, 1)):
        if not least <= value <= 1 << 31:
            raise BadRequest(f"{name}: {value} is not in [{least}, 2^31]")
    whole = load_config(config)
    cache = cache_of(whole, windows=windows)
    form = _DTYPES[_element_of(whole, _text_config(whole), dtype)]
    peak = cache.peak_bytes(batch, prompt_tokens, new_tokens, form)
    weights = parameters or cache.parameter_count()
    if weights == 0:
        return Generation(peak)
    figures = _kvstore.GenerationWork(cache, weights).figures(batch, prompt_tokens, new_tokens)
    works = {name: Work(*both) for name, both in figures.items()}
    counted = ["prompt", "steps", "logits"]
    if parameters or cache.shape.vocabulary_size == 0:
        del works["last_step_logits"], works["logits"]
        counted.remove("logits")
    total = Work(
        sum(works[name].with_cache for name in counted),
        sum(works[name].without_cache for name in counted),
    )
    return Generation(peak, **works, total=total)


def cache_of(config: Mapping[str, Any], *, windows: bool = True) -> _kvstore.ModelCache:
    """The layers' groups and sizes, in C++."""
    cache = _kvstore.ModelCache.from_config(json.dumps(config))
    return cache if windows else cache.without_windows()


def _element_of(whole: Mapping[str, Any], inner: Mapping[str, Any], dtype: Any) -> str:
    return _dtype_of(
        dtype or inner.get("dtype") or inner.get("torch_dtype") or whole.get("dtype") or whole.get("torch_dtype")
    )


def _dtype_of(name: object) -> str:
    text = dtype_name(name or "bfloat16")
    if text not in _DTYPES:
        raise BadRequest(f"dtype: {text!r} is none of {', '.join(_DTYPES)}")
    return text


def _fingerprint(values: Mapping[str, Any]) -> str:
    if not values:
        return ""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
