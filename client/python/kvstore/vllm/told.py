"""The workers' reports to the scheduler's half: the namespaces of their blocks, and their weights."""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger

from ..doors.identity import digest_bytes
from ..errors import Unsupported
from .identity import difference
from .messages import Stage

logger = init_logger("vllm.kvstore")

#: Fields in which pipeline stages may differ: the content of each.
_OF_STAGE = ("block_bytes_max", "layer_range", "x.groups", "x.rotation")


class Told:
    """``epoch`` is None until all workers have reported: lookups, loads and saves wait until then.

    1. Ranks of one stage report the same record; stages differ only in _OF_STAGE. Otherwise the engine ends.
    2. Equal epochs mean equal weights: empty while the weights in memory are the namespace's, else a digest of them.
    """

    def __init__(self, rank_count: int, stage_count: int) -> None:
        """``rank_count``: ranks of one pipeline stage; worker numbers count these first."""
        self._rank_count, self._stage_count = rank_count, stage_count
        self._workers = range(rank_count * stage_count)
        self._said: dict[int, Stage] = {}
        #: By worker, since the last reset.
        self._weights: dict[int, bytes] = {}
        #: How many resets there were: a worker's report counts for the last one.
        self.resets = 0
        self.epoch: bytes | None = None

    @property
    def stages(self) -> list[Stage]:
        """One per pipeline stage; empty until all workers have reported."""
        if len(self._said) < len(self._workers):
            return []
        return [self._said[i * self._rank_count] for i in range(self._stage_count)]

    @property
    def why_no_modules(self) -> str:
        """Why a worker refuses prompt modules; empty: all serve them, or have not reported."""
        return next((each.why_no_modules for each in self._said.values() if each.why_no_modules), "")

    def take(self, said: dict[int, Stage]) -> bool:
        """By worker number. Returns whether this completes the reports."""
        if self.stages or not said:
            return False
        self._said.update(said)
        if not self.stages:
            return False
        self._check()
        if self.resets == 0:
            self._weights = {worker: each.weights for worker, each in self._said.items()}
            self.epoch = self._epoch()
        return True

    def _check(self) -> None:
        for worker in self._workers:
            each, leader = self._said[worker], worker // self._rank_count * self._rank_count
            for other, but in ((leader, ()), (0, _OF_STAGE)):
                known = self._said[other]
                why = difference(known.namespace, each.namespace, but=but)
                if not why and other == leader and known.block_bytes != each.block_bytes:
                    why = f"blocks are of {known.block_bytes} and {each.block_bytes} bytes"
                if why:
                    raise Unsupported(
                        f"workers of one engine have different models: of ranks {other} and {worker}, {why}"
                    )

    def _epoch(self) -> bytes:
        if all(
            self._said[worker].is_named and self._said[worker].weights == self._weights[worker]
            for worker in self._workers
        ):
            return b""
        return digest_bytes([self._weights[worker].hex() for worker in self._workers])

    # -- changes of weights

    def reset(self) -> None:
        """The weights may have changed: blocks have no names until the workers have checked."""
        self.resets += 1
        self._weights = {}
        self.epoch = None

    @property
    def reset_asked(self) -> int:
        """The reset after which workers have yet to report their weights in memory, or 0."""
        return self.resets if self.epoch is None and self.stages else 0

    def take_weights(self, weights: dict[int, tuple[int, bytes]]) -> None:
        """By worker number, with the number of the reset they answer."""
        if self.epoch is not None:
            return
        self._weights.update({worker: each for worker, (reset, each) in weights.items() if reset == self.resets})
        if self.stages and len(self._weights) == len(self._workers):
            self.epoch = self._epoch()
            logger.info(
                "kvstore: after a reset of the caches weights are %s", "unchanged" if self.epoch == b"" else "others"
            )


def stages_of(metadata: dict[Any, Any], rank_count: int) -> dict[int, Stage]:
    """Stages from the metadata that vLLM collects, by stage and rank. Skips other connectors' metadata."""
    return {stage * rank_count + rank: said for (stage, rank), said in metadata.items() if isinstance(said, Stage)}
