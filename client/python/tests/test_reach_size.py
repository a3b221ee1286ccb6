"""The cache and the work of generating, compared with sums that are written from the textbook's definitions, one token at a time."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

import kvstore
from kvstore import models
from kvstore.__main__ import main

B, S, N = 64, 512, 32
LAYERS, H, V = 96, 12288, 50257


def textbook_step(h: int, cached: int) -> int:
    """One layer, one sequence, one token that attends to the cached ones and to itself."""
    projections = 4 * 2 * h * h  # Q, K, V and the output: h x h each, a multiplication and an addition for each weight
    scores = 2 * h * (cached + 1)
    weighted_sum = 2 * h * (cached + 1)
    mlp = 2 * 2 * h * 4 * h
    return projections + scores + weighted_sum + mlp


def textbook_pass(h: int, tokens: int) -> int:
    """One layer, one sequence, all tokens at once: [tokens, h] times each matrix, and scores of all with all."""
    projections = 4 * 2 * tokens * h * h
    scores = 2 * tokens * tokens * h
    weighted_sum = 2 * tokens * tokens * h
    mlp = 2 * 2 * tokens * h * 4 * h
    return projections + scores + weighted_sum + mlp


def gpt3() -> models.Generation:
    return models.generation(models.known_config("gpt3-175b"), batch=B, prompt_tokens=S, new_tokens=N)


def test_the_textbooks_cache_is_worked_out_by_hand():
    assert 4 * 64 * 96 * 12288 * 544 == 164_282_499_072
    assert gpt3().peak_bytes == 164_282_499_072
    assert gpt3().peak_bytes == 2 * (B * LAYERS * (S + N) * H) * 2  # K and V, of 2 bytes


def test_the_textbooks_steps_are_summed_as_a_loop_sums_them():
    found = gpt3()
    assert textbook_step(H, 543) * B == 24 * B * H**2 + 4 * B * H * 544
    assert textbook_pass(H, 544) * B == 24 * B * 544 * H**2 + 4 * B * 544**2 * H
    assert textbook_pass(H, 544) == 544 * textbook_step(H, 543)
    layers = B * LAYERS
    assert found.prompt == models.Work(layers * textbook_pass(H, S), layers * textbook_pass(H, S))
    assert found.last_step == models.Work(layers * textbook_step(H, 543), layers * textbook_pass(H, 544))
    assert found.last_step.ratio == 544
    cached = sum(textbook_step(H, k) for k in range(S, S + N))
    computed = sum(textbook_pass(H, k + 1) for k in range(S, S + N))
    assert found.steps.with_cache == pytest.approx(layers * cached, rel=1e-14)
    assert found.steps.without_cache == pytest.approx(layers * computed, rel=1e-14)
    assert found.last_step_logits == models.Work(2 * B * H * V, 2 * B * 544 * H * V)
    logits = 2 * B * H * V * (S + N), 2 * B * H * V * (S + sum(range(S + 1, S + N + 1)))
    assert found.logits == models.Work(*logits)
    together = found.prompt, found.steps, found.logits
    assert found.total.with_cache == sum(work.with_cache for work in together)
    assert found.total.without_cache == sum(work.without_cache for work in together)


def test_any_shape_is_summed_as_a_loop_sums_it():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(50):
        groups, heads, size = draw.randint(1, 4), draw.randint(1, 4), draw.choice([8, 16, 64])
        shape = {
            "model_type": "gemma2",
            "num_hidden_layers": draw.randint(1, 9),
            "hidden_size": 8 * draw.randint(1, 64),
            "num_attention_heads": groups * heads,
            "num_key_value_heads": heads,
            "head_dim": size,
            "intermediate_size": draw.randint(1, 500),
            "sliding_window": draw.randint(1, 60),
        }
        batch, prompt, added = draw.randint(1, 5), draw.randint(1, 80), draw.randint(1, 40)
        found = models.generation(shape, batch=batch, prompt_tokens=prompt, new_tokens=added)
        layers, h, window = shape["num_hidden_layers"], shape["hidden_size"], shape["sliding_window"]
        q, kv, f = groups * heads * size, heads * size, shape["intermediate_size"]
        weights = h * q + 2 * h * kv + q * h + 3 * h * f
        limits = [window if i % 2 == 0 else math.inf for i in range(layers)]
        peak = sum(min(prompt + added, limit) * 2 * kv * 2 for limit in limits)
        assert found.peak_bytes == batch * peak
        cached = computed = 0
        for k in range(prompt, prompt + added):
            for limit in limits:
                cached += 2 * weights + 4 * q * min(k + 1, limit)
                computed += (k + 1) * (2 * weights + 4 * q * min(k + 1, limit))
        assert found.steps == models.Work(batch * cached, batch * computed)
        assert found.logits is None
        assert found.total == models.Work(
            found.prompt.with_cache + found.steps.with_cache, found.prompt.without_cache + found.steps.without_cache
        )


def test_one_head_for_all_queries_shrinks_the_cache_and_not_the_scores():
    shape = {"model_type": "gpt_bigcode", "n_layer": 4, "n_embd": 512, "n_head": 8}
    one = models.generation(shape, prompt_tokens=100, new_tokens=1)
    all_heads = models.generation(shape | {"multi_query": False}, prompt_tokens=100, new_tokens=1)
    assert all_heads.peak_bytes == 8 * one.peak_bytes
    saved = 4 * 2 * (2 * 512 * 7 * 64)  # K and V of seven heads, in four layers
    assert all_heads.last_step.with_cache - one.last_step.with_cache == saved


def test_latent_attention_reads_latent_rows_in_a_step_and_expands_them_in_a_pass():
    found = models.generation(models.known_config("deepseek-v3"), prompt_tokens=100, new_tokens=1)
    assert found.peak_bytes == 101 * 61 * (512 + 64) * 2
    weights = 7168 * 1536 + 1536 * 128 * (128 + 64) + 7168 * (512 + 64) + 512 * 128 * (128 + 128) + 128 * 128 * 7168
    weights += 3 * 7168 * 9 * 2048
    assert found.last_step.with_cache == 61 * (2 * weights + 2 * 128 * (512 + 64 + 512) * 101)
    assert found.last_step.without_cache == 61 * (101 * 2 * weights + 2 * 128 * (128 + 64 + 128) * 101 * 101)


def test_chunks_and_states_and_shared_layers_count_what_they_keep():
    scout = models.generation(models.known_config("llama-4-scout"), prompt_tokens=20000, new_tokens=1)
    token = 2 * 8 * 128 * 2
    assert scout.peak_bytes == token * (12 * 20001 + 36 * 8192)
    reading_step = 4 * 40 * 128 * (12 * 20001 + 36 * (20000 % 8192 + 1))
    without_reading = models.generation(models.known_config("llama-4-scout"), prompt_tokens=1, new_tokens=1)
    assert scout.last_step.with_cache - without_reading.last_step.with_cache == reading_step - 4 * 40 * 128 * 48 * 2

    hybrid = models.known_config("qwen3-next-80b-a3b")
    state = (2 * 16 * 128 + 32 * 128) * 4 * 2 + 32 * 128 * 128 * 4
    found = models.generation(hybrid, batch=3, prompt_tokens=999, new_tokens=1)
    assert found.peak_bytes == 3 * (1000 * 12 * 2 * 2 * 256 * 2 + 36 * state)
    assert found.steps is None  # its weights are in no formula
    found = models.generation(hybrid, batch=3, prompt_tokens=999, new_tokens=1, parameters=3e9)
    assert found.last_step.with_cache == 3 * (2 * 3e9 + 12 * 4 * 16 * 256 * 1000 + 36 * 4 * 32 * 128 * 128)
    assert found.last_step_logits is None
    assert found.total.with_cache == found.prompt.with_cache + found.steps.with_cache

    shared = models.generation(models.known_config("gemma-3n-e4b"), prompt_tokens=4095, new_tokens=1)
    assert shared.peak_bytes == 2 * 2 * 256 * 2 * (4 * 4096 + 16 * 512)  # 20 of 35 layers keep keys and values


def test_windows_count_as_full_on_request():
    config = models.known_config("gemma-2-9b")
    windowed = models.generation(config, prompt_tokens=8191, new_tokens=1)
    full = models.generation(config, prompt_tokens=8191, new_tokens=1, windows=False)
    assert (windowed.peak_bytes, full.peak_bytes) == (8192 * 21 * 8192 + 8192 * 21 * 4096, 8192 * 42 * 8192)
    assert full.last_step.with_cache > windowed.last_step.with_cache


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"batch": 0}, "batch: 0"),
        ({"prompt_tokens": 0}, "prompt_tokens: 0"),
        ({"new_tokens": 0}, "new_tokens: 0"),
        ({"new_tokens": -1}, "new_tokens: -1"),
        ({"batch": 1 << 20, "prompt_tokens": 1 << 12}, r"batch 1048576.*at most 2\^31"),
        ({"batch": 1 << 40}, "batch: 1099511627776"),
        ({"dtype": "int4"}, "int4"),
    ],
)
def test_a_generation_that_cannot_be_is_refused_by_name(given, why):
    with pytest.raises(kvstore.BadRequest, match=why):
        models.generation(
            models.known_config("llama-2-7b"), **({"batch": 1, "prompt_tokens": 1, "new_tokens": 1} | given)
        )


def test_a_common_model_needs_no_file(capsys):
    assert main(["size", "--model", "Llama-3.1-8B"]) == 0
    assert "131,072" in capsys.readouterr().out
    assert main(["size", "--list-models"]) == 0
    listed = capsys.readouterr().out
    assert "gpt3-175b" in listed
    assert "model card of deepseek-ai/DeepSeek-V3" in listed
    assert main(["size", "--list-models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["models"]
    assert [each["model"] for each in found] == list(models.known_models())
    assert len(found) >= 15
    assert all(models.cache_groups(each["config"]) for each in found)
    assert main(["size", "--model", "llama-9"]) == 1
    assert "'llama-9' is not known" in capsys.readouterr().err


def test_the_command_prints_the_same_figures(capsys):
    command = ["size", "--model", "gpt3-175b", "--batch", "64", "--tokens", "512", "--new-tokens", "32"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["generation"]
    assert found["peak_bytes"] == 164_282_499_072
    assert found["last_step"] == {
        "with_cache": LAYERS * 233_639_510_016,
        "without_cache": LAYERS * 127_099_893_448_704,
    }
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "153 GiB of cache at most" in text
    assert "544.0x" in text
    assert main(["size", "--model", "kimi-linear-48b-a3b", "--new-tokens", "3"]) == 0
    assert "give --parameters" in capsys.readouterr().out
    assert main(["size", "--model", "phi-4", "--batch", "0", "--new-tokens", "3"]) == 1
    assert "batch: 0" in capsys.readouterr().err


def test_the_page_shows_what_the_command_prints(capsys):
    page = Path(__file__).resolve().parents[3] / "docs/python.md"
    if not page.exists():
        pytest.skip("without the repository")
    shown = page.read_text().split("    $ python -m kvstore size ", 1)[1]
    lines = shown.split("\n")
    assert main(["size", *lines[0].split()]) == 0
    printed = capsys.readouterr().out.rstrip().split("\n")
    assert [line.removeprefix("    ") for line in lines[1 : 1 + len(printed)]] == printed
