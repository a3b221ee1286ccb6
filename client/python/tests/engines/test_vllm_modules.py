"""Prompt modules in real vLLM engines: loaded documents answer as transformers does alone under a mask that parts them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

pytest.importorskip("vllm")

import tiny
import torch
import transformers
from conftest import Node, free_port
from proxy import SET_GET, Proxy
from test_vllm_engine import BLOCK, Engine, prompt_of, same

from kvstore.vllm import compat
from kvstore.vllm.modules import MODULES_MAX

pytestmark = pytest.mark.skipif(not compat.SERVES_MODULES, reason="prompt modules are served from 0.32 on")
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
                logits = self.model(
                    torch.tensor([tokens]), attention_mask=self._mask(len(tokens), len(prompt), modules)
                )
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
        """Each is a prompt of its own in ``one``, until the store has it."""
        for each in modules:
            until = time.monotonic() + 60
            while self.one.generate(each, max_tokens=1, salt=salt, params=[{"modules": [[0, len(each)]]}])[
                "cached"
            ] != [len(each) - 1]:
                assert time.monotonic() < until

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


def ask(engine: Engine, prompt: list[int], modules: Any, salt: str = SALT) -> Any:
    return engine.generate(prompt, salt=salt, params=[{"modules": modules}])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_documents_in_any_order_answer_as_under_a_mask_that_parts_them(warm: House, order: tuple[int, ...]) -> None:
    prompt, modules = in_order(*order)
    expected = warm.reference.generate(prompt, modules)
    was = counted(warm.other, "loaded")
    answer = ask(warm.other, prompt, modules)
    assert answer["cached"] == [len(prompt) - len(QUESTION)]
    assert answer["tokens"] == [expected]
    assert counted(warm.other, "loaded") == was + 5
    whole = warm.plain.generate(prompt)["tokens"][0]
    assert whole == warm.reference.generate(prompt, []) and whole != expected, "the mask makes no difference"


def test_a_prompt_that_ends_with_a_module_has_its_last_token_computed(warm: House) -> None:
    prompt, modules = in_order(2, 0)
    prompt = prompt[: -len(QUESTION)]
    answer = ask(warm.other, prompt, modules)
    assert answer["cached"] == [len(prompt) - 1]
    assert answer["tokens"] == [warm.reference.generate(prompt, modules)]


def test_whole_prompts_are_untouched_by_modules(warm: House) -> None:
    """The same tokens and the same salt, with modules and without: neither vLLM's own cache nor the store mixes them."""
    prompt, modules = in_order(1, 2, 3, 0)
    expected = warm.plain.generate(prompt)
    parted = ask(warm.other, prompt, modules)
    assert parted["tokens"] != expected["tokens"]
    answer = warm.other.generate(prompt, salt=SALT)
    assert same(answer, expected) and answer["cached"] == [0]
    assert ask(warm.other, prompt, modules) == parted | {"seconds": ANY}, "the engine's own pages of the whole prompt"
    # What ``other`` has stored of the whole prompt is what ``plain`` computes.
    whole = len(prompt) // BLOCK * BLOCK
    until = time.monotonic() + 60
    while (answer := warm.one.generate(prompt, salt=SALT))["cached"] != [whole]:
        assert answer["tokens"] == expected["tokens"]
        assert time.monotonic() < until
        warm.one.reset()
    assert answer["tokens"] == expected["tokens"]


def test_what_another_salt_has_stored_is_not_found(warm: House) -> None:
    prompt, modules = in_order(0, 1)
    answer = ask(warm.other, prompt, modules, salt="another tenant")
    assert answer["cached"] == [0] and answer["tokens"] == warm.plain.generate(prompt)["tokens"]


def test_all_is_computed_if_one_module_is_missing_and_the_first_one_is_stored(warm: House) -> None:
    first, missing = prompt_of(45, 77), prompt_of(40, 78)
    prompt = first + DOCUMENTS[0] + missing + QUESTION
    modules = [[0, 45], [45, len(DOCUMENTS[0])], [45 + len(DOCUMENTS[0]), 40]]
    expected = warm.plain.generate(prompt)
    was = counted(warm.one, "computed")
    for _ in range(2):  # vLLM's own cache does not have it either
        answer = ask(warm.one, prompt, modules)
        assert same(answer, expected) and answer["cached"] == [0]
    assert counted(warm.one, "computed") == was + 6
    # The last one is stored by a request of its own, the first one was by those above.
    warm.warm(missing)
    until = time.monotonic() + 60
    while (answer := ask(warm.other, prompt, modules))["cached"] == [0]:
        assert time.monotonic() < until
    assert answer["tokens"] == [warm.reference.generate(prompt, modules)]


@pytest.mark.parametrize(
    ("reason", "modules", "text"),
    [
        ("form", "all", "modules is 'all', allowed are pairs"),
        ("form", [[0, 21], 5], "modules[1] is 5, allowed are two whole numbers"),
        ("form", [[0, 21.0]], "modules[0] is [0, 21.0], allowed are two whole numbers"),
        ("form", [[0, True]], "modules[0] is [0, True], allowed are two whole numbers"),
        ("form", [[0, 21, 22]], "modules[0] is [0, 21, 22]"),
        ("form", [[0, 0]], "counts from 1"),
        ("form", [[-1, 21]], "first tokens from 0"),
        ("many", [[i, 1] for i in range(MODULES_MAX + 1)], "modules has 1025 entries, allowed are at most 1024"),
        ("start", [[5, 16], [21, 70]], "modules[0] begins at token 5, allowed is 0"),
        ("overlap", [[0, 21], [20, 70]], "modules[1] begins at token 20, inside the module before, which ends at 21"),
        ("overlap", [[0, 21], [0, 21]], "modules[1] begins at token 0"),
        ("gap", [[0, 21], [22, 70]], "get_computed_token_gaps"),
        ("beyond", [[0, 21], [21, 1000]], "modules[1] ends at token 1021, the prompt has 302"),
    ],
)
def test_a_bad_list_is_refused_by_name_and_computed(warm: House, reason: str, modules: Any, text: str) -> None:
    prompt, _ = in_order(0, 1, 2, 3)
    expected = warm.plain.generate(prompt)
    warm.plain.reset()
    assert_refused(warm, reason, text, prompt, expected, salt=SALT, params=[{"modules": modules}])


def test_without_a_salt_modules_are_refused(warm: House) -> None:
    prompt, modules = in_order(0, 1, 2, 3)
    assert_refused(warm, "salt", "no cache_salt", prompt, warm.plain.generate(prompt), params=[{"modules": modules}])


def assert_refused(warm: House, reason: str, text: str, prompt: list[int], expected: Any, **more: Any) -> None:
    name = f"refused,reason={reason}"
    was, lookups = counted(warm.other, name), warm.other.metrics("vllm:kvstore_lookups")["vllm:kvstore_lookups"]
    warm.other.reset()
    answer = warm.other.generate(prompt, **more)
    assert answer["tokens"] == expected["tokens"] and answer["cached"] == [0]
    assert counted(warm.other, name) == was + 1
    assert warm.other.metrics("vllm:kvstore_lookups")["vllm:kvstore_lookups"] == lookups
    assert text in warm.other.log.read_text(errors="replace")


def test_a_module_that_is_damaged_on_its_way_costs_a_recompute(warm: House) -> None:
    prompt, modules = in_order(3, 2, 1)
    warm.proxy.flips = True
    answer = ask(warm.other, prompt, modules)
    assert warm.proxy.flipped > 0
    assert answer["cached"] == [0] and answer["tokens"] == warm.plain.generate(prompt)["tokens"]


def test_a_node_that_is_killed_between_lookup_and_load_costs_a_recompute(warm: House) -> None:
    """The last test of the house."""
    prompt, modules = in_order(2, 3, 1)
    expected = warm.plain.generate(prompt)
    killed = warm.proxy.trap(SET_GET, warm.node.kill)
    answer = ask(warm.other, prompt, modules)
    assert killed.wait(10)
    assert answer["cached"] == [0] and answer["tokens"] == expected["tokens"]
