"""The connector with pages in a GPU's memory: vLLM's own scheduler, the real worker, and arithmetic for a model, as in synthetic.py. The
simulated device works late or in turns, so missing event orders show: the arithmetic reads the pages as its own stream sees them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from simulated import Device

pytest.importorskip("vllm")
import tiny
import torch
import vllm
from conftest import Node
from synthetic import BLOCK, Engine
from test_vllm_module_requests import ask, in_order, parted, served, warm

import kvstore
from kvstore.device import Stream
from kvstore.vllm import compat
from kvstore.vllm.estimate import DeviceClock
from kvstore.vllm.messages import Block, Load, Step
from kvstore.vllm.pages import page_view

__all__ = ["served"]  # a fixture
pytestmark = pytest.mark.skipif("0.32" not in vllm.__version__, reason="CUDA devices are served from 0.32 on")

#: When the simulated device works, and its seed.
ORDERS = [("lazy", 1), ("random", 2), ("random", 3)]
SHAPES = pytest.mark.parametrize(
    "shape",
    [{}, {"windows": True}, {"windows": True, "states": True}, {"states": True, "hash_tokens": 8}],
    ids=["full", "windows", "states", "tails"],
)


class DeviceTensor:
    """A torch tensor as the connector sees it, with memory that PyTorch without CUDA cannot have."""

    def __init__(self, like: torch.Tensor, address: int) -> None:
        self._like, self._address = like, address
        self.shape, self.ndim, self.dtype = like.shape, like.ndim, like.dtype
        self.device = torch.device("cuda", 0)

    def stride(self, axis: int | None = None) -> Any:
        return self._like.stride() if axis is None else self._like.stride(axis)

    def element_size(self) -> int:
        return self._like.element_size()

    def data_ptr(self) -> int:
        return self._address


class TimedEvent:
    """PyTorch's, for steps that take 5 ms."""

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: TimedEvent) -> float:
        return 5.0


class DeviceEngine(Engine):
    """The words are the host's copy of the pages: read on its stream when a forward pass begins, and written back there later."""

    def __init__(self, device: Device, compute: Stream, model: Path, endpoint: str, **more: Any) -> None:
        self.device, self.compute = device, compute
        self._images: list[tuple[np.ndarray, int, np.ndarray]] = []
        super().__init__(model, endpoint, **more)

    def _given(self, tensor: torch.Tensor, memory: torch.Tensor) -> Any:
        host = memory.view(torch.uint8).numpy()
        host = host.reshape(*host.shape[:3], -1)  # [layer, part, page, bytes]
        if not any(np.shares_memory(host, each[0]) for each in self._images):
            address = self.device.allocate(host.nbytes)
            self.device.copy(address, host.ctypes.data, host.nbytes)
            self.device.synchronise(0)
            self._images.append((host, address, self.device.page_locked(host.nbytes).reshape(host.shape)))
        address = next(each[1] for each in self._images if np.shares_memory(host, each[0]))
        return DeviceTensor(tensor, address + tensor.data_ptr() - memory.data_ptr())

    def _begin_forward(self) -> None:
        self.device.synchronise(self.compute.handle)
        for host, address, written in self._images:
            self.device.copy(host.ctypes.data, address, host.nbytes)
            written[:] = host

    def _end_forward(self) -> None:
        for host, address, written in self._images:
            changed = np.argwhere((host != written).any(axis=-1))
            written[:] = host
            copies = []
            for index in changed:
                part = written[tuple(index)]
                at = part.ctypes.data
                copies.append((address + at - written.ctypes.data, at, part.nbytes))
            self.device.copy_on(self.compute.handle, copies)

    def close(self) -> None:
        self.device.synchronise(self.compute.handle)
        super().close()
        for _, address, _ in self._images:
            self.device.free(address)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make("llama", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def device() -> Device:
    made = Device()
    if not made.is_simulated:
        pytest.skip("the device is not simulated: PyTorch would have to be CUDA's")
    return made


@pytest.fixture(params=ORDERS, ids=lambda each: f"{each[0]}{each[1]}")
def order(request: pytest.FixtureRequest, device: Device) -> Iterator[str]:
    with device.runs(*request.param):
        yield request.param[0]


@pytest.fixture
def compute(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """The stream of the engine's thread."""
    stream = Stream()
    monkeypatch.setattr(compat, "current_stream", lambda: SimpleNamespace(cuda_stream=stream.handle))
    monkeypatch.setattr(compat, "timed_event", TimedEvent)
    return stream


@pytest.fixture
def engines(model: Path, device: Device, compute: Stream) -> Iterator[Any]:
    made: list[Engine] = []

    def make(endpoint: str | None, *, on_host: bool = False, **more: Any) -> Any:
        is_host = on_host or endpoint is None
        made.append(
            Engine(model, endpoint, **more) if is_host else DeviceEngine(device, compute, model, str(endpoint), **more)
        )
        return made[-1]

    yield make
    # The simulator reports unlocking memory while any stream has work.
    for each in made:
        for worker in each.workers if isinstance(each, DeviceEngine) else []:
            for line in (worker._worker._save_rows.line, worker._worker._load_rows.line):
                line.stream.synchronise()
    device.synchronise(compute.handle)
    for each in made:
        each.close()


def prompt_of(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1000), k=count)


def settle(engine: Engine, at_least: int) -> None:
    """Waits until so many blocks are stored."""
    until = time.monotonic() + 30
    side = engine.worker_side
    while side.counters["stored_blocks"] < at_least:
        assert time.monotonic() < until, side.counters
        side.end_step(Step())
        time.sleep(0.001)


@SHAPES
def test_another_engine_loads_what_one_has_computed(engines: Any, own_node: Node, order: str, shape: Any) -> None:
    prompt = prompt_of(500, 1)
    (expected,) = engines(None, **shape).generate(prompt, max_tokens=40)
    first = engines(own_node.endpoint, **shape)
    assert first.generate(prompt, max_tokens=40) == [expected]
    settle(first, 16)
    second = engines(own_node.endpoint, **shape)
    assert second.generate(prompt, max_tokens=40) == [expected]
    assert second.last_cached() >= (480 if "states" not in shape else 256)
    assert second.worker_side.counters["loaded_blocks"] > 0


def test_engines_on_the_host_and_on_a_device_share(engines: Any, own_node: Node, order: str) -> None:
    one, other = prompt_of(300, 1), prompt_of(333, 2)
    plain = engines(None)
    expected = [plain.generate(each, max_tokens=8)[0] for each in (one, other)]
    host, there = engines(own_node.endpoint, on_host=True), engines(own_node.endpoint)
    assert host.side._model.namespace == there.side._model.namespace
    assert host.generate(one) == expected[:1] and there.generate(other) == expected[1:]
    settle(host, 9)
    settle(there, 10)
    again = engines(own_node.endpoint)
    assert again.generate(one) == expected[:1] and again.last_cached() == 9 * BLOCK
    again = engines(own_node.endpoint, on_host=True)
    assert again.generate(other) == expected[1:] and again.last_cached() == 10 * BLOCK


@pytest.mark.parametrize("seed", range(3))
def test_many_requests_with_few_pages_and_few_rows(engines: Any, own_node: Node, order: str, seed: int) -> None:
    """Pages change owners while they are stored, and rows while they are copied."""
    draw = random.Random(seed)
    shared = prompt_of(200, 50 + seed)
    prompts = [shared[: draw.randrange(1, 200)] + prompt_of(draw.randrange(1, 150), seed * 100 + i) for i in range(14)]
    plain = engines(None)
    expected = [plain.generate(prompt, max_tokens=30)[0] for prompt in prompts]
    stored = preemptions = 0
    for turn in range(3):
        engine = engines(own_node.endpoint, page_count=28, options={"staging_bytes": 1})  # eight rows each way
        names = []
        for prompt in prompts:
            names.append(engine.add(prompt, 30))
            for _ in range(draw.randrange(6)):
                engine.step()
        engine.run()
        assert [engine.tokens[name] for name in names] == expected, turn
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            engine.worker_side.end_step(Step())
        stored += engine.worker_side.counters["stored_blocks"]
        preemptions += engine.preemptions
        assert engine.side.saves._held_count == 0
    assert stored > 20 and engine.worker_side.counters["loaded_blocks"] > 20
    assert preemptions > 0


def test_ranks_and_stages_on_devices(engines: Any, own_node: Node, order: str) -> None:
    prompt = prompt_of(300, 7)
    (expected,) = engines(None, heads=4).generate(prompt)
    first = engines(own_node.endpoint, heads=4, ranks=2, options={"head_groups": 4})
    assert first.generate(prompt) == [expected]
    settle(first, 18)  # two parts per rank
    until = time.monotonic() + 10
    other = first.workers[1]._worker
    while other.counters["stored_blocks"] < 18:
        assert time.monotonic() < until
        other.end_step(Step())
    second = engines(own_node.endpoint, heads=4, options={"head_groups": 4})
    assert second.generate(prompt) == [expected]
    assert second.last_cached() == 9 * BLOCK


def test_modules_are_loaded_into_a_devices_pages_in_any_order(
    engines: Any, own_node: Node, order: str, served: None
) -> None:
    """Also those that an engine on the host has stored."""
    plain, host, first = engines(None), engines(own_node.endpoint, on_host=True), engines(own_node.endpoint)
    warm(host, 0, 1)
    warm(first, 2, 3)
    for on_host in (False, True):
        second = engines(own_node.endpoint, on_host=on_host)
        for documents in ((0, 1, 2, 3), (3, 2, 0, 1)):
            prompt, modules = in_order(*documents)
            assert ask(second, prompt, modules, max_tokens=40) == parted(plain, prompt, modules, 40)
            assert second.last_cached() == len(prompt) - 9
            second.scheduler.reset_prefix_cache()


def test_a_dead_node_costs_a_recompute(engines: Any, own_node: Node, order: str) -> None:
    prompt = prompt_of(300, 3)
    (expected,) = engines(None).generate(prompt)
    first = engines(own_node.endpoint)
    assert first.generate(prompt) == [expected]
    settle(first, 9)
    second = engines(own_node.endpoint, options={"load_timeout": 0.3, "save_timeout": 0.3})
    name = second.add(prompt)
    second.between = own_node.kill  # the lookup is answered
    second.step()
    second.between = lambda: None
    second.run()
    assert second.tokens[name] == expected
    assert second.side.saves._held_count == 0


# -- the order of one step, call by call


@pytest.fixture
def side(engines: Any, own_node: Node, device: Device) -> Any:
    """A worker, its engine, and three blocks in the store."""
    engine = engines(own_node.endpoint)
    worker = engine.worker_side
    names = [bytes([i]) * 32 for i in range(3)]
    nbytes = worker._save_rows._model.groups[0].block_bytes
    blocks = np.random.default_rng(1).integers(0, 256, (3, nbytes), np.uint8)
    with kvstore.Client(own_node.endpoint) as client:
        assert client.open_set(worker._save_rows._model.namespace).put(names, blocks).stored == 3
    return SimpleNamespace(engine=engine, worker=worker, names=names, blocks=blocks)


def wait_for(worker: Any) -> None:
    for part in worker._parts:
        assert part.future.wait(10)


def pages_as_read(side: Any, pages: list[int]) -> np.ndarray:
    """By the engine's stream: [page, bytes of all layers]."""
    side.engine._begin_forward()
    host = side.engine._images[0][0]
    return host[:, 0, pages].transpose(1, 0, 2).reshape(len(pages), -1)


def test_a_load_comes_after_what_was_enqueued_before_it(side: Any, device: Device, compute: Stream) -> None:
    """vLLM sometimes fills new pages with zeros, on its stream."""
    worker, engine = side.worker, side.engine
    host, address, _ = engine._images[0]
    zeros = device.page_locked(host.shape[-1])
    zeros[:] = 0
    blocks = [Block(name, 0, page, i) for i, (name, page) in enumerate(zip(side.names, [5, 9, 2], strict=True))]
    for order, seed in ORDERS:
        with device.runs(order, seed):
            for index in np.ndindex(host.shape[:3]):
                at = address + host[index].ctypes.data - host.ctypes.data
                device.copy_on(compute.handle, [(at, zeros.ctypes.data, zeros.nbytes)])
            step = Step(loads=[Load(seed, "one", blocks)])
            worker.begin_step(step)
            worker.start_step(step)
            wait_for(worker)
            worker.end_step(step)
            ended = worker.end_loads()
            assert ended.finished_recving == {"one"} and not worker.take_bad_pages()
            assert (pages_as_read(side, [5, 9, 2]) == side.blocks).all()


def test_rows_stay_the_gpus_until_it_has_read_them(side: Any, device: Device) -> None:
    worker = side.worker
    blocks = [Block(name, 0, page, i) for i, (name, page) in enumerate(zip(side.names, [5, 9, 2], strict=True))]
    with device.runs("lazy"):
        free = worker._load_rows.free_count
        worker.start_step(Step(loads=[Load(1, "one", blocks)]))
        wait_for(worker)
        assert worker.end_loads().finished_recving == {"one"}, "reported at once: the forward pass waits on the device"
        assert worker._load_rows.free_count == free - 3
        assert (pages_as_read(side, [5, 9, 2]) == side.blocks).all()
        worker.start_step(Step())
        assert worker._load_rows.free_count == free


def test_pages_are_reported_and_rows_put_only_once_they_were_gathered(side: Any, device: Device) -> None:
    from kvstore.vllm.messages import Save

    worker = side.worker
    worker.take_report()  # of its stage, which a worker tells once
    with device.runs("lazy"):
        worker.end_step(Step(saves=[Save(4, [Block(b"x" * 32, 0, 7, 0)])]))
        gather = worker._gathers[0]
        # The device was not asked twice yet.
        assert not worker._puts and worker.take_report() is None
        assert gather.event.wait(10)
        worker.end_step(Step())
        assert len(worker._puts) == 1
        assert worker.take_report().gathered == {4: 1}
        settle(side.engine, 1)


def test_what_was_gathered_at_the_end_is_stored(side: Any, own_node: Node, device: Device) -> None:
    from kvstore.vllm.messages import Save

    name = b"y" * 32
    with device.runs("lazy"):
        side.worker.end_step(Step(saves=[Save(4, [Block(name, 0, 7, 0)])]))
        assert not side.worker._puts
        side.worker.close()
    with kvstore.Client(own_node.endpoint) as client:
        assert client.open_set(side.worker._save_rows._model.namespace).match([name]).held_count == 1


def test_a_failed_launch_is_a_missing_block(side: Any, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = side.worker
    blocks = [Block(name, 0, page, i) for i, (name, page) in enumerate(zip(side.names, [5, 9, 2], strict=True))]

    def fail(*_: Any) -> None:
        raise kvstore.Error("CUDA error 1")

    monkeypatch.setattr(worker._load_rows, "scatter", fail)
    monkeypatch.setattr(worker._save_rows, "gather", fail)
    from kvstore.vllm.messages import Save

    worker.start_step(Step(loads=[Load(1, "one", blocks)]))
    wait_for(worker)
    worker.end_step(Step(saves=[Save(4, [Block(b"x" * 32, 0, 7, 0)])]))
    worker.end_loads()
    assert worker.take_bad_pages() == {5, 9, 2}
    report = worker.take_report()
    assert report.loaded == {1: (1, 0)} and report.gathered == {4: 1}
    assert not worker._puts


def test_steps_are_measured_on_the_device() -> None:
    clock = DeviceClock(TimedEvent)
    clock.begin(4)
    assert clock.end(4)[1] == []
    clock.begin(200)
    assert clock.end(200)[1] == [(200, 0.005)]


# -- pages as CUDA's backends have them


class Shaped(DeviceTensor):
    """[blocks, heads, tokens, content] in the order of vLLM's layout, some layers of one allocation."""

    def __init__(
        self, device: Device, layout: str, layers: int, blocks: int, heads: int, tokens: int, content: int
    ) -> None:
        extents = {"L": layers, "B": blocks, "H": heads, "N": tokens, "C": content}
        memory = torch.arange(np.prod(list(extents.values())), dtype=torch.int32).to(torch.int16)
        self.host = memory.reshape([extents[axis] for axis in layout]).permute([layout.index(axis) for axis in "LBHNC"])
        address = device.allocate(memory.nbytes)
        device.copy(address, memory.data_ptr(), memory.nbytes)
        self.layer = layers - 1
        like = self.host[self.layer]
        super().__init__(like, address + like.data_ptr() - memory.data_ptr())


@pytest.mark.parametrize("layout", ["LBNHC", "LBHNC", "BLNHC", "BLHNC"])
@pytest.mark.parametrize(("heads", "tokens", "content"), [(2, 16, 256), (1, 64, 576)], ids=["GQA", "MLA"])
def test_pages_of_every_layout_are_gathered(device: Device, layout: str, heads: int, tokens: int, content: int) -> None:
    pages = Shaped(device, layout, 3, 5, heads, tokens, content)
    nbytes = heads * tokens * content * 2
    view = page_view("layer", pages, 5, nbytes)
    bound = kvstore.Layout.of([view], "bthf", roles=("key",)).bind([view])
    assert bound.device == 0
    with kvstore.Client("unix:///nowhere/node") as client:
        rows = client.allocate(2 * nbytes, page_locked=True).array((2, 1, 1, nbytes))
        staged = kvstore.Layout.of([rows], "bthf", roles=("key",)).bind([rows])
        assert kvstore.relayout(staged, [0, 1], bound, [4, 1], stream=Stream()).wait(10)
        order = [0, *(1 + "HNC".index(axis) for axis in layout[-3:])]
        wanted = pages.host[pages.layer].permute(order)[[4, 1]].contiguous().numpy().view(np.uint8).reshape(2, nbytes)
        assert (rows.reshape(2, nbytes) == wanted).all()


def test_pages_in_pieces_are_refused(device: Device) -> None:
    with pytest.raises(kvstore.Unsupported, match="has gaps"):
        page_view("layer", Shaped(device, "BHLNC", 3, 5, 2, 16, 32), 5, 2 * 16 * 32 * 2)
