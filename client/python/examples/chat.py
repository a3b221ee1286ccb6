"""A conversation with a transformers model, without a store and with one: the same tokens, less to compute.

python chat.py --endpoint unix:///tmp/kvstore.sock            # random weights, made on the spot
python chat.py --endpoint ... --model PATH_OR_NAME            # a real model

Each turn sends all that was said before, as chats do. Without a store all is computed again; with one, stored blocks are loaded. Run it
twice: the second process loads the first one's blocks.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import transformers

import kvstore
from kvstore.transformers import PrefixStore


def made_on_the_spot() -> Any:
    """A Llama of 24 million random weights, the same in each process."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=8192,
        initializer_range=0.1,
    )
    return transformers.LlamaForCausalLM(config).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", default=None, help="of the node; KVSTORE_ENDPOINTS by default")
    parser.add_argument("--model", help="of a real model: a folder or a name")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=400, help="of each question, with random weights (400)")
    parser.add_argument("--answer", type=int, default=16, help="tokens of each answer (16)")
    given = parser.parse_args()

    if given.model:
        model = transformers.AutoModelForCausalLM.from_pretrained(given.model).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(given.model)
        text = "Tell me more about the history of the city, and why that matters today. " * (given.tokens // 16 + 1)
        questions = [tokenizer(f"Question {i}. {text}", return_tensors="pt").input_ids for i in range(given.turns)]
    else:
        model = made_on_the_spot()
        random = torch.Generator().manual_seed(11)
        questions = [torch.randint(1, 4096, (1, given.tokens), generator=random) for _ in range(given.turns)]
    options = {"max_new_tokens": given.answer, "do_sample": False, "pad_token_id": 0}

    with kvstore.Client(given.endpoint, deadline=5.0) as client:
        store = PrefixStore(model, client)
        said_without = said_with = torch.empty((1, 0), dtype=torch.long)
        total_without = total_with = 0.0
        print("turn  tokens  from the store  without  with the store  same")
        for turn, question in enumerate(questions):
            prompt = torch.cat([said_without, question], dim=1)
            began = time.perf_counter()
            said_without = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
            without = time.perf_counter() - began

            prompt = torch.cat([said_with, question], dim=1)
            began = time.perf_counter()
            cache = store.cache(prompt)
            said_with = model.generate(prompt, past_key_values=cache, attention_mask=torch.ones_like(prompt), **options)
            cache.store(said_with)
            with_store = time.perf_counter() - began

            same = torch.equal(said_without, said_with)
            total_without, total_with = total_without + without, total_with + with_store
            print(
                f"{turn + 1:4}  {prompt.shape[1]:6}  {cache.cached_token_count:14}  {without * 1e3:4.0f} ms"
                f"  {with_store * 1e3:11.0f} ms  {'yes' if same else 'NO'}"
            )
            if cache.why is not None:
                print(f"      {cache.why.status_name}: {cache.why}")
            if not same:
                raise SystemExit("the tokens differ")
        print(f"in all: {total_without * 1e3:.0f} ms without, {total_with * 1e3:.0f} ms with the store")


if __name__ == "__main__":
    main()
