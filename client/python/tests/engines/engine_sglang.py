"""An SGLang engine in a process of its own, controlled by lines of JSON.

The first line has Engine's arguments. Then ``{"generate": [[token, ...], ...], "max_tokens": n}`` returns tokens, log-probabilities and the
sources of cached tokens of each; ``{"flush": true}`` empties the engine's own caches, on the device and on the host; ``{"update": folder}``
has it load other weights.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def until_done(call: Callable[..., bool], *arguments: Any) -> bool:
    """Retries: for a moment after its last answer the engine still counts as busy, and refuses to flush its cache."""
    until = time.monotonic() + 60
    while not (done := call(*arguments)) and time.monotonic() < until:
        time.sleep(0.01)
    return done


def flushed(engine: Any) -> bool:
    return bool(getattr(engine.flush_cache(), "success", True))


def updated(engine: Any, folder: str) -> bool:
    """Whether the engine has the folder's weights, and an empty cache."""
    done, message, *_ = engine.update_weights_from_disk(folder)
    print(message)
    return bool(done)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # SGLang's prints are not answers

    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    arguments = json.loads(sys.stdin.readline())
    import sglang

    defaults = {
        "device": "cpu",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "mem_fraction_static": 0.2,
        "max_total_tokens": 8192,
        "context_length": 4096,
        "max_running_requests": 8,
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "page_size": 32,
        "log_level": "info",
        "random_seed": 1,
    }
    try:
        engine = sglang.Engine(**(defaults | arguments))
    except BaseException as error:
        answer({"error": repr(error)})
        raise
    answer({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        if "flush" in asked:
            answer({"flush": until_done(flushed, engine)})
            continue
        if "update" in asked:
            answer({"update": until_done(updated, engine, asked["update"])})
            continue
        sampling = {"temperature": 0, "max_new_tokens": asked.get("max_tokens", 16), "ignore_eos": True}
        began = time.perf_counter()
        outputs = engine.generate(input_ids=asked["generate"], sampling_params=sampling, return_logprob=True)
        answer(
            {
                "seconds": time.perf_counter() - began,
                "tokens": [each["output_ids"] for each in outputs],
                "logprobs": [[step[0] for step in each["meta_info"]["output_token_logprobs"]] for each in outputs],
                "cached": [each["meta_info"]["cached_tokens"] for each in outputs],
                "stored": [
                    ((each["meta_info"].get("cached_tokens_details") or {}).get("storage") or 0) for each in outputs
                ],
            }
        )
    engine.shutdown()


if __name__ == "__main__":
    main()
