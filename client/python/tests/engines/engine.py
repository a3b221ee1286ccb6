"""A vLLM engine in a process of its own, controlled by lines of JSON.

The first line has LLM's arguments. Then ``{"generate": [[token, ...], ...], "max_tokens": n, ...}`` returns tokens, log-probabilities and
the cached token count of each; ``{"reset": true}`` empties the engine's own cache (with ``connector`` the connector is notified, too);
``{"scale": factor}`` changes the weights in place; ``{"metrics": prefix}`` returns the sums of vLLM's counters and gauges with that prefix.
``{"pages": [token, ...]}`` returns, for each block of such a prompt and each cache group, a digest of the engine's page, or null.

A ``generate`` may have ``images``: for each prompt the seeds of its images, which stand at tiny.IMAGE_TOKEN; the answer then has the number
of images encoded so far. ``scale``, ``pages`` and ``images`` need VLLM_ENABLE_V1_MULTIPROCESSING=0.

``params`` are the prompts' kv_transfer_params. It may have ``lora``: name, number and path of an adapter; with ``in_place`` it is loaded again.

``force_prefix_caching`` among the arguments keeps vLLM's cache on where vLLM turns it off because its kernels are wrong after a hit: they
are wrong in the same way after a hit from elsewhere, so the two can be compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from typing import Any


def force_prefix_caching() -> None:
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def check_and_turn_on(config: Any) -> None:
        check(config)
        config.cache_config.enable_prefix_caching = True

    CpuPlatform.check_and_update_config = staticmethod(check_and_turn_on)


def image_of(seed: int) -> Any:
    import numpy as np
    import tiny
    from PIL import Image

    height, width = tiny.IMAGE_SIDE, tiny.IMAGE_SIDE * (1 + seed % 3)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def count_encoded(llm: Any) -> list[int]:
    """Its only entry grows with each image encoded from now on."""
    model = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.model
    count, encode = [0], model.embed_multimodal

    def counted(**inputs: Any) -> Any:
        made = encode(**inputs)
        count[0] += len(made)
        return made

    model.embed_multimodal = counted
    return count


def reset(llm: Any, connector: bool) -> bool:
    """Retries, since pages of saves come back within milliseconds."""
    more = {"reset_connector": True} if connector else {}
    until = time.monotonic() + 10
    while not (done := bool(llm.reset_prefix_cache(**more))) and time.monotonic() < until:
        time.sleep(0.01)
    return done


def metrics_of(llm: Any, prefix: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for each in llm.get_metrics():
        if each.name.startswith(prefix) and hasattr(each, "value"):
            labels = [f"{k}={v}" for k, v in sorted(each.labels.items()) if k not in ("engine", "model_name")]
            name = ",".join([each.name, *labels])
            sums[name] = sums.get(name, 0) + each.value
    return sums


def scale(llm: Any, factor: float) -> None:
    """Updates weights in place: CPU kernels do not hide the embeddings."""
    model = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.model
    names = ("embed_tokens.weight", "embed_tokens.base_layer.weight")  # the latter with adapters
    (weight,) = (each for name, each in model.named_parameters() if name.endswith(names))
    weight.data[:, 0] *= factor


def pages_of(llm: Any, tokens: list[int]) -> list[list[str | None]]:
    """For each block and cache group, a digest of all layers' bytes, as a request finds them in the cache."""
    import torch
    import vllm
    from vllm.v1.request import Request

    core = llm.llm_engine.engine_core.engine_core
    manager = core.scheduler.kv_cache_manager
    groups = core.scheduler.kv_cache_config.kv_cache_groups
    context = core.model_executor.driver_worker.worker.model_runner.compilation_config.static_forward_context
    request = Request("pages", tokens, vllm.SamplingParams(max_tokens=1), None, block_hasher=core.request_block_hasher)

    def digest(block_hash: Any, group: int) -> str | None:
        blocks = manager.block_pool.get_cached_block(block_hash, [group])
        if not blocks:
            return None
        found = hashlib.sha256()
        for name in groups[group].layer_names:
            page = context[name].kv_cache[blocks[0].block_id]
            found.update(page.contiguous().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    return [[digest(each, group) for group in range(len(groups))] for each in request.block_hashes]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM's prints are not answers
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.update(VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")

    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    import vllm

    arguments = json.loads(sys.stdin.readline())
    if "ec_transfer_config" in arguments:
        from vllm.config import ECTransferConfig

        arguments["ec_transfer_config"] = ECTransferConfig(**arguments["ec_transfer_config"])
    if arguments.pop("force_prefix_caching", False):
        force_prefix_caching()
    try:
        llm = vllm.LLM(
            **{
                "skip_tokenizer_init": True,
                "dtype": "bfloat16",
                "enforce_eager": True,
                "max_model_len": 4096,
                "max_num_seqs": 8,
                "enable_prefix_caching": True,
                "block_size": 32,
                "prefix_caching_hash_algo": "sha256_cbor",
                "disable_log_stats": False,
            }
            # The connector requires this for these releases.
            | ({"async_scheduling": False} if vllm.__version_tuple__[:2] < (0, 28) else {})
            | arguments
        )
    except Exception as error:
        answer({"error": repr(error)})
        return
    answer({"ready": True})
    encoded: list[int] | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        if "reset" in asked:
            answer({"reset": reset(llm, asked.get("connector", False))})
            continue
        if "scale" in asked:
            scale(llm, asked["scale"])
            answer({"scaled": True})
            continue
        if "pages" in asked:
            answer(pages_of(llm, asked["pages"]))
            continue
        if "metrics" in asked:
            answer(metrics_of(llm, asked["metrics"]))
            continue
        salt = {"cache_salt": asked["salt"]} if "salt" in asked else {}
        prompts: list[Any] = [{"prompt_token_ids": tokens} | salt for tokens in asked["generate"]]
        if "images" in asked:
            if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0":
                encoded = encoded or count_encoded(llm)
            for prompt, seeds in zip(prompts, asked["images"], strict=True):
                prompt["multi_modal_data"] = {"image": [image_of(seed) for seed in seeds]}
        sampling = [
            vllm.SamplingParams(
                temperature=0,
                max_tokens=asked.get("max_tokens", 16),
                ignore_eos=True,
                detokenize=False,
                logprobs=1,
                extra_args=None if each is None else {"kv_transfer_params": each},
            )
            for each in asked.get("params", [None] * len(prompts))
        ]
        lora = None
        if "lora" in asked:
            from vllm.lora.request import LoRARequest

            lora = LoRARequest(*asked["lora"], load_inplace=asked.get("in_place", False))
        began = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False, lora_request=lora)
        seconds = time.perf_counter() - began
        answer(
            {
                "seconds": seconds,
                "tokens": [list(each.outputs[0].token_ids) for each in outputs],
                "logprobs": [
                    [next(iter(step.values())).logprob for step in each.outputs[0].logprobs or []] for each in outputs
                ],
                "cached": [each.num_cached_tokens for each in outputs],
            }
            | ({} if encoded is None else {"encoded": encoded[0]})
        )


if __name__ == "__main__":
    main()
