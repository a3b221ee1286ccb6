"""Encoder outputs in the store: both halves of the connector as vLLM calls them, a real node, and made-up outputs."""

from __future__ import annotations

import pickle
import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")
pytest.importorskip("vllm.distributed.ec_transfer.ec_connector.base")

import numpy as np
import tiny
import torch
from conftest import Node
from synthetic import Worker, engine_config
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorRole
from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory

import kvstore
from kvstore.doors.outputs import HEADER_BYTES, decoded, encoded
from kvstore.vllm.encoder import KVStoreECConnector


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make("llama", tmp_path_factory.mktemp("model"))


class Engine:
    """vLLM's use of encoder outputs: counts ``encode``, ``cache`` is the worker's."""

    def __init__(self, model: Path, endpoint: str, role: str = "ec_both", **options: Any) -> None:
        config = engine_config(
            model,
            None,
            ec_transfer_config={
                "ec_connector": "KVStoreECConnector",
                "ec_connector_module_path": "kvstore.vllm.encoder",
                "ec_role": "ec_both",
                "ec_connector_extra_config": {"endpoints": endpoint, "lookup_timeout": 5.0, "load_timeout": 5.0}
                | options,
            },
        )
        config.ec_transfer_config.ec_role = role  # vLLM requires this role for a model without an encoder
        self.scheduler: KVStoreECConnector = ECConnectorFactory.create_connector(config, ECConnectorRole.SCHEDULER)
        self.worker: KVStoreECConnector = ECConnectorFactory.create_connector(config, ECConnectorRole.WORKER)
        self.cache: dict[str, torch.Tensor] = {}
        self.encoded: list[str] = []
        self.freed: list[str] = []
        Worker().call(self.worker.start_worker_services)
        self._step([])
        for each in (self.scheduler, self.worker):
            for _ in range(50):
                if each._door.client.ping(deadline=0.1) != [None]:
                    break

    def run(self, request: Any, seconds: float = 20) -> None:
        """Runs until all of the request's outputs are in the worker's cache."""
        until = time.monotonic() + seconds
        while not self.scheduler.ensure_cache_available(request, 0):
            assert time.monotonic() < until
            self._step([])
            time.sleep(0.001)
        computed = []
        for i, feature in enumerate(request.mm_features):
            if feature.identifier in self.cache:
                continue
            if not self.scheduler.has_cache_item(feature.identifier):
                computed.append(feature.identifier)
            self.scheduler.update_state_after_alloc(request, i)
        self._step(computed)
        for feature in request.mm_features:
            assert torch.equal(self.cache[feature.identifier], output_of(feature.identifier))
        self.scheduler.request_finished(request)

    def _step(self, computed: list[str]) -> None:
        freed, self.freed = self.freed, []
        step = self.scheduler.build_connector_meta(SimpleNamespace(free_encoder_mm_hashes=freed))
        for each in freed:
            del self.cache[each]
        self.worker.bind_connector_metadata(pickle.loads(pickle.dumps(step)))
        if self.worker.is_consumer:
            self.worker.start_load_caches(self.cache)
        for identifier in computed:
            self.cache[identifier] = output_of(identifier)
            self.worker.save_caches(encoder_cache=self.cache, mm_hash=identifier)
        self.encoded += computed
        word = pickle.loads(pickle.dumps(self.worker.build_connector_worker_meta()))
        self.scheduler.update_connector_output(SimpleNamespace(ec_connector_worker_meta=word))
        self.worker.clear_connector_metadata()

    def settle(self) -> None:
        until = time.monotonic() + 20
        while self.worker._saves:
            assert time.monotonic() < until
            self.worker._end_saves()
            time.sleep(0.001)

    def close(self) -> None:
        self.scheduler.shutdown()
        self.worker.shutdown()


def rows_of(identifier: str) -> int:
    return 1 + random.Random(identifier).randrange(600)


def output_of(identifier: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(random.Random(identifier).randrange(1 << 30))
    return torch.randn(rows_of(identifier), 256, generator=generator).to(torch.bfloat16)


_requests = iter(range(10**9))


def request_of(*identifiers: str) -> Any:
    features = [
        SimpleNamespace(
            identifier=each,
            mm_position=SimpleNamespace(offset=i * 700, length=700, get_num_embeds=lambda each=each: rows_of(each)),
        )
        for i, each in enumerate(identifiers)
    ]
    return SimpleNamespace(request_id=f"r{next(_requests)}", mm_features=features)


@pytest.fixture
def engines(model: Path) -> Iterator[Any]:
    made: list[Engine] = []

    def make(endpoint: str, **more: Any) -> Engine:
        made.append(Engine(model, endpoint, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_what_one_engine_has_encoded_another_loads(engines: Any, own_node: Node) -> None:
    one, other = engines(own_node.endpoint), engines(own_node.endpoint)
    one.run(request_of("a", "b"))
    one.settle()
    assert one.encoded == ["a", "b"]
    other.run(request_of("b", "c", "a"))
    assert other.encoded == ["c"]
    assert other.scheduler.counters["loaded_outputs"] == 2


def test_what_the_engine_has_is_not_asked_for_and_what_it_let_go_is(engines: Any, own_node: Node) -> None:
    one = engines(own_node.endpoint)
    one.run(request_of("a"))
    one.settle()
    asked = one.scheduler.counters["lookups"]
    one.run(request_of("a"))
    assert one.scheduler.counters["lookups"] == asked
    one.freed = ["a"]
    one._step([])
    one.run(request_of("a"))
    assert one.encoded == ["a"]
    assert one.scheduler.counters["lookups"] == asked + 1


def test_roles(engines: Any, own_node: Node) -> None:
    producer, consumer = engines(own_node.endpoint, role="ec_producer"), engines(own_node.endpoint, role="ec_consumer")
    consumer.run(request_of("x"))
    producer.run(request_of("x"))
    assert producer.encoded == ["x"]  # a consumer does not store, a producer does not load
    producer.settle()
    other = engines(own_node.endpoint, role="ec_consumer")
    other.run(request_of("x"))
    assert other.encoded == []


def test_engines_of_different_salts_do_not_share(engines: Any, own_node: Node) -> None:
    one = engines(own_node.endpoint)
    one.run(request_of("a"))
    one.settle()
    other = engines(own_node.endpoint, salt="s")
    other.run(request_of("a"))
    assert other.encoded == ["a"]


def test_without_a_node_everything_is_encoded(engines: Any, own_node: Node) -> None:
    own_node.kill()
    one = engines(own_node.endpoint)
    for i in range(6):
        one.run(request_of(f"a{i}"))
    assert len(one.encoded) == 6


def test_a_node_killed_between_lookup_and_load_costs_an_encoding(engines: Any, own_node: Node) -> None:
    one, other = engines(own_node.endpoint), engines(own_node.endpoint)
    one.run(request_of("a"))
    one.settle()
    request = request_of("a")
    assert not other.scheduler.ensure_cache_available(request, 0)
    other.scheduler._items["a"].match.wait(5)  # type: ignore[union-attr]
    own_node.kill()
    other.run(request)
    assert other.encoded == ["a"]


def test_a_stopped_node_costs_the_timeout(engines: Any, own_node: Node) -> None:
    one = engines(own_node.endpoint, lookup_timeout=0.1)
    own_node.pause()
    began = time.monotonic()
    one.run(request_of("a"))
    assert time.monotonic() - began < 2
    assert one.encoded == ["a"]
    own_node.resume()


def test_an_output_of_other_rows_or_no_output_is_encoded(engines: Any, own_node: Node) -> None:
    one = engines(own_node.endpoint)
    good = encoded(output_of("short")[:-1])
    assert good is not None
    space = one.worker._space
    assert space.put([one.worker._name("short")], [good], deadline=5).stored == 1
    assert space.put([one.worker._name("junk")], [np.ones(1000, np.uint8)], deadline=5).stored == 1
    one.run(request_of("short", "junk"))
    assert one.encoded == ["short", "junk"]


def test_outputs_over_the_limit_are_not_stored(engines: Any, own_node: Node) -> None:
    one = engines(own_node.endpoint, output_bytes_max=1024)
    one.run(request_of("a"))
    assert one.worker.counters["dropped_outputs"] == 1


def test_a_request_that_ends_early_leaves_nothing(engines: Any, own_node: Node) -> None:
    one = engines(own_node.endpoint)
    first, second = request_of("a", "b"), request_of("b")
    one.scheduler.ensure_cache_available(first, 0)
    one.scheduler.ensure_cache_available(second, 0)
    one.scheduler.request_finished(first)
    assert set(one.scheduler._items) == {"b"}
    one.scheduler.request_finished(second)
    assert not one.scheduler._items


def test_what_is_before_the_computed_tokens_is_not_needed(engines: Any, own_node: Node) -> None:
    one = engines(own_node.endpoint)
    assert one.scheduler.ensure_cache_available(request_of("a"), 700)
    assert not one.scheduler._items


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_outputs_are_what_they_were(dtype: torch.dtype) -> None:
    for shape in ((3,), (5, 7), (2, 3, 4), (1, 2, 3, 4, 5)):
        output = torch.randn(shape).to(dtype)
        data = encoded(output)
        assert data is not None
        back = decoded(data)
        assert back is not None
        assert back.dtype == dtype
        assert torch.equal(back, output)
    assert encoded(torch.ones(3, dtype=torch.int64)) is None
    assert encoded(torch.ones(0)) is None


def test_the_form_in_which_an_output_is_stored_is_version_1() -> None:
    """Engines of other releases of this package read it: another form is another version."""
    data = encoded(torch.tensor([[1.0, 2.0, 3.0]]).to(torch.bfloat16))
    assert data is not None
    assert (
        data.tobytes().hex()
        == (
            "4b564543" + "0100" + "0200"  # mark, version, axes
            "62666c6f617431360000000000000000"  # bfloat16
            "0100000000000000" + "0300000000000000" + 3 * "0000000000000000" + "803f00404040"
        )
    )


def test_bytes_that_are_no_output_are_none() -> None:
    dice = random.Random(5)
    good = encoded(torch.randn(4, 8))
    assert good is not None
    for _ in range(3000):
        data = good.copy()
        for _ in range(dice.randrange(1, 4)):
            data[dice.randrange(HEADER_BYTES)] = dice.randrange(256)
        data = data[: dice.choice([len(data), dice.randrange(len(data))])]
        output = decoded(data)
        assert output is None or output.numel() * output.element_size() == len(data) - HEADER_BYTES
    huge = struct.pack("<4sHH16s5Q", b"KVEC", 1, 5, b"float32", *[2**40] * 5)
    assert decoded(np.frombuffer(huge, np.uint8)) is None


def test_options_are_checked(model: Path) -> None:
    with pytest.raises(kvstore.errors.BadRequest, match="salt is 3"):
        Engine(model, "unix:///nowhere", salt=3)
