"""The connector, with a clock around each of vLLM's calls (measure_vllm.py)."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvstore.vllm import KVStoreConnector

HOOKS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "get_external_cache_hit_sources",
    "build_connector_meta",
    "update_connector_output",
    "request_finished_all_groups",
    "start_load_kv",
    "wait_for_save",
    "get_transfer_results",
    "get_kv_connector_stats",
    "build_connector_worker_meta",
)
#: Written every so many calls, since a signal may end the engine.
WRITE_EVERY = 500


class TimedConnector(KVStoreConnector):
    """Writes ``{hook: [[seconds, thread seconds], ...]}`` into KVSTORE_HOOK_TIMES; the difference is waiting (processor, GIL)."""

    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in HOOKS}  # noqa: RUF012
    calls = 0

    @classmethod
    def write(cls) -> None:
        path = Path(os.environ["KVSTORE_HOOK_TIMES"]) / f"{os.getpid()}.json"
        path.with_suffix(".new").write_text(json.dumps(cls.seconds))
        path.with_suffix(".new").rename(path)

    def shutdown(self) -> None:
        super().shutdown()
        self.write()


def timed(name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def call(*given: Any, **more: Any) -> Any:
        began, own_began = time.perf_counter(), time.thread_time()
        try:
            return hook(*given, **more)
        finally:
            own = time.thread_time() - own_began
            TimedConnector.seconds[name].append((time.perf_counter() - began, own))
            TimedConnector.calls += 1
            if TimedConnector.calls % WRITE_EVERY == 0:
                TimedConnector.write()

    return call


for each in HOOKS:
    setattr(TimedConnector, each, timed(each, getattr(KVStoreConnector, each)))
