"""Blocks of modules: from the store, or encoded alone; then at a prompt's positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache

from ..client import Client
from ..errors import BadRequest, Error, Quarantined, TimedOut, Unsupported
from ..layouts import Rotation, gather, scatter
from ..namespaces import Namespace
from ..pml import Range, Unit
from .block_memory import BlockMemory
from .cache_shape import CacheShape
from .module_names import block_names
from .positioned import PositionedModel
from .prefilled import Origin

__all__ = ["LoadedUnits", "ModuleBlocks"]


@dataclass
class _Place:
    """Where a unit's blocks lie in the lent memory."""

    unit: Unit
    names: npt.NDArray[np.uint8]
    first: int
    is_stored: bool = False

    @property
    def blocks(self) -> slice:
        return slice(self.first, self.first + len(self.names))


@dataclass
class LoadedUnits:
    """A prompt's units in lent memory, until the next call of :meth:`ModuleBlocks.load`."""

    blocks: npt.NDArray[np.uint8]
    places: dict[tuple[tuple[int, ...], tuple[int, ...]], _Place] = field(default_factory=dict)
    #: Why not all came from the store, or went there.
    why: Error | None = None

    def place_of(self, unit: Unit) -> _Place:
        return self.places[unit.tokens, unit.positions]

    def origin_of(self, unit: Unit | None) -> Origin:
        if unit is None:
            return Origin.COMPUTED
        return Origin.STORED if self.place_of(unit).is_stored else Origin.ENCODED


class ModuleBlocks:
    """One get for all units of a prompt, and one scatter, which turns keys to the prompt's positions."""

    def __init__(
        self,
        run: PositionedModel,
        shape: CacheShape,
        rotation: Rotation,
        client: Client,
        namespace: Namespace,
        block_size: int,
        deadline: float | None,
    ) -> None:
        self._run = run
        self._shape = shape
        self._rotation = rotation
        self._deadline = deadline
        self._block_size = block_size
        self.space = client.open_set(namespace, deadline=deadline)
        self._memory = BlockMemory(client, namespace.block_bytes)

    def load(self, units: Iterable[Unit]) -> LoadedUnits:
        """Units that the store lacks are encoded here; :meth:`store` then stores them."""
        loaded = LoadedUnits(np.empty((0, 0), np.uint8))
        count = 0
        for unit in units:
            if (unit.tokens, unit.positions) not in loaded.places:
                names = block_names(self.space.namespace, unit.tokens, unit.positions, self._block_size)
                loaded.places[unit.tokens, unit.positions] = _Place(unit, names, count)
                count += len(names)
        if count == 0:
            return loaded
        landed = self._get(loaded, count)
        for place in loaded.places.values():
            place.is_stored = bool(landed[place.blocks].all())
            if not place.is_stored:
                self._encode(place.unit, loaded.blocks[place.blocks])
        return loaded

    def store(self, loaded: LoadedUnits) -> None:
        """Stores what :meth:`load` encoded."""
        new = [place for place in loaded.places.values() if not place.is_stored]
        if not new or isinstance(loaded.why, (TimedOut, Quarantined)):  # such a store would cost another deadline
            return
        names = np.concatenate([place.names for place in new])
        rows = np.concatenate([np.arange(place.blocks.start, place.blocks.stop) for place in new])
        try:
            loaded.why = self.space.put(names, loaded.blocks, rows=rows, deadline=self._deadline).why or loaded.why
        except (BadRequest, Unsupported):
            raise
        except Error as error:
            loaded.why = error

    def place(self, loaded: LoadedUnits, ranges: Sequence[Range], count: int) -> list[list[torch.Tensor]]:
        """Keys and values of each layer for a prompt of ``count`` tokens. The rows of tokens that belong to no unit are not set."""
        made = self._shape.empty(1, count)
        turns: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        start = 0
        for each in ranges:
            end = start + len(each.tokens)
            if each.unit is not None:
                own = np.arange(each.unit_begin, each.unit_begin + len(each.tokens))
                rows = loaded.place_of(each.unit).first * self._block_size + own
                slots, deltas = self._free(turns, rows, len(loaded.blocks) * self._block_size)
                slots[rows] = np.arange(start, end)
                deltas[rows] = np.asarray(each.positions) - np.asarray(each.unit.positions)[own]
            start = end
        for slots, deltas in turns:
            scatter(
                self._shape.bind(made),
                self._shape.bind_blocks(loaded.blocks, self._block_size),
                slots=slots,
                move=replace(self._rotation, deltas=deltas),
            )
        return [[each.to(self._run.device) for each in layer] for layer in made]

    @staticmethod
    def _free(
        turns: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]], rows: npt.NDArray[np.int64], row_count: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Slots and deltas of a scatter in which these rows go nowhere yet: a module that a prompt has twice goes to two places."""
        for slots, deltas in turns:
            if (slots[rows] < 0).all():
                return slots, deltas
        turns.append((np.full(row_count, -1), np.zeros(row_count, np.int64)))
        return turns[-1]

    def _get(self, loaded: LoadedUnits, count: int) -> npt.NDArray[np.bool_]:
        """Fills the lent memory. Returns which blocks have come."""
        loaded.blocks = self._memory.rows(count)
        names = np.concatenate([place.names for place in loaded.places.values()])
        landed = np.zeros(count, np.bool_)
        try:
            got = self.space.get(names, loaded.blocks, deadline=self._deadline)
            loaded.why, landed = got.why, got.landed
        except (BadRequest, Unsupported):
            raise
        except Error as error:
            loaded.why = error
        if isinstance(loaded.why, (TimedOut, Quarantined)):  # a node may still write to the blocks that have not come
            kept = loaded.blocks
            self._memory.forget()
            loaded.blocks = self._memory.rows(count)
            loaded.blocks[landed] = kept[landed]
        return landed

    def _encode(self, unit: Unit, blocks: npt.NDArray[np.uint8]) -> None:
        cache = DynamicCache()
        self._run(np.array(unit.tokens), np.array(unit.positions), cache)
        layers = [[layer.keys.cpu(), layer.values.cpu()] for layer in cache.layers]
        blocks[-1] = 0  # a partial block has nothing behind its tokens
        target = self._shape.bind_blocks(blocks, self._block_size)
        gather(target, self._shape.bind(layers), slots=np.arange(len(unit.tokens)))
