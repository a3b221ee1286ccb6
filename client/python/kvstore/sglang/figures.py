"""The connector's metrics in SGLang's ``/metrics``, beside SGLang's own storage metrics."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..doors.door import Door

#: Pages of all pools, with their parts of this rank.
COUNTERS = {
    "lookups": "Batches of pages that the store was asked about.",
    "hit_pages": "Pages of these that it had.",
    "loaded_pages": "Pages that were loaded.",
    "loaded_bytes": "Their bytes.",
    "missing_pages": "Pages of loads that did not come.",
    "stored_pages": "Pages that the store has taken, or had.",
    "stored_bytes": "Their bytes.",
    "refused_pages": "Pages that were to be stored and are not.",
    "failures": "Calls to the store that failed.",
}
_LABELS = ("model_name", "tp_rank", "pp_rank")


@cache
def _metrics() -> tuple[dict[str, Any], Any]:
    """Once per process, for any number of storages. SGLang collects the metrics of all its processes by files."""
    from prometheus_client import Counter, Gauge

    counters = {name: Counter(f"sglang:kvstore_{name}", text, _LABELS) for name, text in COUNTERS.items()}
    text = "1 while failures keep the engine from making such calls."
    return counters, Gauge("sglang:kvstore_paused", text, [*_LABELS, "calls"], multiprocess_mode="mostrecent")


def tell(door: Door, labels: tuple[str, str, str]) -> None:
    """Reports a door's counters to Prometheus, under the values of _LABELS. From one thread."""
    counters, gauge = _metrics()
    changes = door.changes(COUNTERS)
    for name, counter in counters.items():
        counter.labels(*labels).inc(changes.get(name, 0))  # by 0 too: exported from the start
    for kind in door.gates:
        gauge.labels(*labels, kind).set(changes.get(f"paused_{kind}", 0))
