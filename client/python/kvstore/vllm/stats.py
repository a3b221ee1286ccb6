"""The connector's statistics for vLLM's log and Prometheus."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

from prometheus_client import Counter, Gauge
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from ..doors.door import KINDS, Door

S = TypeVar("S", bound="Sums")

#: Counters of both halves. Blocks are those of one cache group on one rank, or their parts (head_groups); tokens are the engine's.
COUNTERS = {
    "lookups": "Requests that the store was asked about.",
    "lookups_timed_out": "Lookups that were not answered in time.",
    "hit_tokens": "Tokens that the store had and the engine had not.",
    "computed_hit_tokens": "Tokens that the store had, and that are computed: that is faster, or they are fewer than load_blocks_min.",
    "loads": "Loads that were begun.",
    "loads_failed": "Loads of which something did not come.",
    "loaded_tokens": "Tokens that were loaded instead of computed.",
    "loaded_bytes": "Bytes that were loaded.",
    "missing_blocks": "Blocks of loads that did not come.",
    "saved_tokens": "Tokens that were given to be stored.",
    "unsaved_blocks": "Blocks not given to be stored, because too many pages wait for that already or the store is away.",
    "stored_bytes": "Bytes that the store has taken.",
    "already_stored_blocks": "Blocks given to the store that it had.",
    "refused_blocks": "Blocks that the store did not take.",
    "dropped_blocks": "Blocks that waited too long to be stored.",
    "failures": "Calls to the store that failed.",
    "modules_loaded": "Prompt modules that were loaded.",
    "modules_computed": "Prompt modules that were computed, since one of their request's was not stored.",
}
#: Reasons for which a request's modules are refused.
REFUSALS = ("salt", "form", "many", "start", "overlap", "gap", "beyond", "prompt", "model")
#: Counters with a label, its values, and the text. The totals have the value in their name: modules_refused_gap.
LABELLED = {
    "modules_refused": ("reason", REFUSALS, "Requests that are computed because their prompt modules were refused."),
}

Labelled: TypeAlias = "Mapping[str, tuple[str, Sequence[str], str]]"


def _with_values(labelled: Labelled) -> list[str]:
    return [f"{name}_{value}" for name, (_, values, _) in labelled.items() for value in values]


class Sums:
    """``data``: the growth of each counter, and ``paused_...`` as a state; over an interval, its maximum."""

    counters: ClassVar[Collection[str]]

    @classmethod
    def of(cls: type[S], door: Door) -> S | None:
        """What has changed since the last call. None: nothing."""
        data = door.changes(cls.counters)
        return cls(data=data) if data else None  # type: ignore[call-arg]  # vLLM's class takes it

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: Any) -> Any:
        assert isinstance(other, Sums)
        for name, value in other.data.items():
            known = self.data.get(name, 0)
            self.data[name] = max(known, value) if name.startswith("paused_") else known + value
        return self

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not self.data


class KVStoreStats(Sums, KVConnectorStats):  # type: ignore[misc]
    counters = (*COUNTERS, *_with_values(LABELLED))


class Metrics:
    """Metrics made in the process that exports vLLM's metrics."""

    # vLLM removes its own metrics by this prefix when an engine begins in a process that had one.
    prefix = "vllm:kvstore_"
    counters: Mapping[str, str] = COUNTERS
    labelled: ClassVar[Labelled] = {}
    per_engine_labelvalues: Any

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)  # type: ignore[call-arg]
        counter, gauge = metric_types[Counter], metric_types[Gauge]
        self._counters = {
            name: counter(name=self.prefix + name, documentation=text, labelnames=labelnames)
            for name, text in self.counters.items()
        }
        self._paused = gauge(
            name=self.prefix + "paused",
            documentation="1 while failures keep the connector from asking the store.",
            multiprocess_mode="mostrecent",
            labelnames=[*labelnames, "calls"],
        )
        #: By the totals' names: the counter, and the value of its label.
        self._labelled: dict[str, tuple[Any, str]] = {}
        for name, (label, values, text) in self.labelled.items():
            made = counter(name=self.prefix + name, documentation=text, labelnames=[*labelnames, label])
            self._labelled |= {f"{name}_{value}": (made, value) for value in values}
        for values in per_engine_labelvalues.values():
            for each in self._counters.values():
                each.labels(*values)  # exported from the start, as 0
            for each, value in self._labelled.values():
                each.labels(*values, value)
            for name in KINDS:
                self._paused.labels(*values, name).set(0)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        values = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name].labels(*values).inc(value)
            elif name in self._labelled:
                made, label = self._labelled[name]
                made.labels(*values, label).inc(value)
            elif name.startswith("paused_"):
                self._paused.labels(*values, name.removeprefix("paused_")).set(value)


class KVStorePromMetrics(Metrics, KVConnectorPromMetrics):  # type: ignore[misc]
    labelled = LABELLED
