"""LoRA adapters: block names contain the loaded adapter's content, where vLLM's own hash has its name and path.

Only workers see that content, after a step that used it: an adapter's first request in an engine is computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.logger import init_logger

from ..doors.identity import digest_bytes
from ..doors.names import adapter_suffix
from ..doors.tensors import loaded_digest
from . import compat

logger = init_logger("vllm.kvstore")

#: Attributes for an adapter's name and its tensors' places.
_NOT_CONTENT = ("id", "lora_model_id", "module_name")


class Named:
    """An adapter's request for naming blocks: vLLM's own hashes of its tokens, images and salt, without the adapter."""

    def __init__(self, request: Any, hasher: Callable[[Any], list[bytes]]) -> None:
        self._request, self._hasher = request, hasher
        self.lora_request = None
        self.block_hashes: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def follow(self) -> Named:
        """Adds hashes for tokens the request has gained."""
        self.block_hashes += self._hasher(self)
        return self


@dataclass
class _Known:
    #: By worker.
    told: dict[int, bytes] = field(default_factory=dict)
    #: The adapter's folder at the last look, before the adapter was loaded.
    files: tuple[Any, ...] = ()
    #: The folder has changed since, so the next load will have other content.
    is_old: bool = False


class Adapters:
    """The scheduler half's view: for each number, the content that the workers have loaded under it.

    1. An adapter is known once all workers have reported it, after a step that used it.
    2. If the adapter's folder changes, it is unknown until workers report other content: they may reload it at any time.
    """

    def __init__(self, worker_count: int) -> None:
        self._worker_count = worker_count
        self._known: dict[int, _Known] = {}

    def met(self, request: Any) -> None:
        """Called for each new request: its adapter may have to be loaded."""
        lora = request.lora_request
        files = _files_of(lora.lora_path)
        known = self._known.get(lora.lora_int_id)
        if known is None or lora.load_inplace:
            self._known[lora.lora_int_id] = _Known(files=files)
        elif known.files != files:
            known.files, known.is_old = files, True
            logger.warning(
                "kvstore: the adapter %s (%s) has changed after it was loaded: its requests share nothing until it is loaded again",
                lora.lora_name,
                lora.lora_path,
            )

    def told(self, adapters: dict[int, dict[int, bytes]]) -> list[int]:
        """Takes the workers' reports after a step. Returns the adapters now known."""
        for number, digests in adapters.items():
            known = self._known.setdefault(number, _Known())
            if known.is_old and all(known.told.get(worker) != each for worker, each in digests.items()):
                known = self._known[number] = _Known(files=known.files)
            was = self.epoch(number)
            known.told.update(digests)
            now = self.epoch(number)
            if now is not None and now != was:
                logger.info("kvstore: the adapter %d is %s", number, now[1:].hex())
        return [number for number in adapters if self.epoch(number) is not None]

    def epoch(self, number: int) -> bytes | None:
        """Suffix of this adapter's block names. None: unknown."""
        known = self._known.get(number)
        if known is None or known.is_old or len(known.told) < self._worker_count:
            return None
        each = [known.told[worker] for worker in sorted(known.told)]
        return adapter_suffix(each[0] if len(set(each)) == 1 else digest_bytes([one.hex() for one in each]))

    def tag(self, number: int) -> tuple[int, dict[int, bytes]]:
        """For a save: the content each worker must still have."""
        return number, dict(self._known[number].told)


def _files_of(path: str) -> tuple[Any, ...]:
    """Empty if the folder is missing on this machine."""
    try:
        with os.scandir(path) as entries:
            stats = [(each.name, each.stat()) for each in entries]
    except OSError:
        return ()
    return tuple(sorted((name, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in stats))


class LoadedAdapters:
    """A worker's adapters in memory, digested once per load."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._seen: dict[int, tuple[Any, bytes]] = {}

    def digest(self, number: int) -> bytes | None:
        """None: not loaded."""
        loaded = (compat.adapters_of(self._worker) or {}).get(number)
        if loaded is None:
            self._seen.pop(number, None)
            return None
        seen = self._seen.get(number)
        if seen is None or seen[0] is not loaded:
            seen = self._seen[number] = loaded, _digest_of(loaded)
        return seen[1]

    def news(self, adapters: dict[int, bool]) -> Iterator[tuple[int, bytes]]:
        """Of a step's adapters those that are asked for, and those that have changed: vLLM loads an adapter in the first step that uses it,
        and may load it again.
        """
        for number, is_asked in adapters.items():
            before, now = self._seen.get(number), self.digest(number)
            if now is not None and (is_asked or self._seen[number] is not before):
                yield number, now


def _digest_of(adapter: Any) -> bytes:
    said: list[list[str]] = []
    tensors = []
    for name, value in _parts("", adapter):
        if isinstance(value, torch.Tensor):
            tensors.append((name, value))
        else:
            said.append([name, repr(value)])
    return digest_bytes([sorted(said), loaded_digest(tensors)])


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """All tensors and numbers of an adapter, with their paths."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _parts(f"{name}.{key}", inner)
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _parts(f"{name}.{i}", inner)
    elif isinstance(value, (torch.Tensor, bool, int, float, str, type(None))):
        yield name, value
    else:
        for key, inner in vars(value).items():
            if key not in _NOT_CONTENT:
                yield from _parts(f"{name}.{key}", inner)
