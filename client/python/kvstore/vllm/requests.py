"""The scheduler half's state of a request, of its lookup and of its load, and the hints in its kv_transfer_params."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm.logger import init_logger

from .._reuse import Reuse, reuse_number
from ..doors.names import weights_suffix
from ..errors import Error
from ..futures import Future
from ..sets import SetMatchResult
from .messages import Block
from .model import Model
from .modules import Modules
from .told import Told

logger = init_logger("vllm.kvstore")

#: vLLM's page for a missing block, such as one that a window has left behind.
NULL_PAGE = 0
#: A lookup's answer is valid for this long: shorter than the node's lease.
_ANSWER_SECONDS = 4.0


@dataclass
class Lookup:
    """A question to the store, and then its answer: ``hit`` leading blocks can be loaded, or the ``tail_hit`` leading tokens, which end
    inside the next block. Has a future, and then a lease, per pipeline stage.
    """

    block_count: int
    asked: float
    #: Where in pages a hit may end, in tokens.
    tails: list[int] = field(default_factory=list)
    futures: list[Future[SetMatchResult]] = field(default_factory=list)
    hit: int = 0
    #: 0: no longer hit.
    tail_hit: int = 0
    is_tail_on_disk: bool = False
    #: As ``hit``, counting only blocks in memory.
    memory_hit: int = 0
    leases: list[int] = field(default_factory=list)
    #: Whether the store has answered.
    is_known: bool = False
    #: Blocks on a node's disk, in any of the groups.
    on_disk: npt.NDArray[np.bool_] | None = None

    def disk_tokens(self, begin: int, tokens: int, block_size: int) -> int:
        """How many of the leading ``tokens`` after ``begin`` blocks are on a disk."""
        if self.on_disk is None:
            return 0
        end, tail = divmod(tokens, block_size)
        return int(self.on_disk[begin:end].sum()) * block_size + tail * self.is_tail_on_disk

    @property
    def is_open(self) -> bool:
        return bool(self.futures)

    @property
    def is_stale(self) -> bool:
        """Whether the leases of a hit may have ended."""
        return not self.is_open and self.hit > 0 and time.monotonic() - self.asked > _ANSWER_SECONDS

    def give_up(self) -> None:
        for future in self.futures:
            future.cancel()
        self.futures = []


@dataclass
class KnownRequest:
    """State of an unfinished request."""

    request: Any
    told: Told
    #: From its kv_transfer_params: when its blocks will be asked for again.
    reuse: Reuse = None
    #: From its kv_transfer_params: prompt modules. Such a request has no blocks of exact prefixes.
    modules: Modules | None = None
    #: From its kv_transfer_params: the weights. None: the request cannot share.
    own_epoch: bytes | None = b""
    #: own_epoch and the adapter's identity. None: unknown.
    epoch: bytes | None = None
    named: Any = None
    #: Whether it began with pages of another epoch, or of an unknown one.
    is_mixed: bool = False
    #: Leading blocks whose pages' epoch is recorded.
    noted: int = 0
    lookup: Lookup | None = None
    failed_loads: int = 0
    #: Local blocks when the request was last admitted; a load begins after them.
    computed: int = 0
    #: Leading blocks that this request does not store: the store has them, was given them, or lost them.
    saved: int = 0
    is_admitted: bool = False
    #: Admitted, and in no step since.
    is_fresh: bool = False
    is_loading: bool = False
    #: Saves wait until more tokens than these are computed: another connector may have loaded some of them.
    doubtful_tokens: int = -1
    #: The load under way: its first block, its tokens, and how many of these come from disk.
    load_begin: int = 0
    load_tokens: int = 0
    load_disk_tokens: int = 0
    #: The load under way. Leases belong to this half's client, so a worker's get cannot end one.
    leases: list[int] = field(default_factory=list)

    @property
    def adapter(self) -> int | None:
        """The adapter's number."""
        lora = self.request.lora_request
        return None if lora is None else int(lora.lora_int_id)

    @property
    def blocks(self) -> Any:
        """The request, or a view with the block hashes of its adapter."""
        return self.request if self.named is None else self.named.follow()

    @property
    def ending(self) -> bytes | None:
        """Suffix of its blocks' names: the weights, if not the namespace's, and the epoch. None: no lookup or save is possible."""
        weights = self.told.epoch
        return None if weights is None or self.epoch is None else weights + self.epoch

    def blocks_in(
        self, model: Model, hashes: Sequence[bytes], first: int, page_of: Callable[[int, int], int]
    ) -> list[Block]:
        """The blocks of these hashes, from index ``first`` on, in each group where ``page_of(group, index)`` is one."""
        ending = self.ending or b""
        return [
            Block(model.name(block_hash, g, ending), g, page, i)
            for i, block_hash in enumerate(hashes, first)
            for g in range(len(model.groups))
            if (page := page_of(g, i)) != NULL_PAGE
        ]

    def piece_names(self, model: Model, modules: Modules, first: int, end: int) -> list[bytes]:
        """Names of the blocks of modules, without their parts."""
        return [model.name(block.hash, 0, self.ending or b"") for block in modules.blocks[first:end]]

    def admit(self, lookup: Lookup) -> None:
        """It has its pages: from here on its blocks are stored. Local ones that the store lacks too: it may have been restarted."""
        self.saved = lookup.hit if lookup.is_known else self.computed
        self.is_admitted = self.is_fresh = True
        self.load_begin, self.load_tokens = self.computed, 0
        self.doubtful_tokens = -1
        self.noted, self.is_mixed = self.computed, False


@dataclass
class LoadUnderWay:
    """A request's load, until ``left`` more workers have reported their missing blocks."""

    of: KnownRequest
    left: int
    missing: int | None = None
    #: The slowest worker's time so far; None once a worker did not measure its part.
    seconds: float | None = 0.0


def weights_epoch_of(request: Any) -> bytes | None:
    """The request's weights_epoch as an ending of names; None: it is wrong, and the request cannot share."""
    try:
        return weights_suffix((request.kv_transfer_params or {}).get("weights_epoch"))
    except Error as error:
        logger.warning("kvstore: %s. The request does not share.", error)
        return None


def reuse_of(request: Any) -> Reuse:
    """What the request says of its future: wrong values count as nothing said."""
    reuse: Reuse = (request.kv_transfer_params or {}).get("reuse")
    try:
        reuse_number(reuse)
    except Error as error:
        logger.warning("kvstore: %s. The request says nothing of its future.", error)
        return None
    return reuse
