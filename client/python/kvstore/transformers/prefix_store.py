"""``generate()`` that begins with the stored prefix of a prompt, and stores what it computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache

from ..client import Client
from ..errors import BadRequest, Error, Quarantined, TimedOut, Unsupported
from ..layouts import gather, scatter
from ..namespaces import Namespace
from .block_memory import BlockMemory
from .model_identity import ModelIdentity

__all__ = ["PrefixStore", "StoredCache"]


class PrefixStore:
    """The blocks of one model, as its cache in ``generate()`` has them.

    ``block_size``: tokens of a block. A prefix is found in whole blocks, and, with one node, in the first tokens of a block that goes on in
    another way, if these are at least a quarter of it. ``name``: by default the model's name in the hub, or its folder's.
    The namespace binds the loaded model: all bytes of weights and active adapters, rotations, configuration. If one of these changes, calls
    raise BadRequest: make another store then. ``identity``: the model's, where another store has computed it, with its name and revision.
    Other fields go to the namespace. Not for several threads at once.
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
        identity: ModelIdentity | None = None,
        **fields: object,
    ) -> None:
        self._model = model
        self._deadline = deadline
        self._identity = identity or ModelIdentity(model, name=name, revision=revision)
        self._shape = self._identity.shape
        block_bytes = self._shape.layout(block_size).store_block_bytes
        own = {"block_size": block_size, "block_bytes": block_bytes}
        self.namespace = Namespace(self._identity.fields | own | fields)
        self.space = client.open(self.namespace, deadline=deadline)
        self.block_size = block_size
        self._blocks = BlockMemory(client, self.namespace.block_bytes)
        #: The cache whose blocks are in the lent memory.
        self._owner: StoredCache | None = None

    def cache(self, input_ids: torch.Tensor) -> StoredCache:
        """A cache with the stored prefix of the prompts ``[batch, tokens]``, without padding; the shortest prefix limits all prompts."""
        self._identity.check_unchanged()
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
                self._blocks.forget()
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
        return self._blocks.nbytes

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

    def _memory(self, block_count: int) -> npt.NDArray[np.uint8]:
        """Lent memory for so many blocks."""
        self._owner = None
        return self._blocks.rows(block_count)

    def _fill(self, cache: StoredCache, blocks: npt.NDArray[np.uint8], rows: int, tokens: int) -> None:
        slots = np.full((rows, len(blocks) // rows * self.block_size), -1)
        slots[:, :tokens] = np.arange(rows * tokens).reshape(rows, tokens)
        device = next(self._model.parameters()).device
        made = self._shape.empty(rows, tokens)
        source = self._shape.bind_blocks(blocks, self.block_size)
        scatter(self._shape.bind(made), source, slots=slots.reshape(-1))
        for layer, (keys, values) in enumerate(made):
            cache.update(keys.to(device), values.to(device), layer)
        cache.cached_token_count = tokens
        self._owner = cache

    def _store(self, cache: StoredCache, sequences: torch.Tensor) -> int:
        self._identity.check_unchanged()
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
        whole = self._shape.bind(tensors)
        stored = 0
        for row, own in enumerate(ids):
            # A single prompt's loaded blocks are still in memory: only the new ones are gathered.
            loaded = cache.cached_token_count // self.block_size if len(ids) == 1 and self._owner is cache else 0
            blocks = self._memory(count)
            rest = count - loaded
            if rest:
                first = row * tokens + loaded * self.block_size
                target = self._shape.bind_blocks(blocks[loaded:], self.block_size)
                gather(target, whole, slots=np.arange(first, first + rest * self.block_size))
            named = own[: count * self.block_size]
            put = self.space.put(self.space.hash_chain(named), blocks, token_ids=named, deadline=self._deadline)
            stored += put.stored
            cache.why = cache.why or put.why
        return stored


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


def _ids_of(input_ids: torch.Tensor) -> npt.NDArray[Any]:
    ids = input_ids.detach().cpu().numpy()
    if ids.ndim != 2:
        raise BadRequest(f"input_ids: has {ids.ndim} axes, not 2")
    return np.asarray(ids)


def _fewer(why: Error | None) -> Error:
    """A matched block was evicted before its get."""
    return why if why is not None else Error("a block went between match and get")
