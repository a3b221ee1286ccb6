"""Messages between the scheduler's half and the workers' halves of the connector, once in every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from .._reuse import Reuse


class Block(NamedTuple):
    """A block of a request: ``block_index`` counts the request's blocks from 0, ``page`` is its place in the cache group."""

    name: bytes
    group: int
    page: int
    block_index: int

    @property
    def pages(self) -> tuple[int, ...]:
        return (self.page,)


class Piece(NamedTuple):
    """A block of a prompt module, or the leading part that a load needs: ``token_count`` tokens from the request's token ``first`` on, which lie in
    one or two ``pages``, the first of them the request's block ``block_index``. On their way into the pages keys turn by ``delta`` positions.
    """

    name: bytes
    block_index: int
    first: int
    token_count: int
    delta: int
    pages: tuple[int, ...]

    @property
    def group(self) -> int:
        return 0  # models with several cache groups have no modules

    @property
    def page(self) -> int:
        return self.pages[0]


Blocks: TypeAlias = "Sequence[Block | Piece]"


@dataclass
class Load:
    """Blocks to bring into pages that stay unread until every worker has reported the load. Of ``pieces`` all come, or none counts."""

    job: int
    request_id: str
    blocks: Blocks
    are_pieces: bool = False


@dataclass
class Save:
    """Blocks to store; their pages are referenced until every worker has reported. ``adapter``: its number and content on each worker."""

    job: int
    blocks: Blocks
    reuse: Reuse = None
    adapter: tuple[int, dict[int, bytes]] | None = None
    are_pieces: bool = False


@dataclass
class Stage(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    """From a worker to the scheduler, once. ``namespace`` is a record's text, ``block_bytes`` are the bytes of one part, for each cache
    group. ``weights`` is a digest of the weights in memory; ``is_named``: the namespace has the weights too. ``why_no_modules``: why prompt
    modules of this model are not served; empty: they are.
    """

    namespace: str
    block_bytes: tuple[int, ...]
    weights: bytes = b""
    is_named: bool = True
    why_no_modules: str = ""


@dataclass
class Step(KVConnectorMetadata):  # type: ignore[misc]
    """From the scheduler to the workers."""

    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    #: Tokens that the model computes in this step.
    token_count: int = 0
    #: The reset of the caches after which workers have to report their weights; 0: none.
    reset: int = 0
    #: This step's adapters, by number, and whether workers have to report their content.
    adapters: dict[int, bool] = field(default_factory=dict)


@dataclass
class Report(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """From the workers to the scheduler.

    ``gathered``: for each save, how many workers no longer need its pages. ``loaded``: for each load, how many workers have ended it, and
    the first block missing on one of them, or None. ``load_seconds``: measured whole loads. ``computed``: tokens and seconds of a prefill
    step. By worker: ``stages``; ``weights`` with the reset they answer. ``adapters``, by adapter: the content in each worker.
    """

    gathered: dict[int, int] = field(default_factory=dict)
    loaded: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    load_seconds: dict[int, float] = field(default_factory=dict)
    computed: tuple[int, float] = 0, 0.0
    stages: dict[int, Stage] = field(default_factory=dict)
    weights: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    adapters: dict[int, dict[int, bytes]] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Report:
        assert isinstance(other, Report)
        gathered = dict(Counter(self.gathered) + Counter(other.gathered))
        loaded = dict(self.loaded)
        for job, (count, missing) in other.loaded.items():
            known_count, known = loaded.get(job, (0, None))
            loaded[job] = count + known_count, first_of(known, missing)
        load_seconds = dict(self.load_seconds)
        for job, seconds in other.load_seconds.items():
            load_seconds[job] = max(seconds, load_seconds.get(job, 0.0))
        return Report(
            gathered,
            loaded,
            load_seconds,
            max(self.computed, other.computed),
            self.stages | other.stages,
            self.weights | other.weights,
            {
                number: self.adapters.get(number, {}) | other.adapters.get(number, {})
                for number in {*self.adapters, *other.adapters}
            },
        )


def first_of(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)
