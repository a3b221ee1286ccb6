"""The figures of docs/modules.md: ratios of rounds in which both sides run in turn, and how far the modes are from the full prefill.

python client/python/tests/measure_modules.py [--rounds 9] [--threads 2] [--layers 16] [--only scatter first_token distance]

scatter      loading modules into a cache with their keys rotated, beside the same without
first_token  8 documents of 500 tokens in another order than when they were stored, beside computing all
distance     KL divergence of the next token's distribution from the full prefill's, by mode and share
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import conftest
import numpy as np
import torch
from safetensors.torch import load_file
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import kvstore
from kvstore.pml import Plan, Range, Unit
from kvstore.transformers import ModuleStore, Prefilled
from kvstore.transformers.cache_shape import CacheShape

WEIGHTS = Path(__file__).resolve().parents[3] / "tests/models/bytes.safetensors"
SHARES = (0.0, 0.05, 0.15, 0.3)


def trained_model() -> LlamaForCausalLM:
    weights = {name: each.float() for name, each in load_file(WEIGHTS).items()}
    layers = 1 + max(int(name.split(".")[2]) for name in weights if ".layers." in name)
    config = LlamaConfig(
        vocab_size=256, hidden_size=256, num_hidden_layers=layers, num_attention_heads=4, head_dim=64, max_position_embeddings=8192,
        intermediate_size=len(weights["model.layers.0.mlp.up_proj.weight"]), tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    return model.eval()


def random_model(layers: int) -> LlamaForCausalLM:
    """The trained model's shape with other layers."""
    config = trained_model().config
    config.num_hidden_layers = layers
    return LlamaForCausalLM(config).eval()


def paired(rounds: int, base: Callable[[], object], *others: Callable[[], object]) -> tuple[float, list[float]]:
    """Median seconds of the first, and for each other the median of its time by the first's in the same round."""
    times: list[list[float]] = []
    for i in range(rounds + 1):
        of_round = []
        for call in (base, *others):
            began = time.perf_counter()
            call()
            of_round.append(time.perf_counter() - began)
        if i:  # the first warms up
            times.append(of_round)
    seconds = statistics.median(each[0] for each in times)
    return seconds, [statistics.median(each[k + 1] / each[0] for each in times) for k in range(len(others))]


def prompt_of(documents: list[bytes], question: bytes) -> Plan:
    """Modules behind one another, then the text."""
    ranges, at = [], 0
    for i, each in enumerate(documents):
        tokens = tuple(each)
        unit = Unit(str(i), tokens, tuple(range(len(tokens))), (str(i),))
        ranges.append(Range("module", unit.name, tokens, tuple(range(at, at + len(tokens))), unit, 0))
        at += len(tokens)
    ranges.append(Range("text", "", tuple(question), tuple(range(at, at + len(question)))))
    return Plan(tuple(ranges))


# -- scatter


def measure_scatter(rounds: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for style in ("neox", "gptj"):
            measure_scatter_of(dtype, style, rounds)


def measure_scatter_of(dtype: torch.dtype, style: str, rounds: int) -> None:
    """4,096 tokens of a model with 4 layers of 8 heads of 128, as 8 modules."""
    shape, tokens, block_size = CacheShape(4, [(8, 128), (8, 128)], dtype), 4096, 32
    source = np.empty((tokens // block_size, shape.layout(block_size).store_block_bytes), np.uint8)
    source[:] = torch.randn(source.nbytes // dtype.itemsize).to(dtype).view(torch.uint8).numpy().reshape(source.shape)
    target, blocks = shape.bind(shape.empty(1, tokens)), shape.bind_blocks(source, block_size)
    slots = np.arange(tokens)
    turn = kvstore.Rotation(128, deltas=np.repeat(np.arange(8) * 500 + 7, tokens // 8), style=style)
    seconds, (ratio,) = paired(
        rounds,
        lambda: kvstore.scatter(target, blocks, slots=slots),
        lambda: kvstore.scatter(target, blocks, slots=slots, move=turn),
    )
    speed = source.nbytes / seconds / 2**30
    print(f"scatter {dtype} {style}: plain {speed:.1f} GiB/s, rotated {1 / ratio:.2f} of its speed")


# -- time to first token


def measure_first_token(rounds: int, layers: int, client: kvstore.Client) -> None:
    model = random_model(layers) if layers else trained_model()
    rng = np.random.default_rng(1)
    documents = [rng.integers(32, 127, 500).astype(np.uint8).tobytes() for _ in range(8)]
    store = ModuleStore(model, client, salt=f"first token {time.time_ns()}")
    store.prefill(prompt_of(documents, b"What do they say?"))
    prompts = [
        prompt_of([documents[i] for i in rng.permutation(8)], b"What do they say about that, please?") for _ in range(4)
    ]
    turn = iter(range(10**9))

    def full() -> None:
        prompt = prompts[next(turn) % 4]
        with torch.no_grad():
            model(torch.tensor(prompt.tokens)[None], past_key_values=DynamicCache(), logits_to_keep=1)

    def of_mode(mode: str, **options: float) -> None:
        made = store.prefill(prompts[next(turn) % 4], mode=mode, **options)
        assert made.why is None
        assert made.encoded == 0

    seconds, ratios = paired(
        rounds, full, lambda: of_mode("modular"), *(lambda s=s: of_mode("blend", share=s) for s in SHARES)
    )
    print(
        f"first token: all of {prompts[0].token_count} tokens computed in {seconds:.2f} s; of that time modular {ratios[0]:.3f}, blend",
        end=" of",
    )
    print(", ".join(f" {share:.0%} {ratio:.2f}" for share, ratio in zip(SHARES, ratios[1:], strict=True)))


# -- distance from the full prefill


def divergence(full: torch.Tensor, other: torch.Tensor) -> float:
    """KL(full || other) in nats."""
    left, right = full.double().log_softmax(-1), other.double().log_softmax(-1)
    return float((left.exp() * (left - right)).sum())


def text_of_docs() -> bytes:
    """This repository's own pages: English that the model was not trained on."""
    pages = sorted((Path(__file__).resolve().parents[3] / "docs").glob("*.md"))
    return b"\n".join(page.read_bytes() for page in pages)


def measure_distance(rounds: int, client: kvstore.Client) -> None:
    """Of a prompt's documents the later ones take up the earlier, as answers do questions; the text begins a passage of one."""
    model, text = trained_model(), text_of_docs()
    rng = np.random.default_rng(2)
    store = ModuleStore(model, client, salt=f"distance {time.time_ns()}", block_size=16)
    modes = {"modular": {"mode": "modular"}} | {f"blend {s:.0%}": {"mode": "blend", "share": s} for s in SHARES}
    found: dict[str, list[float]] = {name: [] for name in (*modes, "text alone")}
    for _ in range(rounds * 8):
        prompt = linked_prompt(text, rng)
        with torch.no_grad():
            full = model(torch.tensor(prompt.tokens)[None], past_key_values=DynamicCache(), logits_to_keep=1).logits[
                0, -1
            ]
            text_alone = torch.tensor(prompt.ranges[-1].tokens)[None]
            found["text alone"].append(
                divergence(full, model(text_alone, past_key_values=DynamicCache()).logits[0, -1])
            )
        for name, options in modes.items():
            made: Prefilled = store.prefill(prompt, **options)
            found[name].append(divergence(full, made.logits[0]))
    base = statistics.mean(found["modular"])
    for name, each in found.items():
        print(
            f"distance {name}: {statistics.mean(each):.6f} nats, {statistics.mean(each) / base:.2f} of modular's ({len(each)} prompts)"
        )


def linked_prompt(text: bytes, rng: np.random.Generator) -> Plan:
    documents: list[bytes] = []
    for _ in range(6):
        start = int(rng.integers(0, len(text) - 80))
        own = text[start : start + 60]
        if documents:
            earlier = documents[int(rng.integers(len(documents)))]
            at = int(rng.integers(0, len(earlier) - 30))
            own = earlier[at : at + 30] + own[:30]
        documents.append(own + b"\n\n")
    document = documents[int(rng.integers(len(documents)))]
    at = int(rng.integers(0, len(document) - 30))
    return prompt_of(documents, document[at : at + 20])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--layers", type=int, default=0, help="first_token: of a model with random weights; 0: the trained one"
    )
    parser.add_argument("--only", nargs="+", default=["scatter", "first_token", "distance"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if "scatter" in options.only:
        measure_scatter(options.rounds)
    if {"first_token", "distance"} & set(options.only):
        node = conftest.Node()
        try:
            with kvstore.Client(node.endpoint, deadline=10) as client:
                if "first_token" in options.only:
                    measure_first_token(options.rounds, options.layers, client)
                if "distance" in options.only:
                    measure_distance(options.rounds, client)
        finally:
            node.close()


if __name__ == "__main__":
    main()
