"""The content an SGLang engine has loaded: model, weights, rotations, drafts, adapters and code, from its own scheduler.

SGLang gives a storage backend only the model's path. The rest comes from the scheduler, in whose process the backend is made: it, or its
request to attach a storage, is among the callers. Later changes of weights are caught in SGLang's methods.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from ..doors.identity import (
    adapter_digest,
    computed,
    config_of,
    digest,
    model_folder,
    model_name,
    remote_code_digest,
    weights_digest,
)
from ..doors.tensors import loaded_digest, rotation_digest
from ..errors import Mismatch, Unsupported
from . import compat

logger = logging.getLogger("sglang.kvstore")


@dataclass(frozen=True)
class Facts:
    """The engine's model, as far as it affects the content of pages. None: not reported, or not present."""

    model: str
    #: For weights that cannot be read: the requested revision, beside the ``weights_epoch`` which is then required.
    revision: str | None = None
    quantization: str | None = None
    kv_dtype: str | None = None
    config: str | None = None
    weights: str | None = None
    rotation: str | None = None
    draft: str | None = None
    adapters: str | None = None
    code: str | None = None
    load_format: str | None = None

    @property
    def fields(self) -> dict[str, str | None]:
        """Namespace fields of everything that the loaded model computes."""
        return {
            "revision": self.revision,
            "quantization": self.quantization,
            "x.config": self.config,
            "x.weights": self.weights,
            "x.code": self.code,
            "x.load_format": self.load_format,
        }


@dataclass(frozen=True)
class Callers:
    """The objects that had the backend made. None: not found."""

    scheduler: Any = None
    controller: Any = None
    #: Whether the scheduler serves already.
    is_late: bool = False


def callers() -> Callers:
    scheduler = controller = None
    is_late = True
    frame = sys._getframe()
    while frame is not None:
        mine = frame.f_locals.get("self")
        if scheduler is None and "Scheduler" in [kind.__name__ for kind in type(mine).__mro__]:
            scheduler = mine
        if mine is scheduler is not None and frame.f_code.co_name == "__init__":
            is_late = False
        if controller is None and isinstance(mine, compat.HiCacheController):
            controller = mine
        frame = frame.f_back  # type: ignore[assignment]
    return Callers(scheduler, controller, scheduler is not None and is_late)


def facts(told: str | None, found: Callers, weights_epoch: int | None) -> Facts:
    """``told``: the model's path, or its served name. Raises Unsupported if loaded weights are unknown and ``weights_epoch`` is unset."""
    given = compat.arguments()
    model = None if found.scheduler is None else found.scheduler.tp_worker.model_runner.model_config
    path = str(model.model_path if model is not None else told or "unknown" if given is None else given.model_path)
    revision, quantization = (getattr(model or given, name, None) for name in ("revision", "quantization"))
    is_dummy = given is not None and compat.text(given.load_format) == "dummy"
    folder = model_folder(path, revision)
    why = _why_not_known(found, given, model, path, folder)
    if why and weights_epoch is None and not is_dummy:
        raise Unsupported(
            f"weights: {why}. Set weights_epoch in --hicache-storage-backend-extra-config, and another one whenever they change"
        )
    is_known = not is_dummy and folder is not None and (not why or found.is_late)
    return Facts(
        model_name(path),
        revision=None if is_known else revision,
        quantization=None if quantization is None else compat.text(quantization),
        kv_dtype=None if given is None else _types(given, model),
        config=None if model is None and folder is None else _config(given, model, folder),
        weights=weights_digest(folder) if is_known and folder is not None else None,
        rotation=None if found.scheduler is None else _rotation(found.scheduler.tp_worker.model_runner.model),
        draft=None if given is None or given.speculative_algorithm is None else _draft(given, found),
        adapters=_adapters(found, given),
        code=remote_code_digest(folder) if given is not None and given.trust_remote_code and folder else None,
        load_format=f"dummy-{given.random_seed}" if is_dummy and given is not None else None,
    )


def facts_of_ranks(make: Callable[[], Facts], found: Callers) -> Facts:
    """The same on all ranks that share pages, or an error on all that names the field and the ranks."""
    group = None if found.scheduler is None else found.scheduler.attn_tp_cpu_group
    try:
        mine: Any = make()
    except Unsupported as error:
        mine = str(error)
    told = _of_all_ranks(mine, group)
    if why := next((each for each in told if isinstance(each, str)), None):
        raise Unsupported(why)
    for each in fields(Facts):
        values = [asdict(of_rank)[each.name] for of_rank in told]
        if len(set(values)) > 1:
            other = next(rank for rank, value in enumerate(values) if value != values[0])
            raise Mismatch(
                f"{each.name}: rank 0 has {values[0]!r}, rank {other} {values[other]!r}: all must load the same"
            )
    made: Facts = mine
    return made


def _of_all_ranks(value: Any, group: Any) -> list[Any]:
    if group is None:
        return [value]
    told: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(told, value, group=group)
    return told


def _why_not_known(found: Callers, given: Any, model: Any, path: str, folder: str | None) -> str:
    if given is None and model is None and folder is None:
        return "the engine does not say what it has loaded"
    if found.is_late:
        return "the store is attached while the engine serves, which may have changed them"
    if getattr(model, "model_weights", path) != path:
        return f"they are loaded from {model.model_weights}"
    if given is not None and getattr(given, "weight_cache_mode", "off") != "off":
        return "they are another process's (--weight-cache-mode)"
    return f"{path} is not on this machine" if folder is None else ""


def _types(given: Any, model: Any) -> str:
    """The model's element types, with the scales if they are read from a file. Each pool states its cache's own type."""
    scales = given.quantization_param_path
    return " ".join(
        [
            str(getattr(model, "dtype", given.dtype)).removeprefix("torch."),
            str(given.kv_cache_dtype),
            *([] if not scales else [weights_digest([scales])]),
        ]
    )


def _config(given: Any, model: Any, folder: str | None) -> str:
    if model is not None:
        return digest(computed(model.hf_config))
    assert folder is not None
    override = "" if given is None else str(given.json_model_override_args)
    return digest([computed(config_of(folder)), override])


def _rotation(model: Any) -> str | None:
    """Digest of the tables that the model's layers share."""
    tables: dict[str, Any] = {}
    for each in model.modules():
        name = type(each).__name__
        if name in compat.ROTATIONS_BY_LENGTH:
            raise Unsupported(
                f"rotation: {name} rotates all tokens of a batch by the length of its longest sequence, so that keys of a short "
                "prompt are not those of a long one that begins alike"
            )
        if "Rotary" in name or "rotary" in type(each).__module__:
            for buffer, values in each.named_buffers(recurse=False):
                tables[f"{len(tables):04} {name}.{buffer}"] = values
    return rotation_digest(tables) if tables else None


def _draft(given: Any, found: Callers) -> str:
    path = given.speculative_draft_model_path
    folder = None if path is None else model_folder(path, given.speculative_draft_model_revision)
    if path is not None and folder is None:
        raise Unsupported(f"speculative_draft_model_path: {path} is not on this machine")
    runners = [] if found.scheduler is None or not found.scheduler.draft_worker else _draft_runners(found.scheduler)
    return digest(
        [
            given.speculative_algorithm,
            None if folder is None else weights_digest(folder),
            [computed(each.model_config.hf_config) for each in runners],
            [_rotation(each.model) for each in runners],
            str(getattr(given, "speculative_draft_kv_cache_dtype", None)),
        ]
    )


def _draft_runners(scheduler: Any) -> list[Any]:
    return [runner for _, runner in scheduler.draft_worker.weight_update_runners()]


def _adapters(found: Callers, given: Any) -> str | None:
    """Digest of the adapters. SGLang names an adapter's pages by an id made of its name and path at the start, so the content of that path
    belongs to the namespace. An adapter loaded later has a random id.
    """
    if given is None or not given.enable_lora:
        return None
    manager = None if found.scheduler is None else found.scheduler.tp_worker.model_runner.lora_manager
    if manager is None:
        raise Unsupported("enable_lora: this release does not say which adapters are loaded")
    held = []
    for name, ref in sorted(manager.lora_refs.items()):
        folder = None if ref.lora_path is None else model_folder(ref.lora_path)
        if folder is None:
            raise Unsupported(f"enable_lora: the adapter {ref.lora_name} is not on this machine: {ref.lora_path}")
        held.append([name, adapter_digest(folder)])
    return digest(held) if held else None


class Watch:
    """Detects changes of weights after the engine's start.

    1. From before the first change until the next flush of the engine's own cache, weights are unknown: pages may have old or new ones.
    2. At the flush, unchanged weights get their names back; others get names made of the weights, equal for the same weights and ranks.
    3. With pipeline stages, a stage does not see the others' weights: after a change they stay unknown.
    """

    def __init__(self, found: Callers, stage_count: int) -> None:
        self._scheduler = found.scheduler
        self._stage_count = stage_count
        self._before: str | None = None
        self.is_known = True
        #: A suffix of names; empty while the weights are those of the start.
        self.epoch = b""
        if found.scheduler is None:
            return
        _watches.add(self)
        _patch()
        inner = type(found.controller).reset

        @functools.wraps(inner)
        def reset() -> None:
            inner(found.controller)
            self._flushed()

        found.controller.reset = reset

    def changing(self) -> None:
        if self.is_known:
            logger.info(
                "kvstore: weights change: nothing is found or stored until the engine's cache is flushed after it"
            )
        self.is_known = False
        if self._before is None:
            try:
                self._before = self._digest()
            except Exception as error:  # it must not keep the engine from its change
                logger.warning("kvstore: weights are not known: %s", error)
                self._before = "unknown"

    def _flushed(self) -> None:
        if self.is_known or self._stage_count > 1:
            return
        try:
            now = self._digest()
        except Exception as error:  # freed memory, for example
            logger.warning("kvstore: weights are not known: %s", error)
            now = None
        told = _of_all_ranks((now, now == self._before), self._scheduler.attn_tp_cpu_group)
        if any(each is None for each, _ in told):
            return
        is_as_before = all(is_same for _, is_same in told)
        self.epoch = b"" if is_as_before else hashlib.sha256(repr([each for each, _ in told]).encode()).digest()[:16]
        self.is_known = True
        logger.info(
            "kvstore: weights are %s", "as at the start" if is_as_before else "others: pages have names of their own"
        )

    def _digest(self) -> str:
        return loaded_digest(self._tensors())

    def _tensors(self) -> Iterator[tuple[str, Any]]:
        runners = [self._scheduler.tp_worker.model_runner]
        if getattr(self._scheduler, "draft_worker", None):
            runners += _draft_runners(self._scheduler)
        for i, runner in enumerate(runners):
            for name, each in runner.model.state_dict().items():
                if isinstance(each, torch.Tensor):
                    yield f"{i} {name}", each


_watches: weakref.WeakSet[Watch] = weakref.WeakSet()
_patched: list[Any] = []


def _patch() -> None:
    """Wraps SGLang's methods that change weights, so that watches are notified first."""
    if _patched:
        return
    for kind, name in compat.changes_of_weights():
        _patched.append((kind, name))
        setattr(kind, name, _told_before(getattr(kind, name)))


def _told_before(inner: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inner)
    def wrapped(self: Any, *arguments: Any, **named: Any) -> Any:
        if compat.changes(inner.__name__, arguments, named):
            for each in list(_watches):
                each.changing()
        return inner(self, *arguments, **named)

    return wrapped
