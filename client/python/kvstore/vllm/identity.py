"""An engine's computation, from its worker's loaded and resolved state: weight files, configuration, rotation tables, code.

Only a worker has it: models write into their configuration while they are loaded, and choose rotations by the engine's options. So a worker
makes the identity once and sends it to the scheduler's half (messages.Stage).
"""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from vllm.logger import init_logger

from ..doors.identity import (
    computed,
    digest,
    model_folder,
    model_name,
    remote_code_digest,
    weights_digest,
)
from ..doors.tensors import loaded_digest, rotation_digest
from ..errors import BadRequest, Unsupported
from . import compat
from .model import StoreOptions

logger = init_logger("vllm.kvstore")

#: Attributes of these types on a rotation's module, beside its tables, are part of its computation.
_PLAIN = (bool, int, float, str)
#: Exceptions: they select how a kernel computes it.
_NOT_ROTATION = ("training", "use_flashinfer", "use_aiter", "call_super_init", "dump_patches", "max_seq_len_cached")
#: Kinds of transformers' own rotations that are recomputed by the longest sequence of a step.
_BY_LENGTH = ("dynamic", "longrope")
#: Multimodal settings without effect on values: how many items, where they are kept, and which code runs them.
_NOT_MULTIMODAL = (
    *("limit_per_prompt", "mm_processor_cache_gb", "mm_processor_cache_type", "mm_shm_cache_max_object_size_mb"),
    *("mm_hasher_algorithm", "mm_encoder_only", "mm_encoder_tp_mode", "mm_encoder_attn_backend"),
    "interleave_mm_strings",
)
#: Files beside weights with their quantisation, where the configuration lacks it.
_QUANTISATION = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")


class Loaded:
    """The parameters that a worker has in memory: their digest, and whether they are unchanged."""

    def __init__(self, worker: Any) -> None:
        self._models = [each for each in (worker.get_model(), compat.draft_of(worker)) if each is not None]
        self._hidden = self._hidden_now()
        #: Whether all parameters are visible: some kernels of the CPU keep an unreadable copy.
        self.is_seen = not self._hidden

    def _hidden_now(self) -> list[Any]:
        """For each layer whose weight was taken away, the object that computes with it."""
        modules = (each for model in self._models for each in model.modules())
        return [
            getattr(each, "cpu_linear", weight)
            for each in modules
            if (weight := each._parameters.get("weight")) is not None and weight.numel() == 0
        ]

    def digest(self, is_named: bool) -> bytes:
        """Digest of the visible parameters. Random if hidden ones were replaced, or are not named by files (``is_named``)."""
        hidden = self._hidden_now()
        if hidden and not is_named:
            return os.urandom(16)
        if len(hidden) != len(self._hidden) or any(a is not b for a, b in zip(hidden, self._hidden, strict=True)):
            return os.urandom(16)
        named = ((f"{i} {name}", each) for i, model in enumerate(self._models) for name, each in _parameters(model))
        return bytes.fromhex(loaded_digest(named))[:16]


def _parameters(model: Any) -> Iterator[tuple[str, Any]]:
    for name, each in model.state_dict(keep_vars=True).items():
        if hasattr(each, "partitions"):  # of vLLM's SharedWeightParameter
            yield from ((f"{name}.{key}", part) for key, part in each.partitions.items())
        elif hasattr(each, "numel") and each.numel() > 0:
            yield name, each


def identity_of(config: Any, options: StoreOptions, worker: Any) -> dict[str, Any]:
    """Namespace fields for the blocks' origin: the model, its weights, the naming of blocks. Equal for all ranks of a pipeline stage."""
    model = config.model_config
    loaded = worker.get_model()
    return {
        **options.fields(model_name(str(model.model))),
        "kind": "set",
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": model.quantization,
        "x.quantization": _text(getattr(model, "quantization_config", None)),
        "hash": "vllm-" + config.cache_config.prefix_caching_hash_algo,
        "x.config": digest(computed(model.hf_config)),
        "x.weights": _weights(config, model, loaded),
        "x.rotation": _rotation(loaded),
        "x.code": _code(config, model),
        "x.draft": _draft(config, worker),
        # The encoder's input, and how much of its output is kept.
        "x.multimodal": _multimodal(model),
    }


def fields_of(text: str) -> dict[str, str]:
    """The fields of a record, by name."""
    return dict(line.split("=", 1) for line in text.splitlines())


def difference(one: str, other: str, *, but: Collection[str] = ()) -> str:
    """Names the fields in which two records differ, ``but`` for some."""
    fields, others = fields_of(one), fields_of(other)
    names = sorted(name for name in {*fields, *others}.difference(but) if fields.get(name) != others.get(name))
    return "; ".join(f"{name} is {fields.get(name)!r} and {others.get(name)!r}" for name in names)


def _weights(config: Any, model: Any, loaded: Any) -> str:
    """By the content of the loaded files. Without files here, block names digest the weights in memory, per rank (told.py)."""
    files = _files(config, model, loaded)
    if files is not None:
        return weights_digest(files)
    if str(config.load_config.load_format) == "dummy":
        return f"dummy {model.seed}"
    parallel = config.parallel_config
    return f"loaded {parallel.tensor_parallel_size}x{parallel.pipeline_parallel_size}"


def is_named(identity: Mapping[str, Any]) -> bool:
    """Whether the identity's fields include the weights."""
    return not str(identity["x.weights"]).startswith("loaded ")


def _files(config: Any, model: Any, loaded: Any) -> list[str] | None:
    """The files that vLLM's loader has read, or None: they are missing here, or may have been written since."""
    if os.path.isfile(str(model.model)):
        return [str(model.model)]
    place = _folder(config, str(model.model), model.revision)
    if place is None or not compat.reads_files(config.load_config):
        return None
    is_snapshot = place != model.model
    commit = getattr(model.hf_config, "_commit_hash", None)
    if is_snapshot and commit is not None and os.path.basename(place) != commit:
        logger.warning(
            "kvstore: %s has moved from %s to %s while it was loaded: weights are named by what is in memory",
            model.model,
            commit,
            os.path.basename(place),
        )
        return None
    files = compat.files_of(config.load_config, place, loaded)
    for other in getattr(loaded, "secondary_weights", ()) or ():
        inner = _folder(config, str(other.model_or_path), other.revision)
        if inner is None:
            return None
        files += compat.files_of(config.load_config, inner, other)
    if not is_snapshot and any(os.stat(each).st_ctime > compat.load_began() for each in files):
        logger.warning(
            "kvstore: weights in %s were written while they were loaded: they are named by what is in memory", place
        )
        return None
    return files + [each for name in _QUANTISATION for each in glob.glob(os.path.join(place, name))]


def _folder(config: Any, model: str, revision: str | None) -> str | None:
    return None if os.path.isfile(model) else model_folder(model, revision, config.load_config.download_dir)


def _rotations(loaded: Any) -> Iterator[Any]:
    """Modules with rotation tables."""
    for each in loaded.modules():
        kind = type(each).__name__.lower()
        tables = any(
            "inv_freq" in name or "cos" in name or "sin" in name for name, _ in each.named_buffers(recurse=False)
        )
        if tables or "rotary" in kind or "rope" in kind:
            yield each


def _rotation(loaded: Any) -> str | None:
    """Digest of the values of all tables, and of the attributes that select their used part."""
    found = set()
    for each in _rotations(loaded):
        kinds = getattr(each, "rope_type", None)
        for kind in kinds.values() if isinstance(kinds, dict) else [kinds]:
            if kind in _BY_LENGTH and any("inv_freq" in name for name, _ in each.named_buffers(recurse=False)):
                raise Unsupported(
                    f"rope_type: {kind!r} of {type(each).__name__} makes other rotations when a sequence of the same step is longer, "
                    "so that a block's keys are not its own"
                )
        said = {
            name: value
            for name, value in vars(each).items()
            if isinstance(value, _PLAIN) and not name.startswith("_") and name not in _NOT_ROTATION
        }
        tables = {name: each for name, each in each.named_buffers(recurse=False) if each is not None}
        found.add(digest([type(each).__name__, said, rotation_digest(tables) if tables else ""]))
    return digest(sorted(found)) if found else None


def _code(config: Any, model: Any) -> str | None:
    """Digest of the code that the model brings and the engine runs."""
    if not model.trust_remote_code:
        return None
    place = _folder(config, str(model.model), model.code_revision or model.revision)
    if place is None:
        raise Unsupported(f"trust_remote_code: the code of {model.model} is not on this machine")
    return remote_code_digest(place)


def _draft(config: Any, worker: Any) -> str | None:
    """Digest of the draft model: another draft keeps other blocks."""
    speculative = config.speculative_config
    if speculative is None or speculative.method != "draft_model":
        return None
    model, loaded = speculative.draft_model_config, compat.draft_of(worker)
    if loaded is None:
        raise Unsupported("speculative_config: the worker does not say which draft model it has loaded")
    files = _files(config, model, loaded)
    if files is None:
        raise BadRequest("speculative_config: the draft model's weights are not files on this machine")
    return digest(
        [
            computed(model.hf_config),
            str(model.dtype),
            model.quantization,
            weights_digest(files),
            _rotation(loaded),
            _code(config, model),
        ]
    )


def _text(said: Any) -> str | None:
    return None if said is None else digest(str(said))


def _multimodal(model: Any) -> str | None:
    said = getattr(model, "multimodal_config", None)
    if said is None:
        return None
    return digest({name: str(value) for name, value in vars(said).items() if name not in _NOT_MULTIMODAL})
