"""Prompts made of stored modules: equal to what transformers alone computes with the same mask, in every mode."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

import kvstore  # noqa: E402
from kvstore.pml import Plan, Range, Unit, parse_prompt, parse_schema  # noqa: E402
from kvstore.transformers import ModuleStore, PrefixStore, RangeOrigins  # noqa: E402

torch.set_num_threads(1)  # models of this size gain nothing from more, and other tests run beside
MODELS = Path(__file__).resolve().parents[3] / "tests/models"
OPTIONS = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 1024}
GPTJ = {"vocab_size": 512, "n_positions": 8192, "n_embd": 64, "n_layer": 3, "n_head": 4, "initializer_range": 0.2}


def llama(seed: int = 1, **more: object):
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**(SMALL | more))).eval()


def of_kind(kind: str):
    torch.manual_seed(1)
    if kind == "yarn":
        return llama(rope_parameters=YARN)
    if kind == "gptj":  # half of each head turns, in neighbouring pairs
        return transformers.GPTJForCausalLM(
            transformers.GPTJConfig(**GPTJ, rotary_dim=8, bos_token_id=1, eos_token_id=2)
        ).eval()
    if kind == "cohere":
        return transformers.CohereForCausalLM(
            transformers.CohereConfig(**SMALL, pad_token_id=0, bos_token_id=1, eos_token_id=2)
        ).eval()
    return llama()


# -- plans: what kvstore.pml makes of a prompt


def words(count: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(3, 500, count).tolist())


def module(name: str, count: int, seed: int, holes: dict[int, int] | None = None) -> Unit:
    """A unit of random tokens; ``holes``: before its token i so many positions are left to an argument."""
    steps = np.ones(count, np.int64)
    for i, hole in (holes or {}).items():
        steps[i] += hole
    return Unit(name, words(count, seed), tuple((np.cumsum(steps) - steps[0]).tolist()), (name,))


def used(unit: Unit, at: int, begin: int = 0, end: int | None = None) -> Range:
    own = slice(begin, len(unit.tokens) if end is None else end)
    positions = tuple(at + each for each in unit.positions[own])
    return Range("module", unit.name, unit.tokens[own], positions, unit, begin)


def text(tokens: tuple[int, ...], at: int, kind: str = "text", name: str = "") -> Range:
    return Range(kind, name, tokens, tuple(range(at, at + len(tokens))), None, 0)


def plan(*ranges: Range) -> Plan:
    return Plan(ranges)


def documents(offset: int = 0, seed: int = 1) -> Plan:
    """Text, two modules and a question, the first module ``offset`` positions behind the text."""
    first, second = module("a", 70, seed + 10), module("b", 45, seed + 20)
    at = 8 + offset
    return plan(
        text(words(8, seed + 30), 0), used(first, at), used(second, at + 70), text(words(9, seed + 40), at + 115)
    )


# -- what transformers alone makes of them


def block_diagonal(made: Plan) -> np.ndarray:
    """Which tokens each token sees: of a module those of its unit, otherwise all before."""
    owner = np.concatenate(
        [np.full(len(each.tokens), -1 if each.unit is None else made.units.index(each.unit)) for each in made.ranges]
    )
    owner[-1] = -1  # the last token is computed
    before = made.positions[None, :] <= made.positions[:, None]
    return before & ((owner[:, None] == -1) | (owner[:, None] == owner[None, :]))


def reference(model, made: Plan, sees: np.ndarray):
    """All layers' keys and values, and the last token's logits."""
    mask = torch.zeros(sees.shape, dtype=model.dtype).masked_fill(~torch.from_numpy(sees), torch.finfo(model.dtype).min)
    cache = transformers.DynamicCache()
    with torch.no_grad():
        out = model(
            torch.tensor(made.tokens)[None],
            position_ids=torch.tensor(made.positions)[None],
            attention_mask=mask[None, None],
            past_key_values=cache,
        )
    return [(layer.keys, layer.values) for layer in cache.layers], out.logits[:, -1]


def full(model, made: Plan):
    return reference(model, made, made.positions[None, :] <= made.positions[:, None])


def apart(left, right) -> float:
    return float((left - right).abs().max() / right.abs().max())


def assert_like(answer, expected, tolerance: float = 1e-3) -> None:
    layers, logits = expected
    assert apart(answer.logits, logits) < tolerance
    for own, (keys, values) in zip(answer.cache.layers, layers, strict=True):
        assert apart(own.keys, keys) < tolerance
        assert apart(own.values, values) < tolerance


def exact_held(store: PrefixStore, tokens: np.ndarray) -> int:
    return store.space.match(store.space.hash_chain(tokens)).block_count


# -- modes


def test_exact_is_the_full_prefill_and_shares_its_blocks_with_a_prefix_store(client):
    model, made = llama(seed=2), documents(seed=100)
    store = ModuleStore(model, client)
    ids = torch.tensor(made.tokens)[None]
    with torch.no_grad():
        expected = model(ids).logits[:, -1]
    answer = store.prefill(made, mode="exact")
    assert apart(answer.logits, expected) < 1e-5
    assert (answer.stored, answer.computed, answer.length) == (0, 132, 132)
    assert PrefixStore(model, client).cache(ids).cached_token_count == 128
    answer = store.prefill(made, mode="exact")
    assert apart(answer.logits, expected) < 1e-5
    assert answer.ranges == (
        RangeOrigins("text", "", 8, 0, 0, 0),
        RangeOrigins("module", "a", 70, 0, 0, 0),
        RangeOrigins("module", "b", 45, 0, 0, 0),
        RangeOrigins("text", "", 5, 0, 4, 0),
    )
    plain = model.generate(ids, attention_mask=torch.ones_like(ids), **OPTIONS)
    assert (store.generate(made, mode="exact", **OPTIONS) == plain).all()


@pytest.mark.parametrize("offset", [0, 3, 4099])
@pytest.mark.parametrize("kind", ["neox", "gptj", "cohere", "yarn"])
def test_modular_is_attention_with_a_block_diagonal_mask(client, kind, offset):
    model = of_kind(kind)
    made = documents(offset, seed=200 + offset)
    expected = reference(model, made, block_diagonal(made))
    store = ModuleStore(model, client, salt=f"modular {kind} {offset}")
    answer = store.prefill(made)
    assert_like(answer, expected)
    assert (answer.stored, answer.encoded, answer.computed, answer.why) == (0, 115, 17, None)
    answer = store.prefill(made)
    assert_like(answer, expected)
    assert (answer.stored, answer.encoded, answer.computed, answer.why) == (115, 0, 17, None)
    assert apart(answer.logits, full(model, made)[1]) > 0.01  # modules do not see each other


def test_modules_are_found_in_another_order_and_at_other_positions(client):
    model = llama(seed=3)
    a, b = module("a", 70, 301), module("b", 45, 302)
    store = ModuleStore(model, client)
    store.prefill(plan(used(a, 0), used(b, 70), text(words(5, 303), 115)))
    made = plan(text(words(3, 304), 0), used(b, 3), used(a, 48), used(b, 200), text(words(6, 305), 245))
    answer = store.prefill(made)
    assert (answer.stored, answer.computed) == (160, 9)
    # The module that is there twice sees itself alone, so that each copy is a unit of its own in the mask.
    sees = block_diagonal(made)
    sees[118:163, :48] = False
    assert_like(answer, reference(model, made, sees))


def test_an_argument_fills_a_hole_and_sees_all_before_it(client):
    model = llama(seed=4)
    unit = module("greeting", 40, 401, holes={20: 8})
    other = module("other", 33, 402)
    made = plan(
        used(other, 0),
        used(unit, 33, 0, 20),
        text(words(5, 403), 53, "argument", "name"),  # of 8 positions: three stay empty
        used(unit, 33, 20),
        text(words(4, 404), 81),
    )
    store = ModuleStore(model, client)
    answer = store.prefill(made)
    assert_like(answer, reference(model, made, block_diagonal(made)))
    assert [(each.kind, each.encoded, each.computed) for each in answer.ranges] == [
        ("module", 33, 0),
        ("module", 20, 0),
        ("argument", 0, 5),
        ("module", 20, 0),
        ("text", 0, 4),
    ]
    assert answer.length == 85
    assert store.prefill(made).stored == 73


def test_generation_continues_behind_the_last_position(client):
    model = llama(seed=5)
    unit = module("a", 40, 501, holes={20: 8})
    made = plan(text(words(6, 502), 0), used(unit, 10), text(words(4, 503), 60))
    layers, logits = reference(model, made, block_diagonal(made))
    cache = transformers.DynamicCache()
    for i, (keys, values) in enumerate(layers):
        cache.update(keys, values, i)
    expected = made.tokens.tolist()
    with torch.no_grad():
        for position in range(64, 64 + 12):
            expected.append(int(logits.argmax()))
            logits = model(
                torch.tensor([expected[-1:]]), position_ids=torch.tensor([[position]]), past_key_values=cache
            ).logits[:, -1]
    store = ModuleStore(model, client)
    assert store.generate(made, **OPTIONS).tolist() == [expected]
    assert store.generate(made, **OPTIONS).tolist() == [expected]


@pytest.mark.parametrize("kind", ["neox", "gptj", "layers that are not plain"])
def test_blend_of_all_tokens_is_the_full_prefill(client, monkeypatch, kind):
    model, made = of_kind(kind), documents(offset=5, seed=600)
    if kind == "layers that are not plain":
        model.others = torch.nn.ModuleList([torch.nn.Identity()] * 3)
    store = ModuleStore(model, client, salt=f"blend {kind}")
    for layers, pass_tokens in ((1, 160), (2, 160), (1, 16)):
        monkeypatch.setattr("kvstore.transformers.placed_cache._PASS_TOKENS", pass_tokens)
        answer = store.prefill(made, mode="blend", share=1.0, layers=layers)
        assert_like(answer, full(model, made))
        assert (answer.stored, answer.encoded, answer.computed, answer.recomputed) == (0, 0, 17, 115)


def test_blend_computes_the_first_layers_once(client):
    model, made = llama(seed=19), documents(seed=1900)
    store = ModuleStore(model, client)
    store.prefill(made)
    seen = [0, 0, 0]
    for i, layer in enumerate(model.model.layers):
        layer.mlp.register_forward_hook(
            lambda _layer, arguments, _out, i=i: seen.__setitem__(i, seen[i] + arguments[0].shape[1])
        )
    answer = store.prefill(made, mode="blend", share=0.2)
    assert answer.recomputed == 23
    assert seen == [132, 17 + 23, 17 + 23]


def test_blend_computes_the_given_share_anew_and_comes_closer_to_the_full_prefill(client):
    model, made = llama(seed=7, initializer_range=0.05), documents(seed=700)
    store = ModuleStore(model, client)
    layers, _ = full(model, made)
    errors = []
    for share, count in ((0.0, 0), (0.15, 17), (0.6, 69), (1.0, 115)):
        answer = store.prefill(made, mode="blend", share=share)
        assert (answer.recomputed, answer.stored + answer.encoded) == (count, 115 - count)
        errors.append(apart(answer.cache.layers[2].values, layers[2][1]))
        for own, (keys, values) in zip(answer.cache.layers[:2], layers[:2], strict=True):  # these are exact in any case
            assert apart(own.keys, keys) < 1e-3
            assert apart(own.values, values) < 1e-3
    assert errors[-1] < 1e-3 < errors[1] < errors[0]
    for wrong in ({"share": 1.5}, {"share": -0.1}, {"layers": 3}, {"layers": 0}):
        with pytest.raises(kvstore.BadRequest, match=rf"{next(iter(wrong))}: .*, allowed are "):
            store.prefill(made, mode="blend", **wrong)


def test_neither_modules_nor_blends_become_exact_blocks_nor_the_other_way_round(client):
    model, made = llama(seed=8), documents(seed=800)
    store, prefixes = ModuleStore(model, client), PrefixStore(model, client)
    assert store.prefill(made, mode="blend", share=0.3).encoded > 0
    store.prefill(made, mode="modular")
    out = store.generate(made, mode="modular", **OPTIONS)
    store.generate(made, mode="blend", **OPTIONS)
    assert exact_held(prefixes, made.tokens) == 0
    assert exact_held(prefixes, out[0].numpy()) == 0
    assert store.prefill(made, mode="exact").stored == 0
    other = documents(seed=850)
    store.prefill(other, mode="exact")
    assert exact_held(prefixes, other.tokens) == 4
    answer = store.prefill(other, mode="modular")
    assert (answer.stored, answer.encoded) == (0, 115)
    assert store.prefill(other, mode="exact").stored == 128


# -- names


def test_a_scaffold_is_stored_as_a_whole_and_its_modules_see_each_other(client):
    model = llama(seed=9)
    a, b = words(64, 901), words(40, 902)
    scaffold = Unit("both", a + b, tuple(range(104)), ("a", "b"))
    alone = Unit("b", b, tuple(range(40)), ("b",))
    question = text(words(5, 903), 104)

    def in_scaffold(unit: Unit) -> Plan:
        return plan(used(unit, 0, 0, 64), used(unit, 0, 64), question)

    store = ModuleStore(model, client)
    assert_like(store.prefill(in_scaffold(scaffold)), full(model, in_scaffold(scaffold)))
    apart_of_it = plan(used(alone, 64), text(words(5, 903), 104))
    answer = store.prefill(apart_of_it)
    assert answer.stored == 0
    assert_like(answer, reference(model, apart_of_it, block_diagonal(apart_of_it)))
    # The second module has the same tokens at the same place behind another first one.
    other = Unit("others", words(64, 904) + b, tuple(range(104)), ("c", "b"))
    answer = store.prefill(in_scaffold(other))
    assert answer.stored == 0
    assert_like(answer, full(model, in_scaffold(other)))
    answer = store.prefill(in_scaffold(other))
    assert answer.stored == 104
    assert_like(answer, full(model, in_scaffold(other)))


def test_a_name_binds_tokens_and_places_of_the_unit_and_nothing_else(client):
    store = ModuleStore(llama(seed=10), client)
    question = text(words(4, 1001), 300)
    unit = module("a", 50, 1002)
    store.prefill(plan(used(unit, 7), question))
    for same in (unit, Unit("renamed", unit.tokens, unit.positions, ("renamed",))):
        assert store.prefill(plan(used(same, 90), question)).stored == 50
    holes = Unit("a", unit.tokens, (*unit.positions[:-1], 60), ("a",))
    shorter = Unit("a", unit.tokens[:-1], unit.positions[:-1], ("a",))
    for other in (holes, shorter):
        assert store.prefill(plan(used(other, 7), question)).stored == 0
        assert store.prefill(plan(used(other, 7), question)).stored == len(other.tokens)
    assert store.prefill(plan(used(unit, 7), question)).stored == 50


def test_units_that_begin_alike_share_their_first_blocks(client):
    model = llama(seed=17)
    long = module("long", 80, 1701)
    short = Unit("short", long.tokens[:64], long.positions[:64], ("short",))
    made = plan(used(short, 0), used(long, 64), text(words(5, 1702), 144))
    store = ModuleStore(model, client)
    store.prefill(plan(used(long, 0), text(words(5, 1702), 80)))
    answer = store.prefill(made)
    assert answer.stored == 144
    assert_like(answer, reference(model, made, block_diagonal(made)))


def test_a_unit_of_which_a_block_is_missing_is_encoded_again(client):
    model = llama(seed=11)
    store = ModuleStore(model, client)
    made = documents(seed=1100)
    store.prefill(made)
    names = store.block_names(made.units[0])
    assert len(names) == 3
    assert store.space.drop(names[1:2]).block_count == 1
    answer = store.prefill(made)
    assert (answer.stored, answer.encoded) == (45, 70)
    assert_like(answer, reference(model, made, block_diagonal(made)))
    assert store.prefill(made).stored == 115


# -- failures


def test_without_a_node_everything_is_computed(tmp_path):
    model, made = llama(seed=12), documents(seed=1200)
    with kvstore.Client(f"unix://{tmp_path}/none", deadline=0.2) as client:
        store = ModuleStore(model, client)
        for _ in range(2):
            answer = store.prefill(made)
            assert_like(answer, reference(model, made, block_diagonal(made)))
            assert isinstance(answer.why, kvstore.Unavailable)
            assert (answer.stored, answer.encoded) == (0, 115)
        assert_like(store.prefill(made, mode="blend", share=1.0), full(model, made))
        assert isinstance(store.prefill(made, mode="exact").why, kvstore.Unavailable)


def test_a_node_that_stops_answering_costs_its_deadline_and_no_wrong_token(own_node):
    model, made = llama(seed=13), documents(seed=1300)
    expected = reference(model, made, block_diagonal(made))
    with kvstore.Client(own_node.endpoint, deadline=0.3) as client:
        store = ModuleStore(model, client, deadline=0.3)
        assert store.prefill(made).why is None
        own_node.pause()
        answer = store.prefill(made)
        assert isinstance(answer.why, kvstore.TimedOut)
        assert_like(answer, expected)
        own_node.resume()
        until = time.monotonic() + 60
        while (answer := store.prefill(made)).why is not None:
            assert_like(answer, expected)
            assert time.monotonic() < until
        assert_like(answer, expected)


# -- what is refused


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("windows", "sliding_window is 64"),
        ("layers with windows", "layers of sliding_attention"),
        ("learned", "values of layer 0 change with positions"),
        ("alibi", "takes no position_ids"),
        ("alibi with positions", "its keys do not turn with positions"),
        ("some layers", "no known rotation, the same in all layers"),
        ("mrope", "mrope_section"),
        ("dynamic", r"its rotation \(dynamic\) depends on the length"),
        ("states", "Mamba"),
        ("mla", "MLA"),
    ],
)
def test_what_cannot_be_moved_is_refused_by_name(client, kind, why):
    with pytest.raises(kvstore.Unsupported, match=why):
        ModuleStore(refused(kind), client)


def refused(kind: str):
    torch.manual_seed(1)
    heads = {"n_layer": 2, "n_head": 4}
    if kind == "windows":
        return transformers.MistralForCausalLM(transformers.MistralConfig(**SMALL, sliding_window=64))
    if kind == "layers with windows":
        return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SMALL, head_dim=16))
    if kind == "learned":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=512, n_embd=64, **heads))
    if kind == "alibi":
        return transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=512, hidden_size=64, **heads))
    if kind == "alibi with positions":
        config = transformers.FalconConfig(
            vocab_size=512, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, alibi=True
        )
        return transformers.FalconForCausalLM(config)
    if kind == "some layers":
        config = transformers.SmolLM3Config(
            **SMALL | {"num_hidden_layers": 4}, pad_token_id=0, bos_token_id=1, eos_token_id=2
        )
        return transformers.SmolLM3ForCausalLM(config)
    if kind == "mrope":
        return llama(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]})
    if kind == "dynamic":
        return llama(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    if kind == "states":
        return transformers.MambaForCausalLM(
            transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, state_size=4)
        )
    if kind == "mla":
        config = transformers.DeepseekV2Config(
            vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, kv_lora_rank=32, q_lora_rank=None, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16,
            n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=2, head_dim=8,
        )  # fmt: skip
        return transformers.DeepseekV2ForCausalLM(config)
    raise AssertionError(kind)


def test_a_rotation_whose_table_is_wrong_is_refused(client):
    model = llama(seed=14)
    table = model.model.rotary_emb.inv_freq
    model.model.rotary_emb.register_buffer("inv_freq", table.clone(), persistent=False)
    inner = model.model.rotary_emb.forward

    def slower(x, position_ids):
        return inner(x, position_ids * 2)  # its table does not tell

    model.model.rotary_emb.forward = slower
    with pytest.raises(kvstore.Unsupported, match="no known rotation"):
        ModuleStore(model, client)


def test_bad_prompts_and_modes_name_the_field(client):
    store = ModuleStore(llama(seed=15), client)
    unit = module("a", 10, 1501)
    with pytest.raises(kvstore.BadRequest, match="mode: 'fast', allowed are exact, modular, blend"):
        store.prefill(plan(used(unit, 0)), mode="fast")
    with pytest.raises(kvstore.BadRequest, match="prompt: its positions do not ascend"):
        store.prefill(plan(used(unit, 5), text(words(3, 1502), 3)))
    with pytest.raises(kvstore.BadRequest, match="prompt: has no tokens"):
        store.prefill(Plan(()))


def test_a_prompt_that_ends_in_a_module_has_its_last_token_computed(client):
    model = llama(seed=16)
    made = plan(text(words(5, 1601), 0), used(module("a", 40, 1602), 5))
    store = ModuleStore(model, client)
    for _ in range(2):
        answer = store.prefill(made)
        assert (answer.computed, answer.recomputed) == (5, 1)
        assert_like(answer, reference(model, made, block_diagonal(made)))


# -- the language

SCHEMA = """<schema name="letters">
  <module name="rules">Answer in one line, and name the sender.</module>
  <module name="letter">A letter from <parameter name="sender" length="12"/>: the harvest was good this year.</module>
</schema>"""
PROMPT = '<prompt schema="letters"><rules/><letter sender="Anna"/>Who wrote?</prompt>'


def test_a_prompt_in_pml_runs_in_every_mode(client):
    model = llama(seed=18)
    store = ModuleStore(model, client, SCHEMA, tokenizer=lambda text: list(text.encode()))
    made = store.plan(PROMPT)
    assert (made.positions[-1] + 1, made.token_count) == (made.length, made.length - 8)
    expected = {
        "modular": reference(model, made, block_diagonal(made)),
        "blend": full(model, made),
        "exact": reference(model, plan(text(tuple(made.tokens.tolist()), 0)), np.tri(made.token_count, dtype=bool)),
    }
    for prompt in (PROMPT, parse_prompt(PROMPT, parse_schema(SCHEMA)), made):
        for mode, layers in expected.items():
            assert_like(store.prefill(prompt, mode=mode, share=1.0), layers)
            assert store.generate(prompt, mode=mode, **OPTIONS).shape == (1, made.token_count + 12)
    names = [(each.kind, each.name) for each in store.prefill(PROMPT).ranges]
    assert names == [
        ("module", "rules"),
        ("module", "letter"),
        ("argument", "letter:sender"),
        ("module", "letter"),
        ("text", ""),
    ]
    compact = store.plan(PROMPT, layout="prompt")
    assert compact.tokens.tolist() == made.tokens.tolist()
    assert store.prefill(compact).stored == store.prefill(PROMPT).stored > 0
    with pytest.raises(kvstore.BadRequest, match="tokenizer: None"):
        ModuleStore(model, client, SCHEMA).prefill(PROMPT)


# -- the trained model


def test_the_trained_weights_are_those_of_the_script_beside_them():
    safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")
    with safetensors.safe_open(MODELS / "bytes.safetensors", "pt") as file:
        told = file.metadata()
    assert told["script_sha256"] == hashlib.sha256((MODELS / "train.py").read_bytes()).hexdigest()
