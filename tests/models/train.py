#!/usr/bin/env python3
"""Trains the small model of the tests of modules: a Llama over bytes, of four layers, on the text of a Debian package.

apt-get install perl-doc && python tests/models/train.py [--out FILE]    up to ten minutes on two cores; needs torch and transformers

Its texts are what such prompts are: some documents, then passages quoted from them, so that the model learns to look documents up. The seed is
fixed; the arithmetic of another machine gives slightly different weights. The file's metadata has this script's SHA-256, and a test compares
it, so that a change here without new weights is noticed.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

PACKAGE = "perl-doc"
SEED = 1
STEPS = 400
WARM_UP = 20
#: Sequences of a step, and their bytes.
ROWS = 8
LENGTH = 768
#: Learning rates of matrices (Muon) and of the rest (AdamW).
MATRIX_RATE = 0.02
OTHER_RATE = 0.002

CONFIG = {
    "vocab_size": 256,
    "hidden_size": 256,
    "intermediate_size": 440,  # the largest multiple of 8 with which the weights take less than 5 MB
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def package_text() -> tuple[str, np.ndarray]:
    """The package's version, and its manual pages in English as bytes, in the order of their names."""
    version = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Version}", PACKAGE], check=True, capture_output=True, text=True
    ).stdout
    listed = subprocess.run(["dpkg", "--listfiles", PACKAGE], check=True, capture_output=True, text=True).stdout
    pods = sorted(Path(line) for line in listed.splitlines() if line.endswith(".pod"))
    languages = {"perlcn.pod", "perljp.pod", "perlko.pod", "perltw.pod"}
    text = b"\n".join(pod.read_bytes() for pod in pods if pod.name not in languages and "delta" not in pod.name)
    return version, np.frombuffer(text, dtype=np.uint8)


def sequence(text: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Documents of 40 to 150 bytes, then passages of them in any order, till it is full."""
    documents = []
    room = LENGTH + 1
    budget = int(rng.integers(LENGTH // 4, LENGTH * 3 // 4))
    while budget > 0:
        size = int(rng.integers(40, 150))
        start = int(rng.integers(0, len(text) - size))
        documents.append(text[start : start + size])
        budget -= size + 2
    parts = [np.append(each, [10, 10]).astype(np.uint8) for each in documents]
    while sum(map(len, parts)) < room:
        document = documents[int(rng.integers(len(documents)))]
        size = int(rng.integers(20, 80))
        start = int(rng.integers(0, max(1, len(document) - size)))
        parts.append(np.append(document[start : start + size], [10]).astype(np.uint8))
    return np.concatenate(parts)[:room]


def train(text: np.ndarray) -> tuple[LlamaForCausalLM, float]:
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG))
    matrices = [each for name, each in model.named_parameters() if each.ndim == 2 and "embed" not in name]
    others = [each for name, each in model.named_parameters() if each.ndim != 2 or "embed" in name]
    optimisers = [
        torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.01),
        torch.optim.AdamW(others, lr=OTHER_RATE, weight_decay=0.0, betas=(0.9, 0.98)),
    ]
    rates = [MATRIX_RATE, OTHER_RATE]
    began, average = time.monotonic(), 0.0
    for step in range(STEPS):
        factor = min((step + 1) / WARM_UP, 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / STEPS)))
        for optimiser, rate in zip(optimisers, rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * factor
        rows = torch.from_numpy(np.stack([sequence(text, rng) for _ in range(ROWS)]).astype(np.int64))
        logits = model(rows[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        average = loss.item() if step == 0 else 0.95 * average + 0.05 * loss.item()
        if step % 10 == 0 or step == STEPS - 1:
            print(f"step {step}, {time.monotonic() - began:.0f} s: {average / math.log(2):.3f} bits a byte", flush=True)
    return model.eval(), average / math.log(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "bytes.safetensors")
    out = parser.parse_args().out
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    version, text = package_text()
    checksum = hashlib.sha256(text.tobytes()).hexdigest()
    print(f"{PACKAGE} {version}: {len(text)} bytes of text, SHA-256 {checksum}", flush=True)
    model, bits = train(text)
    weights = {name: each.half().contiguous() for name, each in model.state_dict().items() if name != "lm_head.weight"}
    told = {
        "script_sha256": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
        "package": f"{PACKAGE} {version}",
        "text_sha256": checksum,
        "bits_per_byte": f"{bits:.3f}",
    }
    save_file(weights, out, metadata=told)
    print(f"{out}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
