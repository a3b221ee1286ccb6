"""A model's cache per sequence, from the ``config.json`` beside its weights.

Layers that keep the same kind of data are a *group*, with a namespace of its own: full attention, sliding windows, the states of Mamba and
linear attention. The ``model_type`` gives the family; an unknown one is refused by name, since reading it with another family's field names
could give seventy KV heads instead of one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from . import _kvstore
from ._fields import dtype_name
from .errors import BadRequest, Unsupported
from .namespaces import Namespace

__all__ = ["CacheGroup", "cache_groups", "load_config", "shape_of"]

_DTYPES = {
    "float32": ("fp32", 4),
    "float16": ("fp16", 2),
    "bfloat16": ("fp16", 2),
    "float8_e4m3": ("fp8", 1),
    "float8_e4m3fn": ("fp8", 1),
    "float8_e5m2": ("fp8", 1),
    "int8": ("fp8", 1),
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

    #: "full", "window-4096" or "state".
    name: str
    #: "full": every token. "window": the last ``window_tokens``. "state": one state, for any length.
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


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    for name in ("text_config", "llm_config", "language_config"):
        inner = config.get(name)
        if isinstance(inner, dict):
            return inner
    return config


def shape_of(config: str | Path | Mapping[str, Any]) -> _kvstore.ModelShape:
    """Layers, heads and sizes of a family whose layers all keep keys and values."""
    return _kvstore.ModelShape.from_config(json.dumps(load_config(config)))


def _number(config: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    if default is None:
        raise Unsupported(f"{names[0]} is missing")
    return default


# -- states: elements of (convolution, recurrence) of one layer. Recurrences are kept in fp32.


def _mamba1(config: Mapping[str, Any]) -> tuple[int, int]:
    inner = _number(
        config,
        "intermediate_size" if config["model_type"] in ("mamba", "falcon_mamba") else "mamba_d_inner",
        default=_number(config, "mamba_expand", "expand", default=2) * _number(config, "hidden_size"),
    )
    kernel = _number(config, "mamba_d_conv", "conv_kernel", default=4)
    return inner * kernel, inner * _number(config, "mamba_d_state", "state_size", default=16)


def _mamba2(config: Mapping[str, Any]) -> tuple[int, int]:
    hidden = _number(config, "hidden_size")
    state = _number(config, "mamba_d_state", "ssm_state_size", "state_size", default=128)
    heads = _number(config, "mamba_n_heads", "mamba_num_heads", "num_heads")
    size = config.get("mamba_d_head", config.get("mamba_head_dim", config.get("head_dim", "auto")))
    expand = _number(config, "mamba_expand", "expand", default=2)
    head_size = size if isinstance(size, int) else expand * hidden // heads
    inner = heads * head_size
    groups = _number(config, "mamba_n_groups", "n_groups", default=1)
    kernel = _number(config, "mamba_d_conv", "conv_kernel", default=4)
    return (inner + 2 * groups * state) * kernel, inner * state


def _delta_net(config: Mapping[str, Any]) -> tuple[int, int]:
    key_heads = _number(config, "linear_num_key_heads")
    value_heads = _number(config, "linear_num_value_heads")
    key_size = _number(config, "linear_key_head_dim")
    value_size = _number(config, "linear_value_head_dim")
    kernel = _number(config, "linear_conv_kernel_dim", default=4)
    convolved = 2 * key_heads * key_size + value_heads * value_size
    return convolved * kernel, value_heads * key_size * value_size


def _short_conv(config: Mapping[str, Any]) -> tuple[int, int]:
    return _number(config, "hidden_size") * _number(config, "conv_L_cache", default=3), 0


#: Families with states, and their size function.
_HYBRID = {
    "jamba": _mamba1,
    "mamba": _mamba1,
    "falcon_mamba": _mamba1,
    "mamba2": _mamba2,
    "bamba": _mamba2,
    "granitemoehybrid": _mamba2,
    "falcon_h1": _mamba2,
    "nemotron_h": _mamba2,
    "qwen3_next": _delta_net,
    "qwen3_5_text": _delta_net,
    "qwen3_5_moe_text": _delta_net,
    "lfm2": _short_conv,
    "lfm2_moe": _short_conv,
}

#: Layers whose keys and values belong to an encoder's output instead of a prefix of tokens.
_CROSS = ("cross_attention_layers", "cross_attention_hidden_size", "num_cross_attention_heads")

_STATE_TYPES = ("mamba", "linear_attention", "conv", "mamba2", "recurrent")
_NO_CACHE_TYPES = ("moe", "mlp")


def _layer_kinds(config: Mapping[str, Any], family: str) -> list[str]:
    """For each layer a, s, b ("a" attention, "s" state, "b" both), or - for no cache."""
    if family in ("mamba", "mamba2", "falcon_mamba"):
        return ["s"] * _number(config, "num_hidden_layers", "n_layer")
    if family == "falcon_h1":
        return ["b"] * _number(config, "num_hidden_layers")
    types = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(types, list):
        return [_kind_of_type(str(each)) for each in types]
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [{"M": "s", "*": "a", "-": "-", "E": "-"}.get(each, "?") for each in pattern]
    count = _number(config, "num_hidden_layers")
    if family == "jamba":
        period = _number(config, "attn_layer_period", default=8)
        offset = config.get("attn_layer_offset", 4)
        return ["a" if i % period == offset else "s" for i in range(count)]
    if family == "bamba":
        attention = config.get("attn_layer_indices") or ()
        return ["a" if i in attention else "s" for i in range(count)]
    if family.startswith(("qwen3_next", "qwen3_5")):
        interval = _number(config, "full_attention_interval", default=4)
        return ["a" if (i + 1) % interval == 0 else "s" for i in range(count)]
    if family.startswith("lfm2"):
        attention = config.get("full_attn_idxs") or range(count)
        return ["a" if i in attention else "s" for i in range(count)]
    raise Unsupported(f"{family}: layer_types is missing: which layers keep states?")


def _kind_of_type(name: str) -> str:
    if name in _STATE_TYPES:
        return "s"
    if name in _NO_CACHE_TYPES:
        return "-"
    if name == "hybrid":
        return "b"
    if name.endswith("attention") and "cross" not in name:
        return "a"
    raise Unsupported(f"layer_types: {name!r} is not known")


# -- windows


def _windows(config: Mapping[str, Any], family: str, count: int) -> list[int]:
    """For each layer: the tokens that it reads, 0 for all."""
    window = config.get("sliding_window")
    types = config.get("layer_types")
    if isinstance(types, list) and len(types) == count:
        sliding = [str(each) in ("sliding_attention", "chunked_attention") for each in types]
        if any(str(each) == "chunked_attention" for each in types):
            raise Unsupported("layer_types: chunked_attention: what such a layer keeps is no window")
        return [_number(config, "sliding_window") if each else 0 for each in sliding]
    if not isinstance(window, int) or window <= 0:
        return [0] * count
    if (
        family in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_5_vl")
        or "use_sliding_window" in config
    ):
        if not config.get("use_sliding_window", False):
            return [0] * count
        first = config.get("max_window_layers", 0)
        return [window if i >= first else 0 for i in range(count)]
    every = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2, "olmo3": 4, "exaone4": 4}.get(family)
    if every is not None:
        pattern = config.get("sliding_window_pattern", every)
        every = pattern if isinstance(pattern, int) else every
        return [0 if (i + 1) % every == 0 else window for i in range(count)]
    if family in ("mistral", "mixtral", "starcoder2", "phi3", "phimoe"):
        return [window] * count
    return [0] * count


# -- groups


def cache_groups(
    config: str | Path | Mapping[str, Any],
    *,
    dtype: Any = None,
    model: str | None = None,
    windows: bool = True,
) -> list[CacheGroup]:
    """The groups of a model's layers, full attention first.

    ``dtype``: of the cache; by default the model's own. ``model``: its name in namespaces; by default the file's ``_name_or_path``.
    ``windows=False``: windows count as full attention, as whole-prefix stores do. Raises Unsupported: unknown family, cross-attention.
    """
    whole = load_config(config)
    inner = dict(_text_config(whole))
    family = str(inner.get("model_type", "")).lower()
    if not family:
        raise Unsupported("model_type is missing: it says by which names the model's numbers go")
    if whole.get("is_encoder_decoder") or inner.get("is_encoder_decoder") or inner.get("add_cross_attention"):
        raise Unsupported(
            f"model_type: {family!r}: cross-attention keeps keys and values of an encoder's output, not of a prefix"
        )
    for name in _CROSS:
        if inner.get(name):
            raise Unsupported(f"{name}: cross-attention keeps keys and values of an encoder's output, not of a prefix")
    name = model or str(whole.get("_name_or_path") or inner.get("_name_or_path") or family)
    element = _dtype_of(
        dtype or inner.get("dtype") or inner.get("torch_dtype") or whole.get("dtype") or whole.get("torch_dtype")
    )
    rope = _fingerprint({key: inner[key] for key in _ROPE_KEYS if inner.get(key) is not None})
    if family in _HYBRID:
        return _hybrid_groups(inner, family, name, element, rope)

    shape = _kvstore.ModelShape.from_config(json.dumps(whole))
    count = shape.layer_count
    per_layer = shape.bytes_per_token(_DTYPES[element][0]) // count
    reads = _windows(inner, family, count) if windows else [0] * count
    groups = []
    for window in sorted(set(reads)):
        layers = tuple(i for i, each in enumerate(reads) if each == window)
        groups.append(
            CacheGroup(
                name=f"window-{window}" if window else "full",
                kind="window" if window else "full",
                layers=layers,
                dtype=element,
                bytes_per_token=per_layer * len(layers),
                window_tokens=window,
                kv_head_count=shape.kv_head_count,
                head_size=shape.head_size,
                model=name,
                layer_count=count,
                rope=rope,
            )
        )
    return groups


def _hybrid_groups(inner: dict[str, Any], family: str, name: str, element: str, rope: str) -> list[CacheGroup]:
    kinds = _layer_kinds(inner, family)
    if "?" in kinds:
        raise Unsupported(f"{family}: a layer of a kind that is not known")
    item = _DTYPES[element][1]
    attention = tuple(i for i, kind in enumerate(kinds) if kind in "ab")
    states = tuple(i for i, kind in enumerate(kinds) if kind in "sb")
    groups = []
    make = partial(CacheGroup, dtype=element, model=name, layer_count=len(kinds))
    if attention:
        heads = _number(inner, "num_key_value_heads", default=_number(inner, "num_attention_heads"))
        size = _number(
            inner,
            "head_dim",
            "attention_head_dim",
            default=_number(inner, "hidden_size") // _number(inner, "num_attention_heads"),
        )
        if family == "nemotron_h":
            size = _number(inner, "head_dim", "attention_head_dim", default=size)
        nbytes = 2 * heads * size * item * len(attention)
        group = make("full", "full", attention, bytes_per_token=nbytes, kv_head_count=heads, head_size=size, rope=rope)
        groups.append(group)
    if states:
        convolution, recurrence = _HYBRID[family](inner)
        nbytes = (convolution * item + recurrence * 4) * len(states)
        groups.append(make("state", "state", states, bytes_per_token=0, state_bytes=nbytes))
    return groups


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
