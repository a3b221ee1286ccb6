"""A request's lookup in the store, and how much its answer allows to load."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..doors.groups import usable
from ..futures import Future
from ..sets import SetMatchResult
from .model import Model

#: A value in SetMatchResult.held.
_ON_DISK = 2
#: A lookup's answer is valid for this long: shorter than the node's lease.
_ANSWER_SECONDS = 4.0
#: How many of the prompt's last hashes are tried for a hit inside a page: the names of all would slow every lookup.
_TAILS_MAX = 64


def tails_of(model: Model, request: Any) -> list[int]:
    """Token counts inside pages where a hit may end: there another prompt ended, such as that of the turn before."""
    if not model.has_tails:
        return []
    size, step = model.block_size, model.hash_tokens
    end = min(len(request.block_hashes), (request.num_tokens - 1) // step)
    return [n * step for n in range(max(1, end - _TAILS_MAX + 1), end + 1) if n * step % size != 0]


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

    def answer(self, model: Model, matches: list[SetMatchResult], block_bytes: list[npt.NDArray[Any]]) -> None:
        """Takes the answers for all blocks' names, [group, part, block], then all tails: a match per pipeline stage, and group sizes."""
        self.leases = [match.lease for match in matches]
        self.asked = time.monotonic()  # the leases' time counts from here
        held, self.on_disk = _held(model, matches, block_bytes, 0, self.block_count)
        self.hit = usable(model.groups, model.block_size, held)
        self.memory_hit = (
            usable(model.groups, model.block_size, held & ~self.on_disk) if self.on_disk[: self.hit].any() else self.hit
        )
        if not self.tails:
            return
        tail_held, on_disk = _held(model, matches, block_bytes, self.block_count, len(self.tails))
        pages = held[[not group.is_state for group in model.groups]].all(axis=0)
        leading = self.block_count if pages.all() else int(np.argmin(pages))
        for i in range(len(self.tails) - 1, -1, -1):
            tokens = self.tails[i]
            if tokens <= self.hit * model.block_size:
                return
            if tokens // model.block_size <= leading and tail_held[:, i].all():
                self.tail_hit, self.is_tail_on_disk = tokens, bool(on_disk[i])
                return


def _held(
    model: Model,
    matches: list[SetMatchResult],
    block_bytes: list[npt.NDArray[Any]],
    before: int,
    count: int,
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """For ``count`` names after ``before``: [group, block], whether all stages hold all parts; and per block, whether any is on a disk."""
    shape = (len(model.groups), model.part_count, count)
    names = slice(shape[0] * shape[1] * before, shape[0] * shape[1] * (before + count))
    held = np.ones((shape[0], count), bool)
    on_disk = np.zeros(count, bool)
    for match, of_groups in zip(matches, block_bytes, strict=True):
        states = np.asarray(match.held)[names].reshape(shape)
        is_right = np.asarray(match.block_bytes)[names].reshape(shape) == of_groups[:, None, None]
        held &= ((states != 0) & is_right).all(axis=1)
        on_disk |= states.max(axis=(0, 1), initial=0) == _ON_DISK
    return held, on_disk
