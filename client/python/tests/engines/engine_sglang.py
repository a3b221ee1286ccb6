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
from typing import Any


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
            until = time.monotonic() + 10
            while not (done := bool(getattr(engine.flush_cache(), "success", True))) and time.monotonic() < until:
                time.sleep(0.01)
            answer({"flush": done})
            continue
        if "update" in asked:
            done = engine.update_weights_from_disk(asked["update"])
            answer({"update": bool(getattr(done, "success", done[0] if isinstance(done, (list, tuple)) else done))})
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
