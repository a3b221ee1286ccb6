"""Real vLLM engines with small models that encode images, and a real node: images encoded by one engine are loaded by the others.

Engines are compared with one without a store: tokens and log-probabilities are equal to the last bit.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")
pytest.importorskip("vllm.distributed.ec_transfer.ec_connector.base")

import tiny
from conftest import Node
from test_vllm_engine import Engine, prompt_of, same

import kvstore


class House:
    """Engines in processes of their own. ``plain`` has no store; the others share a node, which is away when they start. In ``apart`` the
    scheduler and the worker have separate processes too; so it cannot count its encoded images.
    """

    def __init__(self, folder: Path, kind: str = "llava", are_all: bool = True) -> None:
        """``are_all``: otherwise only ``one`` and ``other``."""
        model = tiny.make(kind, folder)
        self.node = Node()
        self.node.kill()

        def engine(name: str, endpoint: str | None, in_process: bool = True) -> Engine:
            more: dict[str, Any] = {}
            if endpoint is not None:
                more["ec_transfer_config"] = {
                    "ec_connector": "KVStoreECConnector",
                    "ec_connector_module_path": "kvstore.vllm.encoder",
                    "ec_role": "ec_both",
                    # A busy machine must not look like an absent store.
                    "ec_connector_extra_config": {
                        "endpoints": endpoint,
                        "lookup_timeout": 5.0,
                        "load_timeout": 10.0,
                        "save_timeout": 20.0,
                    },
                }
            return Engine(
                model,
                None,
                folder / f"{name}.log",
                in_process=in_process,
                skip_tokenizer_init=False,
                limit_mm_per_prompt={"image": 4} | ({"video": 0} if kind == "qwen2vl" else {}),
                num_gpu_blocks_override=500,
                max_model_len=1024,
                **more,
            )

        self.one = engine("one", self.node.endpoint)
        self.other = engine("other", self.node.endpoint)
        self.all = [self.one, self.other]
        if are_all:
            self.plain = engine("plain", None)
            self.apart = engine("apart", self.node.endpoint, in_process=False)
            self.all += [self.plain, self.apart]
        for each in self.all:
            each.wait_ready()
        self.node.start()

    def stored_outputs(self) -> int:
        return self._count("stored_blocks")

    def loaded_outputs(self) -> int:
        return self._count("get_hit_blocks")

    def _count(self, name: str) -> int:
        with kvstore.Client(self.node.endpoint, deadline=30) as client:
            (node,) = client.stats()
        assert node["error"] is None, node
        return int(node["values"][name])

    def close(self) -> None:
        for each in self.all:
            each.begin_close()
        for each in self.all:
            each.close()
        self.node.close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("engines"))
    yield made
    made.close()


def prompt_with(images: list[int], seed: int) -> list[int]:
    """Text before, between and after the images."""
    words = [each for each in prompt_of(400, seed) if 3 < each < tiny.IMAGE_TOKEN]
    prompt = words[:40]
    for i in range(len(images)):
        prompt += [tiny.BEFORE_IMAGE, tiny.IMAGE_TOKEN, tiny.AFTER_IMAGE, *words[100 + 20 * i : 110 + 20 * i]]
    return prompt + words[300:330]


class Asked:
    """One request to several engines: each one's answer, and how many images it encoded for that."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}

    def of(self, engine: Engine, images: list[int], seed: int) -> tuple[Any, int]:
        return self.at_once(engine, (images, seed))

    def at_once(self, engine: Engine, *requests: tuple[list[int], int]) -> tuple[Any, int]:
        prompts = [prompt_with(images, seed) for images, seed in requests]
        answer = engine.generate(*prompts, images=[images for images, _ in requests], max_tokens=8)
        before = self._before.get(id(engine), 0)
        self._before[id(engine)] = answer["encoded"]
        return answer, answer["encoded"] - before


_images = itertools.count(1000)


def until_shared(house: House, asked: Asked) -> None:
    """Waits until ``other`` loads images that ``one`` has just encoded: after failures their connectors pause."""
    until = time.monotonic() + 180
    encoded = 1
    while encoded != 0:
        assert time.monotonic() < until
        image = next(_images)
        expected, _ = asked.of(house.plain, [image], image)
        for engine in (house.one, house.other):
            answer, encoded = asked.of(engine, [image], image)
            assert same(answer, expected)


@pytest.fixture(scope="module")
def asked(house: House) -> Asked:
    """The engines began without a store."""
    made = Asked()
    until_shared(house, made)
    return made


def until_stored(house: House, asked: Asked, images: list[int], seed: int) -> Any:
    """The plain engine's answer, which ``one`` gives too; afterwards the node has the images."""
    before = house.stored_outputs()
    expected, encoded = asked.of(house.plain, images, seed)
    assert encoded == len(images)
    first, encoded = asked.of(house.one, images, seed)
    assert same(first, expected)
    assert encoded == len(images)
    until = time.monotonic() + 60
    while house.stored_outputs() < before + len(images):
        assert time.monotonic() < until
        time.sleep(0.02)
    return expected


def test_an_image_that_another_engine_has_encoded_is_not_encoded_again(house: House, asked: Asked) -> None:
    expected = until_stored(house, asked, [1], 1)
    assert len(set(expected["tokens"][0])) > 2
    answer, encoded = asked.of(house.other, [1], 1)
    assert same(answer, expected)
    assert encoded == 0
    # Images must make a difference for the comparison to count.
    different, _ = asked.of(house.plain, [2], 1)
    assert different["logprobs"] != expected["logprobs"]


def test_of_several_images_only_new_ones_are_encoded(house: House, asked: Asked) -> None:
    until_stored(house, asked, [11, 12], 2)
    expected, _ = asked.of(house.plain, [12, 13, 11], 3)
    answer, encoded = asked.of(house.other, [12, 13, 11], 3)
    assert same(answer, expected)
    assert encoded == 1


def test_requests_at_once_share_what_is_loaded(house: House, asked: Asked) -> None:
    until_stored(house, asked, [41, 42], 8)
    requests = [([41, 42], 9), ([42], 10), ([41], 11)]
    expected, encoded = asked.at_once(house.plain, *requests)
    assert encoded == 0
    answer, encoded = asked.at_once(house.other, *requests)
    assert same(answer, expected)
    assert encoded == 0


def test_a_worker_in_another_process_than_the_scheduler_gets_what_was_loaded(house: House, asked: Asked) -> None:
    until = time.monotonic() + 180
    loaded = 0
    while loaded == 0:
        assert time.monotonic() < until
        image = next(_images)
        expected = until_stored(house, asked, [image], image)
        before = house.loaded_outputs()
        answer = house.apart.generate(prompt_with([image], image), images=[[image]], max_tokens=8)
        assert same(answer, expected)
        loaded = house.loaded_outputs() - before


def test_what_the_engine_has_itself_is_not_asked_for(house: House, asked: Asked) -> None:
    until_stored(house, asked, [21], 4)
    for seed in (5, 6):
        expected, _ = asked.of(house.plain, [21], seed)
        answer, encoded = asked.of(house.one, [21], seed)
        assert same(answer, expected)
        assert encoded == 0


def test_a_dead_node_costs_an_encoding(house: House, asked: Asked) -> None:
    expected = until_stored(house, asked, [31], 7)
    house.node.kill()
    answer, encoded = asked.of(house.other, [31], 7)
    assert same(answer, expected)
    assert encoded == 1
    house.node.start()  # empty
    until_shared(house, asked)


def test_images_of_several_sizes_with_a_model_whose_positions_depend_on_them(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Qwen2-VL: an image's size determines its tokens. ``one`` encodes all, and ``other`` is compared with it."""
    house = House(tmp_path_factory.mktemp("engines"), "qwen2vl", are_all=False)
    try:
        asked = Asked()
        until = time.monotonic() + 180
        loaded: set[int] = set()  # aspect ratios
        while loaded != {0, 1, 2}:
            assert time.monotonic() < until
            image = next(_images)
            expected, encoded = asked.of(house.one, [image], image)
            assert encoded == 1
            answer, encoded = asked.of(house.other, [image], image)
            assert same(answer, expected)
            if encoded == 0:
                loaded.add(image % 3)
        images = [next(_images) for _ in range(3)]
        expected, _ = asked.of(house.one, images, 1)
        different, _ = asked.of(house.one, images[::-1], 1)
        assert different["logprobs"] != expected["logprobs"]
        answer, _ = asked.of(house.other, images, 1)
        assert same(answer, expected)
    finally:
        house.close()
