"""Lists of prompt modules, and requests with them in vLLM's own scheduler, with arithmetic in place of a model (synthetic.py).

A token's state depends on the one before, and a module's first token begins anew. Keys do not turn: the arithmetic has no positions.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import scheduled
from conftest import Node
from scheduled import lora, prompt_of, settle
from synthetic import BLOCK, MASK, SIZE, Engine

import kvstore
from kvstore.layouts import Rotation
from kvstore.vllm import compat, module_pages, scheduler
from kvstore.vllm.modules import MODULES_MAX, REFUSED, Modules, Refused, module_namespace, modules_of

engines, model = scheduled.engines, scheduled.model  # fixtures
needs_modules = pytest.mark.skipif(not compat.SERVES_MODULES, reason="prompt modules are served from 0.32 on")
SALT = "a tenant"
FICKLE = {"kv_connector": "FickleConnector", "kv_connector_module_path": "fickle", "kv_role": "kv_both"}


# -- lists and names


def request_of(prompt: list[int], modules: Any, **more: Any) -> Any:
    fields = {
        "kv_transfer_params": {"modules": modules},
        "prompt_token_ids": prompt,
        "num_prompt_tokens": len(prompt),
        "cache_salt": SALT,
        "prompt_embeds": None,
        "mm_features": [],
        "resumable": False,
        "skip_reading_prefix_cache": False,
    }
    return SimpleNamespace(**fields | more)


def modules_in(prompt: list[int], modules: Any, **more: Any) -> Modules:
    made = modules_of(request_of(prompt, modules, **more), BLOCK)
    assert made is not None
    return made


ONE, OTHER = prompt_of(2 * BLOCK + 5, 1), prompt_of(BLOCK, 2)


def test_a_modules_names_do_not_depend_on_its_place_and_its_neighbours() -> None:
    first = modules_in(ONE + OTHER + [1], [[0, len(ONE)], [len(ONE), len(OTHER)]])
    second = modules_in(OTHER + ONE + [2], [[0, len(OTHER)], [len(OTHER), len(ONE)]])
    assert [block.count for block in first.blocks] == [BLOCK, BLOCK, 5, BLOCK]
    assert first.hashes == second.hashes[1:] + second.hashes[:1]
    assert [block.delta for block in second.blocks] == [0, BLOCK, BLOCK, BLOCK]
    assert first.own_count == 3 and second.own_count == 1


def test_names_bind_the_salt_the_tokens_before_and_the_count_of_a_last_block() -> None:
    whole = modules_in(ONE, [[0, len(ONE)]])
    assert len(set(whole.hashes)) == 3
    for other in (
        modules_in(ONE, [[0, len(ONE)]], cache_salt="another tenant"),
        modules_in([ONE[0] + 1, *ONE[1:]], [[0, len(ONE)]]),
    ):
        assert not set(whole.hashes) & set(other.hashes)
    for shorter in range(1, 5):
        part = modules_in(ONE, [[0, 2 * BLOCK + shorter]])
        assert part.hashes[:2] == whole.hashes[:2] and part.hashes[2] != whole.hashes[2]
    # Two modules are not one of both.
    assert modules_in(ONE, [[0, BLOCK], [BLOCK, BLOCK]]).hashes[1] != whole.hashes[1]


@pytest.mark.parametrize("rest", [0, 1, 2])
def test_all_tokens_but_the_prompts_last_are_loaded(rest: int) -> None:
    prompt = OTHER + ONE[: BLOCK + 1]
    modules = modules_in(prompt + [1] * rest, [[0, BLOCK], [BLOCK, BLOCK + 1]])
    assert modules.token_count == min(2 * BLOCK + 1, 2 * BLOCK + rest)
    assert modules.needed_count == 2 + (rest > 0)
    pieces = modules.pieces_to_load(modules.hashes[: modules.needed_count], [7, 8, 9], BLOCK)
    assert sum(piece.token_count for piece in pieces) == modules.token_count
    assert [piece.pages for piece in pieces] == [(7,), (8,), (9,)][: modules.needed_count]


def test_a_block_that_lies_in_two_pages_names_both() -> None:
    modules = modules_in(ONE + OTHER + [1], [[0, len(ONE)], [len(ONE), len(OTHER)]])
    *_, last = modules.pieces_to_load(modules.hashes, [7, 8, 9, 10], BLOCK)
    assert (last.pages, last.block_index, last.first, last.token_count) == ((9, 10), 2, len(ONE), BLOCK)


@pytest.mark.parametrize("said", [None, []])
def test_a_request_without_modules_is_as_any_other(said: Any) -> None:
    assert modules_of(request_of(ONE, said), BLOCK) is None
    assert modules_of(request_of(ONE, said, kv_transfer_params=None), BLOCK) is None


def test_as_many_modules_as_are_allowed_are_taken() -> None:
    prompt = prompt_of(MODULES_MAX, 3)
    assert modules_in(prompt, [[i, 1] for i in range(MODULES_MAX)]).module_count == MODULES_MAX


@pytest.mark.parametrize(
    "more",
    [
        {"mm_features": ["an image"]},
        {"prompt_embeds": "embeddings"},
        {"prompt_token_ids": None},
        {"resumable": True},
        {"skip_reading_prefix_cache": True},
    ],
    ids=str,
)
def test_a_prompt_whose_tokens_do_not_say_all_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        modules_of(request_of(ONE, [[0, 5]], **more), BLOCK)
    assert refused.value.reason == "prompt"


def test_refused_modules_have_nothing_to_load_or_store() -> None:
    assert (REFUSED.needed_count, REFUSED.own_count, REFUSED.token_count) == (0, 0, 0)


def test_modules_have_a_namespace_of_their_own() -> None:
    fields = {
        "kind": "set",
        "model": "m\u00e9",
        "block_bytes_max": 64,
        "x.engine": "vllm 0.32.0 cpu vec",
        "layout": "vllm-HNC",
    }
    exact = kvstore.Namespace(fields)
    made = module_namespace(exact)
    assert made.id != exact.id and made.is_set and made.block_bytes == 64
    same = kvstore.Namespace(fields | {"x.engine": "vllm 0.32.0 cpu amx"})
    assert module_namespace(same) == made, "rows do not depend on the kernels' order"
    assert module_namespace(kvstore.Namespace(fields | {"model": "other"})) != made
    assert made.fields["model"] == exact.fields["model"]


# -- in vLLM's scheduler


class Still(Rotation):
    """Turns nothing."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields | {"delta": 0})


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The arithmetic's layers as a model whose modules are served, with pages that no kernel has packed."""
    turn = Still(size=SIZE, frequencies=(0.0,) * (SIZE // 2))
    monkeypatch.setattr(module_pages, "rotation_of", lambda *_: turn)
    monkeypatch.setattr(module_pages, "_packed_orders", lambda _, pages: module_pages._rows_orders(pages))
    yield


DOCUMENTS = [prompt_of(count, 100 + count) for count in (5, 70, 2 * BLOCK, 3 * BLOCK + 1)]


def in_order(*order: int, seed: int = 0) -> tuple[list[int], list[list[int]]]:
    prompt: list[int] = []
    modules = []
    for i in order:
        modules.append([len(prompt), len(DOCUMENTS[i])])
        prompt = prompt + DOCUMENTS[i]
    return prompt + prompt_of(9, seed), modules


def parted(plain: Engine, prompt: list[int], modules: list[list[int]], max_tokens: int) -> list[int]:
    """Tokens after modules that were each computed alone; in pages that no request has."""
    tokens, starts, value, done = list(prompt), {first for first, _ in modules}, 7, 0
    while len(tokens) < len(prompt) + max_tokens:
        for position in range(done, len(tokens)):
            value = 7 if position in starts else value
            value = (value * 6364136223846793005 + tokens[position] * 1442695040888963407 + 1) & MASK
            plain._write(1 + position // BLOCK, position, value)
        done, digest = len(tokens), 0
        for first in range(0, done, BLOCK):
            digest = zlib.crc32(plain._bytes(1 + first // BLOCK, 0, min(BLOCK, done - first)), digest)
        tokens.append(digest % 1000)
    return tokens[len(prompt) :]


def ask(
    engine: Engine, prompt: list[int], modules: Any, max_tokens: int = 8, salt: str = SALT, **more: Any
) -> list[int]:
    params = {"modules": modules} | more.pop("params", {})
    (answer,) = engine.generate(prompt, max_tokens=max_tokens, params=params, cache_salt=salt, **more)
    return answer


def warm(engine: Engine, *documents: int, **more: Any) -> None:
    stored = 0
    for i in documents:
        ask(engine, DOCUMENTS[i], [[0, len(DOCUMENTS[i])]], max_tokens=1, **more)
        stored += -(-len(DOCUMENTS[i]) // BLOCK)
    settle(engine, stored, *range(len(engine.workers)))


SHAPES = pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({"options": {"head_groups": 2}}, {"ranks": 2}),
        ({"ranks": 2, "replicas": 2}, {"options": {"head_groups": 2}}),
        ({"stages": 2}, {"stages": 2}),
    ],
    ids=["alone", "ranks load", "ranks store", "stages"],
)


@needs_modules
@SHAPES
def test_another_engine_loads_modules_in_any_order(
    engines: Any, own_node: Node, served: None, first: dict[str, Any], second: dict[str, Any]
) -> None:
    one = engines(own_node.endpoint, **first)
    for i, each in enumerate(DOCUMENTS):
        ask(one, each, [[0, len(each)]], max_tokens=1)
        assert one.last_cached() == 0, i
    count = sum(-(-len(each) // BLOCK) for each in DOCUMENTS)
    settle(one, count, 0)
    until = time.monotonic() + 20
    other, plain = engines(own_node.endpoint, **second), engines(None)
    for order in [(0, 1, 2, 3), (3, 2, 0, 1), (1, 3), (2,), (1, 1)]:
        prompt, modules = in_order(*order)
        expected = parted(plain, prompt, modules, 40)
        while True:
            answer = ask(other, prompt, modules, max_tokens=40)
            if other.last_cached() > 0:
                break
            assert time.monotonic() < until, order  # other workers' puts take a moment longer
        assert answer == expected and other.last_cached() == len(prompt) - 9, order
    assert other.side.counters["modules_loaded"] == 13
    assert not other.side._requests


@needs_modules
def test_nothing_of_a_request_with_modules_is_stored_under_exact_names(
    engines: Any, own_node: Node, served: None
) -> None:
    one = engines(own_node.endpoint)
    warm(one, 1, 2, 3)
    prompt, modules = in_order(1, 2, 3)
    ask(one, prompt, modules)
    other = engines(own_node.endpoint)
    ask(other, prompt_of(40, 4) + prompt, [[0, 40], [40, 70]])  # computed
    with kvstore.Client(own_node.endpoint, deadline=10) as client:
        for engine in (one, other):
            assert engine.side.counters["lookups"] > 0
        assert client.open_set(one.side._model.namespace).drop(everything=True).block_count == 0
        assert client.open_set(module_namespace(one.side._model.namespace)).drop(everything=True).block_count > 0


@needs_modules
def test_whole_prompts_and_modules_keep_apart_in_one_engine(engines: Any, own_node: Node, served: None) -> None:
    one, plain = engines(own_node.endpoint), engines(None)
    warm(one, 1, 2, 3)
    prompt, modules = in_order(3, 1, 2)
    (whole,) = plain.generate(prompt)
    as_modules = parted(engines(None), prompt, modules, 8)
    assert whole != as_modules
    for _ in range(2):  # the second time vLLM's own cache has the whole prompt
        assert ask(one, prompt, modules) == as_modules
        assert one.generate(prompt, cache_salt=SALT) == [whole]
    assert one.last_cached() == len(prompt) // BLOCK * BLOCK


@needs_modules
def test_modules_shorter_than_a_page_keep_apart_too(engines: Any, own_node: Node, served: None) -> None:
    """Their page gets its hash only with generated tokens."""
    one, plain = engines(own_node.endpoint), engines(None)
    first, second = DOCUMENTS[0], prompt_of(11, 8)
    for each in (first, second):
        ask(one, each, [[0, len(each)]], max_tokens=1)
    settle(one, 2)
    prompt, modules = first + second + prompt_of(3, 9), [[0, 5], [5, 11]]
    answer = ask(one, prompt, modules, max_tokens=BLOCK)
    assert one.last_cached() == 16 and answer == parted(engines(None), prompt, modules, BLOCK)
    whole = prompt + answer + prompt_of(3, 10)
    assert one.generate(whole, cache_salt=SALT) == plain.generate(whole)
    assert one.last_cached() == 0


@needs_modules
def test_a_first_module_with_a_remainder_is_stored_without_what_follows_it(
    engines: Any, own_node: Node, served: None
) -> None:
    one = engines(own_node.endpoint)
    namespace = module_namespace(one.side._model.namespace)
    block = modules_in(DOCUMENTS[0], [[0, 5]]).hashes
    ask(one, DOCUMENTS[0] + prompt_of(40, 5), [[0, 5]], max_tokens=2)
    settle(one, 1)
    with kvstore.Client(own_node.endpoint, deadline=10) as client:
        rows = bytearray(namespace.block_bytes)
        assert client.open_set(namespace).get(block, [rows]).landed.all()
    # [layer][component][token][head][feature], two layers of two heads of eight bf16
    for part in range(4):
        tokens = rows[part * len(rows) // 4 : (part + 1) * len(rows) // 4]
        size = len(tokens) // BLOCK
        assert any(tokens[: 5 * size]) and not any(tokens[5 * size :])


@needs_modules
def test_preempted_requests_with_modules_go_on_with_all_of_them(engines: Any, own_node: Node, served: None) -> None:
    one = engines(own_node.endpoint)
    warm(one, 0, 1, 2, 3)
    tight, plain = engines(own_node.endpoint, page_count=40), engines(None, page_count=600)
    asked = [(order, seed) for seed, order in enumerate([(0, 1, 2), (3, 1), (2, 3, 0), (1, 3, 2), (0, 3), (2, 1)])]
    names = {}
    for order, seed in asked:
        prompt, modules = in_order(*order, seed=seed)
        names[tight.add(prompt, 120, {"modules": modules}, cache_salt=SALT)] = prompt, modules
    tight.run()
    assert tight.preemptions > 0
    for name, (prompt, modules) in names.items():
        assert tight.tokens[name] == parted(plain, prompt, modules, 120)
        assert tight.cached[name] == len(prompt) - 9
    assert tight.side.counters["modules_computed"] == 0
    assert tight.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == tight.cache.num_blocks - 1


@needs_modules
def test_any_traffic_of_modules_and_whole_prompts_gives_the_right_tokens(
    engines: Any, own_node: Node, served: None
) -> None:
    """Few pages and rows, aborts in every state, one salt for all."""
    seed = random.randrange(10**9)
    print("seed", seed)
    rng = random.Random(seed)
    one = engines(own_node.endpoint)
    warm(one, 0, 1, 2, 3)
    plain, scratch = engines(None, page_count=2000), engines(None, page_count=600)
    block_bytes = 2 * 2 * BLOCK * 16 * 2
    engine = engines(own_node.endpoint, page_count=40, options={"staging_bytes": 16 * block_bytes})
    began: dict[str, tuple[list[int], list[list[int]] | None]] = {}
    aborted = set()
    while len(began) < 40:
        if len(engine.scheduler.requests) < 6 and rng.random() < 0.3:
            order = rng.sample(range(4), rng.randrange(1, 4))
            prompt, modules = in_order(*order, seed=rng.randrange(3))
            is_parted = rng.random() < 0.6
            name = engine.add(prompt, 30, {"modules": modules} if is_parted else None, cache_salt=SALT)
            began[name] = prompt, modules if is_parted else None
        if engine.scheduler.requests and rng.random() < 0.02:
            name = rng.choice(list(engine.scheduler.requests))
            aborted.add(name)
            engine.abort(name)
        engine.step()
    engine.run()
    for name, (prompt, modules) in began.items():
        tokens = engine.tokens[name]
        (expected,) = [parted(scratch, prompt, modules, 30)] if modules else plain.generate(prompt, max_tokens=30)
        assert tokens == expected[: len(tokens)], (seed, name)
        assert name in aborted or len(tokens) == 30
    assert not engine.side._requests
    assert engine.side.counters["modules_loaded"] > 0


@needs_modules
def test_a_load_that_fails_in_part_counts_for_nothing(engines: Any, own_node: Node, served: None) -> None:
    """The last module goes between lookup and load. vLLM would keep the pages before its first."""
    one, plain = engines(own_node.endpoint), engines(None)
    warm(one, 1, 2)
    prompt, modules = in_order(1, 2)
    other = engines(own_node.endpoint)
    gone = modules_in(prompt, modules).hashes[-1:]

    def drop() -> None:
        if other.side.counters["loads"] == 1 and not dropped:
            with kvstore.Client(own_node.endpoint, deadline=10) as client:
                space = client.open_set(module_namespace(one.side._model.namespace))
                dropped.append(space.drop(gone).block_count)

    dropped: list[int] = []
    other.between = drop
    assert ask(other, prompt, modules) == plain.generate(prompt)[0]
    assert dropped == [1]
    assert other.side.counters["loads_failed"] >= 1


@needs_modules
def test_adapters_and_weights_epochs_have_modules_of_their_own(engines: Any, own_node: Node, served: None) -> None:
    one, plain = engines(own_node.endpoint, enable_lora=True), engines(None, enable_lora=True)
    prompt, modules = in_order(1)
    expected = [plain.generate(prompt, lora_request=lora(i)) for i in (1, 2)]
    for i in (1, 2):
        # An adapter is known after the first step with it.
        assert [ask(one, prompt, modules, lora_request=lora(i))] == expected[i - 1]
        settle(one, 3 * i)
        assert one.last_cached() == 0
    for i in (1, 2):
        assert [ask(one, prompt, modules, lora_request=lora(i))] == expected[i - 1]
        assert one.last_cached() == 70
    (without,) = plain.generate(prompt)
    for epoch, cached in ((3, 0), (3, 70), (4, 0)):
        assert ask(one, prompt, modules, params={"weights_epoch": epoch}) == without
        assert one.last_cached() == cached
        settle(one, 9)


@needs_modules
@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ({}, "full.0: the loaded model does not show it"),
        ({"windows": True}, "several cache groups, windows or states"),
        ({"beside": FICKLE}, "beside other connectors"),
    ],
    ids=["unknown", "windows", "others"],
)
def test_a_model_without_modules_is_refused_once_in_the_log(
    engines: Any, own_node: Node, shape: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(scheduler.logger, "warning", lambda line, *given: said.append(line % given))
    engine, plain = engines(own_node.endpoint, **shape), engines(None, windows="windows" in shape)
    prompt, modules = in_order(1, 2)
    for _ in range(2):
        assert [ask(engine, prompt, modules)] == plain.generate(prompt)
    assert engine.side.counters["modules_refused_model"] == 2
    if "beside" not in shape:  # MultiConnector's have one more level
        assert engine.stats.reduce()["modules_refused_model"] == 2
    assert engine.side.counters["lookups"] == engine.side.counters["saved_blocks"] == 0
    (line,) = [each for each in said if "modules" in each]
    assert line.startswith(
        f"kvstore: request request-0 is computed: prompt modules of this model are not served: {text}"
    )
