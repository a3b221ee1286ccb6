"""Prompt modules in real vLLM engines: loaded documents answer as transformers does alone under a mask that parts them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import tiny
import torch
import transformers
from conftest import Node, free_port
from proxy import SET_GET, Proxy
from test_vllm_engine import BLOCK, Engine, prompt_of, same

from kvstore.vllm.modules import MODULES_MAX

#: An instruction and four documents, and a question. None but one document ends at a page's end.
INSTRUCTION, QUESTION = prompt_of(21, 1), prompt_of(13, 2)
DOCUMENTS = [prompt_of(count, 10 + count) for count in (70, 2 * BLOCK, 33, 101)]
SALT = "a tenant"


def in_order(*order: int) -> tuple[list[int], list[list[int]]]:
    """The prompt with the documents in this order behind the instruction, and its modules without the question."""
    prompt: list[int] = []
    modules = []
    for each in (INSTRUCTION, *(DOCUMENTS[i] for i in order)):
        modules.append([len(prompt), len(each)])
        prompt = prompt + each
    return prompt + QUESTION, modules


class Reference:
    """transformers alone: tokens of a module see their module, later ones see everything."""

    def __init__(self, model: Path) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def generate(self, prompt: list[int], modules: list[list[int]], max_tokens: int = 16) -> list[int]:
        tokens = list(prompt)
        with torch.no_grad():
            for _ in range(max_tokens):
                logits = self.model(torch.tensor([tokens]), attention_mask=self._mask(len(tokens), len(prompt), modules))
                tokens.append(int(logits.logits[0, -1].argmax()))
        return tokens[len(prompt) :]

    @staticmethod
    def _mask(count: int, prompt_count: int, modules: list[list[int]]) -> torch.Tensor:
        sees = torch.ones(count, count).tril().bool()
        for first, length in modules:
            end = min(first + length, prompt_count - 1)  # vLLM computes the prompt's last token itself
            sees[first:end, :first] = False
        return torch.where(sees, 0.0, torch.finfo(torch.float32).min)[None, None]


class House:
    """``plain`` has no store, ``one`` and ``other`` share a node. ``other`` reaches it by TCP, through a proxy."""

    def __init__(self, folder: Path) -> None:
        model = tiny.make("llama", folder)
        self.reference = Reference(model)
        port = free_port()
        self.node = Node("--listen", f"tcp://127.0.0.1:{port}")
        self.proxy = Proxy(("127.0.0.1", port))
        common: dict[str, Any] = {"dtype": "float32", "num_gpu_blocks_override": 500, "max_num_batched_tokens": 128}
        self.plain = Engine(model, None, folder / "plain.log", **common)
        self.one = Engine(model, self.node.endpoint, folder / "one.log", **common)
        self.other = Engine(model, self.proxy.endpoint, folder / "other.log", **common)
        for each in (self.plain, self.one, self.other):
            each.wait_ready()

    def warm(self, *modules: list[int], salt: str = SALT) -> None:
        """Each is a prompt of its own in ``one``; then all of them are stored."""
        was = self.one.metrics("vllm:kvstore_loaded_tokens").popitem()[1]
        expected = was + sum(len(each) - 1 for each in modules)
        until = time.monotonic() + 60
        for each in modules:
            while True:  # a save ends with later steps
                loaded = self.one.metrics("vllm:kvstore_loaded_tokens").popitem()[1]
                self.one.generate(each, max_tokens=1, salt=salt, params=[{"modules": [[0, len(each)]]}])
                now = self.one.metrics("vllm:kvstore_loaded_tokens").popitem()[1]
                if now == loaded + len(each) - 1:
                    break
                assert time.monotonic() < until, (now, expected)

    def close(self) -> None:
        for each in (self.plain, self.one, self.other):
            each.begin_close()
        for each in (self.plain, self.one, self.other):
            each.close()
        self.proxy.close()
        self.node.close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("modules"))
    yield made
    made.close()


@pytest.fixture
def warm(house: House) -> House:
    house.proxy.reset()
    house.warm(INSTRUCTION, *DOCUMENTS)
    return house


def counted(engine: Engine, name: str) -> int:
    return int(engine.metrics("vllm:kvstore_modules")[f"vllm:kvstore_modules_{name}"])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_documents_in_any_order_answer_as_under_a_mask_that_parts_them(warm: House, order: tuple[int, ...]) -> None:
    prompt, modules = in_order(*order)
    expected = warm.reference.generate(prompt, modules)
    was = counted(warm.other, "loaded")
    answer = warm.other.generate(prompt, salt=SALT, params=[{"modules": modules}])
    assert answer["cached"] == [len(prompt) - len(QUESTION)]
    assert answer["tokens"] == [expected]
    assert counted(warm.other, "loaded") == was + 5
    whole = warm.plain.generate(prompt)["tokens"][0]
    assert whole == warm.reference.generate(prompt, []) and whole != expected, "the mask makes no difference"
