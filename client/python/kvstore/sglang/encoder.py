"""Outputs of SGLang's encoders for images, audio and video, in the store: one server's outputs are loaded by the others.

KVSTORE_ENDPOINTS=unix:///run/kvstore/kvstore.sock python -m kvstore.sglang.encoder_server --model-path MODEL --encoder-only
    --enable-mm-global-cache ...

SGLang's embedding cache looks an output up, loads it into pages of its own pool, and encodes it if it is missing.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sglang.srt.mem_cache.embedding_store import EmbeddingStore

from .. import _kvstore
from ..doors.door import Door
from ..doors.options import StoreOptions
from ..doors.outputs import HEADER_BYTES, header
from ..doors.results import landed, stored
from ..errors import BadRequest
from ..namespaces import Namespace
from . import compat
from .identity import Callers, facts

logger = logging.getLogger("sglang.kvstore")

#: SGLang passes no options to such a store.
OPTIONS = "KVSTORE_SGLANG_ENCODER"
#: Outputs copied at once, unless a single one is larger.
_STAGING_BYTES = 64 << 20
_NAMES_MAX = 1 << 14


@dataclass(frozen=True)
class EncoderOptions(StoreOptions):
    """``KVSTORE_SGLANG_ENCODER``, as JSON. Times are in seconds, each for one call of SGLang's."""

    place = OPTIONS
    #: Larger outputs are neither stored nor loaded.
    output_bytes_max: int = 64 << 20

    @classmethod
    def of_text(cls, text: str) -> EncoderOptions:
        try:
            given = json.loads(text or "{}")
        except ValueError as error:
            raise BadRequest(f"{OPTIONS}: {error}") from None
        if not isinstance(given, dict):
            raise BadRequest(f"{OPTIONS}: no JSON object")
        return cls.of(given)


@dataclass(frozen=True)
class _Output:
    """An output in SGLang's pool: its name and header, and its pieces in the pool."""

    name: bytes
    header: bytes
    pieces: list[npt.NDArray[np.uint8]]

    @property
    def nbytes(self) -> int:
        return len(self.header) + sum(len(each) for each in self.pieces)

    def gathered(self) -> npt.NDArray[np.uint8]:
        return np.concatenate([np.frombuffer(self.header, np.uint8), *self.pieces])

    def scatter(self, data: npt.NDArray[np.uint8]) -> bool:
        """Whether ``data`` is such an output; only then its pieces are written."""
        if len(data) != self.nbytes or data[: len(self.header)].tobytes() != self.header:
            return False
        at = len(self.header)
        for each in self.pieces:
            each[:] = data[at : at + len(each)]
            at += len(each)
        return True


class KVStoreEmbeddings(EmbeddingStore):  # type: ignore[misc]
    """The store that SGLang's EmbeddingCacheController calls, from several threads.

    1. An output counts as loaded only if all of it has come, verified, with the element type, width and number of rows that SGLang expects.
       Only such outputs are written to SGLang's pool.
    2. After construction, calls do not raise into SGLang. A failed lookup is a miss, and is encoded.
    3. Every call ends at its timeout at the latest. After three failures in a row the store is skipped for a while.
    4. The store may be away, now or for ever.
    """

    def __init__(self, storage_config: Any = None) -> None:
        options = self._options = EncoderOptions.of_text(os.environ.get(OPTIONS, ""))
        model = facts(None, Callers(), options.weights_epoch)
        self.namespace = Namespace(
            {
                **options.fields(model.model),
                **model.fields,
                "kind": "set",
                "block_bytes_max": options.output_bytes_max,
                "hash": "sglang-mm",
                "x.engine": f"{compat.engine_name()} encoder",
                # The encoder's input, and the code that computes it.
                "x.multimodal": compat.multimodal(),
            }
        )
        self._door = Door(options, "sglang-encoder", logger, of=" of encoders' outputs", numa_nodes=options.numa_nodes)
        self.counters = self._door.counters
        self._space = self._door.open(self.namespace, "encoders' outputs")
        self._pools: list[tuple[torch.Tensor, npt.NDArray[np.uint8]]] = []

    def register_buffer(self, tensor: torch.Tensor) -> None:
        """Adds a pool of SGLang's: outputs lie in its rows, so it has their element type and width."""
        if tensor.ndim == 2 and tensor.is_contiguous() and tensor.device.type == "cpu":
            self._pools.append((tensor, tensor.view(torch.uint8).reshape(-1).numpy()))
        else:
            logger.error(
                "kvstore: outputs in a pool of shape %s on %s are not stored", list(tensor.shape), tensor.device
            )

    # -- calls

    @staticmethod
    def _name(mm_hash: str) -> bytes:
        return _kvstore.sha256(b"encoder output " + mm_hash.encode())

    def _output(self, mm_hash: str, ptrs: Sequence[int], sizes: Sequence[int]) -> _Output | None:
        """None unless the pieces are whole rows of a registered pool and small enough."""
        for pool, data in self._pools:
            begin = pool.data_ptr()
            end = begin + len(data)
            if len(ptrs) == len(sizes) > 0 and all(
                begin <= ptr < end and 0 < size <= end - ptr for ptr, size in zip(ptrs, sizes, strict=True)
            ):
                break
        else:
            return None
        row_bytes = pool.shape[1] * pool.element_size()
        rows, rest = divmod(sum(sizes), row_bytes)
        first = None if rest else header(pool.dtype, (rows, pool.shape[1]))
        if first is None or HEADER_BYTES + sum(sizes) > self._options.output_bytes_max:
            return None
        pieces = [data[ptr - begin : ptr - begin + size] for ptr, size in zip(ptrs, sizes, strict=True)]
        return _Output(self._name(mm_hash), first, pieces)

    def _batches(
        self, hashes: Sequence[str], ptrs: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]
    ) -> list[list[tuple[int, _Output]]]:
        """Outputs with their places in ``hashes``, in batches copied at once. Names in a call differ, so repeats go to another batch."""
        batches: list[list[tuple[int, _Output]]] = []
        names: set[bytes] = set()
        nbytes = 0
        for i, (mm_hash, its_ptrs, its_sizes) in enumerate(zip(hashes, ptrs, sizes, strict=True)):
            output = self._output(mm_hash, its_ptrs, its_sizes)
            if output is None:
                self._door.count("refused_outputs", 1)
                continue
            if not batches or nbytes + output.nbytes > _STAGING_BYTES or output.name in names:
                batches.append([])
                names, nbytes = set(), 0
            batches[-1].append((i, output))
            names.add(output.name)
            nbytes += output.nbytes
        return batches

    # -- SGLang's calls

    def batch_is_exist(self, hashes: list[str]) -> list[bool]:
        until = time.monotonic() + self._options.lookup_timeout
        held = [False] * len(hashes)
        with self._door.guarded("batch_is_exist"):
            for at in range(0, len(hashes), _NAMES_MAX):
                names = [self._name(each) for each in hashes[at : at + _NAMES_MAX]]
                self._door.count("lookups", 1)
                match = self._door.lookups.ask(partial(self._space.match, names, deadline=_left(until), prefetch=True))
                if match is None:
                    break
                held[at : at + len(names)] = [bool(each) for each in match.held]
        return held

    def batch_get_into_multi_buffers(
        self, hashes: list[str], ptrs: list[list[int]], sizes: list[list[int]]
    ) -> list[bool]:
        until = time.monotonic() + self._options.load_timeout
        loaded = [False] * len(hashes)
        with self._door.guarded("batch_get"):
            for batch in self._batches(hashes, ptrs, sizes):
                names = [output.name for _, output in batch]
                # Memory of its own: SGLang's pool gets only whole outputs, even if the load fails.
                data = [np.empty(output.nbytes, np.uint8) for _, output in batch]
                got = self._door.loads.ask(partial(self._space.get, names, data, deadline=_left(until)))
                if got is None:
                    break
                are_here = landed(got, [output.nbytes for _, output in batch])
                for (i, output), is_here, each in zip(batch, are_here, data, strict=True):
                    loaded[i] = bool(is_here) and output.scatter(each)
        self._door.count("loaded_outputs", sum(loaded))
        self._door.count("missing_outputs", len(loaded) - sum(loaded))
        return loaded

    def batch_put_from_multi_buffers(
        self, hashes: list[str], ptrs: list[list[int]], sizes: list[list[int]]
    ) -> list[bool]:
        until = time.monotonic() + self._options.save_timeout
        saved = [False] * len(hashes)
        with self._door.guarded("batch_put"):
            for batch in self._batches(hashes, ptrs, sizes):
                names = [output.name for _, output in batch]
                data = [output.gathered() for _, output in batch]
                put = self._door.saves.ask(partial(self._space.put, names, data, deadline=_left(until)))
                if put is None:
                    break
                self._door.count("stored_outputs", put.stored)
                for (i, _), is_there in zip(batch, stored(put), strict=True):
                    saved[i] = bool(is_there)
        return saved

    def batch_get(self, hashes: list[str], ptrs: list[int], sizes: list[int]) -> list[bool]:
        return self.batch_get_into_multi_buffers(hashes, [[each] for each in ptrs], [[each] for each in sizes])

    def batch_put(self, hashes: list[str], ptrs: list[int], sizes: list[int]) -> list[bool]:
        return self.batch_put_from_multi_buffers(hashes, [[each] for each in ptrs], [[each] for each in sizes])

    def close(self) -> None:
        """Calls under way end as misses."""
        self._door.close()


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.001)
