"""Answers of an engine without a store to one prompt in several ways: whether answers and pages depend on the tokens alone. Differing
results cannot be compared to the last bit between engines that share blocks (traps in docs/engines/vllm.md).

PYTHONPATH=build/engines/site PYTHON client/python/tests/engines/vllm_alone.py [--models llama,gemma3,deepseek] [--prompts 8]

PYTHON has vLLM, as for deploy/test.sh --engines.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tiny
from test_vllm_engine import Engine, prompt_of, same

BLOCK_SIZES = {"llama": 32, "gemma3": 32, "deepseek": 16}


def run(kind: str, prompts: int, folder: Path) -> None:
    size = BLOCK_SIZES[kind]
    engine = Engine(
        tiny.make(kind, folder),
        None,
        folder / f"{kind}.log",
        in_process=True,
        block_size=size,
        dtype="float32",  # so that near ties do not hide errors
        force_prefix_caching=kind == "deepseek",
    )
    rng = random.Random(1)
    right: Counter[str] = Counter()
    of: Counter[str] = Counter()

    def count(what: str, *are_right: bool) -> None:
        right[what] += sum(are_right)
        of[what] += len(are_right)

    for seed in range(prompts):
        prompt = prompt_of(rng.randrange(300, 1500), seed)
        part = rng.randrange(4, len(prompt) // size) * size
        engine.reset()
        cold = engine.generate(prompt, max_tokens=5)
        pages = engine.pages(prompt)
        hit = engine.generate(prompt, max_tokens=5)
        count("answers after a second hit as after the first", same(engine.generate(prompt, max_tokens=5), hit))
        count("tokens after a hit as without", hit["tokens"] == cold["tokens"])
        engine.reset()
        count("answers when computed again", same(engine.generate(prompt, max_tokens=5), cold))
        count(
            "pages when computed again", *(one == other for one, other in zip(engine.pages(prompt), pages, strict=True))
        )
        engine.reset()
        engine.generate(prompt[: part + 1], max_tokens=1)
        sooner = engine.pages(prompt[:part])
        count(
            "pages of a prompt that ends sooner",
            *(
                page == other
                for i in range(len(sooner))
                for page, other in zip(sooner[i], pages[i], strict=True)
                if page is not None and other is not None  # otherwise a window has left it behind
            ),
        )
        for n in range(1, 5):
            engine.reset()
            told = engine.generate(prompt + cold["tokens"][0][:n], max_tokens=1)
            count("next tokens when prefilled instead of decoded", told["tokens"][0] == cold["tokens"][0][n : n + 1])
    engine.close()
    print(f"{kind}, the same of all:")
    for what, total in of.items():
        print(f"  {what}: {right[what]} of {total}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(BLOCK_SIZES), help=f"of {', '.join(BLOCK_SIZES)}")
    parser.add_argument("--prompts", type=int, default=8)
    given = parser.parse_args()
    for kind in given.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            run(kind, given.prompts, Path(folder))


if __name__ == "__main__":
    main()
