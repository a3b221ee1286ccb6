"""The connector's half in the scheduler's process: knows the requests, and speaks with the workers once a step."""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger

from ..doors.door import Door
from ..namespaces import Namespace
from .adapters import Adapters, Named
from .compat import preempted_of, set_apart, states_of
from .messages import Report, Stage, Step
from .model import Model
from .modules import REFUSED, Refused, modules_of
from .requests import KnownRequest, reuse_of, weights_epoch_of
from .scheduler_loads import SchedulerLoads
from .scheduler_saves import SchedulerSaves, States
from .stats import KVStoreStats
from .told import Told

logger = init_logger("vllm.kvstore")


class SchedulerSide:
    """Runs on the scheduler's thread, which all requests share: no call here waits for a node.

    1. Lookups, loads and saves wait until the workers have reported their weights, and the request's adapter.
    2. Of a request with prompt modules nothing is looked up or stored under the names of exact prefixes, here or in vLLM's own cache.
    """

    def __init__(self, model: Model, *, loads: bool, saves: bool) -> None:
        self._model = model
        self._door = Door(model.options, "vllm-scheduler", logger, deadline=model.options.load_timeout)
        self.counters = self._door.counters
        self._told = Told(model.rank_count, model.stage_count)
        self._adapters = Adapters(model.rank_count * model.stage_count)
        self._requests: dict[str, KnownRequest] = {}
        self.loads = SchedulerLoads(model, self._door, self._told, self._requests, is_used=loads)
        self.saves = SchedulerSaves(model, self._door, self._adapters, self._requests, is_used=saves)
        self._has_states = any(group.is_state for group in model.groups)
        self._has_told_of_modules = False

    def told(self, stages: dict[int, Stage]) -> None:
        """By worker number. With pipeline parallelism, all stages have to hold a block."""
        if self._told.take(stages):
            self._model.namespace = Namespace.from_text(self._told.stages[0].namespace)
            self.loads.open()

    # -- requests

    def on_new_request(self, request: Any) -> None:
        self.loads.look_up(self._meet(request))

    def _meet(self, request: Any) -> KnownRequest:
        known = self._requests[request.request_id] = KnownRequest(
            request, self._told, reuse=reuse_of(request), own_epoch=weights_epoch_of(request)
        )
        if known.adapter is not None:
            known.named = Named(request, self._model.hasher)
            self._adapters.met(request)
        self._name(known)
        self.saves.has_epochs |= known.epoch != b""
        self._take_modules(known)
        return known

    def _take_modules(self, known: KnownRequest) -> None:
        """Reads the request's modules. A model's refusal is logged once, a list's for each request."""
        request = known.request
        try:
            known.modules = modules_of(request, self._model.block_size)
            if known.modules is not None and self._told.why_no_modules:
                raise Refused("model", f"prompt modules of this model are not served: {self._told.why_no_modules}")
        except Refused as why:
            known.modules = REFUSED
            self.counters[f"modules_refused_{why.reason}"] += 1
            if why.reason != "model" or not self._has_told_of_modules:
                self._has_told_of_modules |= why.reason == "model"
                logger.warning("kvstore: request %s is computed: %s", request.request_id, why)
        if known.modules is not None and known.modules.blocks:
            set_apart(request)

    def _name(self, known: KnownRequest) -> None:
        """Sets the epoch from the adapter's identity, as far as it is known."""
        adapter = b"" if known.adapter is None else self._adapters.epoch(known.adapter)
        known.epoch = None if adapter is None or known.own_epoch is None else known.own_epoch + adapter

    def _known(self, request: Any) -> KnownRequest:
        return self._requests.get(request.request_id) or self._meet(request)

    def matched_tokens(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        count = self.loads.matched_tokens(self._known(request), computed_tokens)
        return count, bool(count)

    def admitted(self, request: Any, pages: tuple[list[int], ...], external_tokens: int) -> None:
        self.loads.admitted(self._known(request), pages, external_tokens)

    def finished_inside(self, request: Any, pages: tuple[list[int], ...], states: States) -> None:
        """Called before ``finished``, with the states that the request has left where it ends inside a page."""
        known = self._requests.get(request.request_id)
        if known is not None:
            self.saves.save_tails(known, states, pages)

    def finished(self, request: Any, pages: tuple[list[int], ...]) -> None:
        """Called before the request's pages are freed: its last save takes references of its own."""
        known = self._requests.pop(request.request_id, None)
        if known is None:
            return
        self.loads.release(known)
        # Steps under way have not filled their pages yet.
        token_count = request.num_computed_tokens - request.num_in_flight_tokens
        self.saves.save(known, token_count, pages)
        if known.is_admitted:
            self.loads.touch(known, token_count // self._model.block_size)

    # -- steps

    def build_step(self, output: Any) -> Step:
        scheduled = [
            (self._requests[request_id], token_count)
            for request_id, token_count in output.num_scheduled_tokens.items()
            if request_id in self._requests
        ]
        states = states_of(output) if self._has_states else {}
        self.saves.note(scheduled)
        self._part_again(output)
        for known, token_count in scheduled:
            known.is_fresh = False
            kept = states.get(known.request.request_id, [])
            self.saves.save(known, known.request.num_computed_tokens + token_count, states=kept)
            self.saves.save_tails(known, kept)
        step = Step(self.loads.take_begun(), self.saves.take_begun(), sum(output.num_scheduled_tokens.values()))
        if step.token_count > 0:  # sleeping workers have no weights: they check in a step that computes
            step.reset = self._told.reset_asked
            step.adapters = {
                known.adapter: self._adapters.epoch(known.adapter) is None
                for known, _ in scheduled
                if known.adapter is not None
            }
        return step

    def _part_again(self, output: Any) -> None:
        """Preempted requests with modules would go on with what vLLM's cache still has of them, and compute the rest behind that."""
        for request_id in preempted_of(output):
            known = self._requests.get(request_id)
            if known is not None and known.modules is not None and known.modules.blocks:
                set_apart(known.request)

    def received(self, report: Report) -> None:
        """Takes the workers' report."""
        self.told(report.stages)
        self._told.take_weights(report.weights)
        self._named(self._adapters.told(report.adapters))
        self.saves.received(report)
        self.loads.received(report)

    def _named(self, adapters: list[int]) -> None:
        """These adapters' identities are now known, so their requests' blocks can be stored."""
        for known in self._requests.values() if adapters else ():
            if known.adapter in adapters:
                was = known.epoch
                self._name(known)
                if was is None:
                    known.noted = known.load_begin  # those pages are of this epoch
                elif known.epoch != was:
                    known.is_mixed = True

    # -- life

    def reset(self) -> None:
        """The weights may have changed: workers check in the next step that computes. Until then blocks have no names."""
        self._told.reset()
        for known in self._requests.values():
            self.loads.release(known)
            known.saved = 0
            known.is_mixed = True  # its pages are of the old weights, unless it gets others

    def take_stats(self) -> KVStoreStats | None:
        return KVStoreStats.of(self._door)

    def close(self) -> None:
        self._door.close()
