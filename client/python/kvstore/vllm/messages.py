"""What the scheduler's half and the workers' halves of the connector tell each other, once in every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

__all__ = ["Block", "Load", "Report", "Save", "Step"]


class Block(NamedTuple):
    """A block of a request: ``block_index`` counts the request's blocks from 0, ``page`` is where it lies in the cache group."""

    name: bytes
    group: int
    page: int
    block_index: int


@dataclass
class Load:
    """Blocks to bring into pages that nobody reads until the load has been reported."""

    request_id: str
    blocks: list[Block]


@dataclass
class Save:
    """Blocks to store. Their pages keep a reference of ``job`` until every worker has reported it."""

    job: int
    blocks: list[Block]


@dataclass
class Step(KVConnectorMetadata):  # type: ignore[misc]
    """From the scheduler to the workers."""

    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)


@dataclass
class Report(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """From the workers to the scheduler.

    ``gathered``: of each save, how many workers no longer need its pages. ``missing``: of each load that has ended, the
    index of the first block that did not come on every worker, or None.
    """

    gathered: dict[int, int] = field(default_factory=dict)
    missing: dict[str, int | None] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Report:
        assert isinstance(other, Report)
        gathered = dict(self.gathered)
        for job, count in other.gathered.items():
            gathered[job] = gathered.get(job, 0) + count
        missing = dict(self.missing)
        for request, index in other.missing.items():
            known = missing.get(request)
            missing[request] = index if known is None else known if index is None else min(known, index)
        return Report(gathered, missing)
