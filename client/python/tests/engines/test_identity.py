"""vLLM's engines share blocks if they compute the same, whatever their options, and never otherwise: real engines with small models, and a
real node. Each engine's answers are compared with its own without the store: with a unique salt.

The whole matrix of families takes an hour: ``KV_FAMILIES=all``, or names of some, with commas. The default is a few.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import families
import hub
import tiny
import torch
import transformers
import vllm
from conftest import Node
from safetensors.torch import load_file, save_file
from synthetic import Worker, engine_config
from test_vllm_engine import BLOCK, MLA_BLOCK, Engine, prompt_of, until_cached

import kvstore
from kvstore.vllm.identity import Loaded, identity_of
from kvstore.vllm.model import StoreOptions

pytestmark = [
    pytest.mark.skipif(vllm.__version_tuple__[:2] < (0, 32), reason="other releases are tried by try_vllm.py"),
    pytest.mark.skipif(
        find_spec("lmcache") is not None, reason="LMCache's environment has vLLM too, which is tried without it"
    ),
]

_salts = (f"salt {i}" for i in itertools.count())


def right(engine: Engine, prompt: list[int], answer: Any, **more: Any) -> bool:
    """Whether the engine gives the same answer when it computes all."""
    alone = engine.generate(prompt, salt=next(_salts), **more)
    assert alone["cached"] == [0]
    return bool(alone["tokens"] == answer["tokens"])


@pytest.fixture
def engines(own_node: Node, tmp_path: Path) -> Iterator[Any]:
    made: list[Engine] = []

    def make(model: Path | str, **more: Any) -> Engine:
        made.append(
            Engine(model, own_node.endpoint, tmp_path / f"{len(made)}.log", **({"num_gpu_blocks_override": 200} | more))  # type: ignore[arg-type]
        )
        return made[-1]

    yield make
    for each in made:
        each.begin_close()
    for each in made:
        each.close()


# -- the engine's resolved settings


def test_a_rotation_that_the_greatest_length_chooses_is_told_apart(engines: Any, tmp_path: Path) -> None:
    """Long rope: vLLM takes the long factors if max_model_len is over the length that the model was trained with."""
    torch.manual_seed(1)
    said = families.COMMON | {"rope_parameters": families.long_rope(32), "initializer_range": 0.2}
    config = transformers.Phi3Config(**said, original_max_position_embeddings=2048)
    model = tmp_path / "phi3"
    transformers.Phi3ForCausalLM(config).to(torch.bfloat16).save_pretrained(model)
    prompt = prompt_of(900, 1)
    short, long, same = (engines(model, max_model_len=n, in_process=True) for n in (1024, 4096, 1000))
    answer = short.generate(prompt)
    assert answer["cached"] == [0]
    until_cached(same, prompt, 28 * BLOCK, answer)
    other = long.generate(prompt)
    assert other["cached"] == [0] and right(long, prompt, other)
    assert other["tokens"] != answer["tokens"]


def test_a_repository_that_moves_on_is_another_model_and_offline_is_the_same(engines: Any, tmp_path: Path) -> None:
    first, second = tiny.make("llama", tmp_path, seed=1), tiny.make("llama", tmp_path, seed=2)
    place = tmp_path / "elsewhere" / "tiny"
    shutil.copytree(first, place)
    prompt = prompt_of(900, 2)
    with hub.running(tmp_path / "hub") as made:
        made.push(first, "1" * 40)
        one = engines("org/tiny", env=made.env, in_process=True)
        folder = engines(place, in_process=True, options={"model": "org/tiny"})
        old = one.generate(prompt)
        made.push(second, "2" * 40)
        moved = engines("org/tiny", env=made.env, in_process=True)
        until_cached(folder, prompt, 28 * BLOCK, old)
        answer = moved.generate(prompt)
        assert answer["cached"] == [0] and right(moved, prompt, answer) and answer["tokens"] != old["tokens"]
    assert not any(hub.UNUSED in each for each in made.asked)
    offline = engines("org/tiny", env=made.env | {"HF_HUB_OFFLINE": "1"}, in_process=True)
    until_cached(offline, prompt, 28 * BLOCK, answer)


# -- adapters and weights of one model


def adapter(folder: Path, seed: int, rank: int = 8) -> Path:
    """For ``tiny``'s llama."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer, (name, out) in itertools.product(range(4), (("q_proj", 256), ("v_proj", 128))):
        at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
        weights[f"{at}.lora_A.weight"] = torch.randn(rank, 256, generator=generator) * 0.3
        weights[f"{at}.lora_B.weight"] = torch.randn(out, rank, generator=generator) * 0.3
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


class Pair:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = Node()
        model = tiny.make("llama", folder)
        self.one, self.other = (
            Engine(
                model,
                self.node.endpoint,
                folder / f"{i}.log",
                in_process=True,
                enable_lora=True,
                max_lora_rank=8,
                num_gpu_blocks_override=300,
            )
            for i in range(2)
        )

    def close(self) -> None:
        for each in (self.one, self.other):
            each.close()
        self.node.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("pair"))
    yield made
    made.close()


def test_an_adapter_that_was_trained_further_in_its_folder_is_another(pair: Pair) -> None:
    prompt, warm = prompt_of(600, 3), prompt_of(10, 4)
    place = adapter(pair.folder / "adapter", 1)
    shutil.copytree(place, pair.folder / "copy")
    lora = ["sql", 1, str(place)]
    old = pair.one.generate(prompt, lora=lora)
    base = pair.one.generate(prompt)
    assert base["cached"] == [0] and base["tokens"] != old["tokens"]
    adapter(place, 2)
    pair.other.generate(warm, lora=lora)
    new = pair.other.generate(prompt, lora=lora)
    assert new["cached"] == [0] and right(pair.other, prompt, new, lora=lora) and new["tokens"] != old["tokens"]
    # The first one, under another name and path.
    until_cached(pair.other, prompt, 18 * BLOCK, old, lora=["other", 2, str(pair.folder / "copy")])
    # And the first engine, which loads the new one in place.
    pair.one.reset()
    again = pair.one.generate(prompt, lora=lora, in_place=True)
    assert again["cached"] == [0] and again["tokens"] == new["tokens"]


def test_a_reset_goes_on_with_weights_that_did_not_change(pair: Pair) -> None:
    """The last test of the pair: it changes the weights."""
    prompt, warm = prompt_of(600, 5), prompt_of(10, 6)
    answer = pair.one.generate(prompt)
    until_cached(pair.other, prompt, 18 * BLOCK, answer)
    pair.other.reset(connector=True)
    computed = pair.other.generate(prompt)
    assert computed["cached"] == [0] and computed["tokens"] == answer["tokens"]
    until_cached(pair.other, prompt, 18 * BLOCK, answer)
    for each in (pair.one, pair.other):
        each.reset(connector=True)
        each.scale(3.0)
        each.generate(warm)
    new = pair.one.generate(prompt)
    assert new["cached"] == [0] and right(pair.one, prompt, new) and new["tokens"] != answer["tokens"]
    until_cached(pair.other, prompt, 18 * BLOCK, new)


# -- both halves, in processes of their own

SOME = ("falcon", "minimax-m2", "deepseek-yarn")
_asked = os.environ.get("KV_FAMILIES", "")
ASKED = list(families.FAMILIES) if _asked == "all" else _asked.split(",") if _asked else list(SOME)
#: vLLM turns its cache off for these: its CPU kernels for latent attention are wrong after any hit, its own too.
WRONG_AFTER_A_HIT = ("deepseek-yarn",)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_a_second_engine_finds_what_the_first_has_stored(family: str, engines: Any, tmp_path: Path) -> None:
    """Scheduler and workers have processes of their own. An unsupported family is refused by name."""
    if family not in ASKED:
        pytest.skip("KV_FAMILIES does not name it")
    model = families.make(family, tmp_path)
    more: dict[str, Any] = (
        {"force_prefix_caching": True, "block_size": MLA_BLOCK} if family in WRONG_AFTER_A_HIT else {}
    )
    more |= {
        "load_format": "dummy",
        "distributed_executor_backend": "mp",
        "max_model_len": 2048,
        "num_gpu_blocks_override": 400,
    }
    first, second = engines(model, **more), engines(model, **more)
    prompt = prompt_of(900, 7)
    try:
        answer = first.generate(prompt)
    except AssertionError:
        text = first.log.read_text(errors="replace")
        lines = [line for line in text.splitlines() if "Error" in line and "EngineCore" not in line]
        print(family, lines[-1:] or text[-500:])
        assert "kvstore.errors." in text or "not supported" in text, lines[-3:]
        pytest.skip(f"refused: {lines[-1][-300:] if lines else ''}")
    after_own_hit = first.generate(prompt)
    hit = until_cached(second, prompt, 28 * BLOCK, answer, after_own_hit)
    if family not in WRONG_AFTER_A_HIT:
        assert right(second, prompt, hit)


# -- without an engine


def said(model: Path, worker: Any = None, **more: Any) -> dict[str, Any]:
    return identity_of(engine_config(model, None, **more), StoreOptions(), worker or Worker())


def test_one_number_of_the_weights_is_enough_to_tell_models_apart(tmp_path: Path) -> None:
    one, other = tiny.make("llama", tmp_path / "1"), tiny.make("llama", tmp_path / "2")
    assert said(one) == said(other)
    weights = load_file(other / "model.safetensors")
    weights["model.layers.2.mlp.up_proj.weight"][100, 7] += 1
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    was, now = said(one), said(other)
    assert {name for name in was if was[name] != now[name]} == {"x.weights"}


def cached(root: Path, model: Path, commit: str) -> None:
    """The hub's cache has the folder as the last commit of org/tiny, which lists one more file."""
    repository = root / "models--org--tiny"
    shutil.copytree(model, repository / "snapshots" / commit)
    files = {each: {"size": 1, "blob_id": "0" * 40} for each in [*os.listdir(model), hub.UNUSED]}
    for name in ("refs", "trees"):
        (repository / name).mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "trees" / f"{commit}.json").write_text(json.dumps({"format_version": 1, "files": files}))


def test_a_snapshot_that_moved_while_it_was_loaded_is_named_by_what_is_in_memory(tmp_path: Path) -> None:
    cached(tmp_path / "hub", tiny.make("llama", tmp_path, seed=1), "1" * 40)
    config = engine_config(tmp_path / "llama-1", None)
    config.model_config.model, config.load_config.download_dir = "org/tiny", str(tmp_path / "hub")
    config.model_config.hf_config._commit_hash = "1" * 40
    files = said(tmp_path / "llama-1")["x.weights"]
    assert identity_of(config, StoreOptions(), Worker())["x.weights"] == files
    cached(tmp_path / "hub", tiny.make("llama", tmp_path, seed=2), "2" * 40)
    assert identity_of(config, StoreOptions(), Worker())["x.weights"] == "loaded 1x1"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"inv_freq": torch.ones(4)}, "x.rotation"),
        ({"mscale": 2.0}, "x.rotation"),
        ({"use_long_rope": True}, "x.rotation"),
        ({"training": True}, None),
    ],
)
def test_what_a_rotation_has_in_memory_is_bound(tmp_path: Path, change: dict[str, Any], field: str | None) -> None:
    model = tiny.make("llama", tmp_path)

    def rotated(said_of_it: dict[str, Any]) -> Worker:
        worker = Worker()
        worker.model.rotary = torch.nn.Module()
        worker.model.rotary.register_buffer("inv_freq", torch.zeros(4), persistent=False)
        for name, value in ({"mscale": 1.0, "use_long_rope": False, "training": False} | said_of_it).items():
            setattr(worker.model.rotary, name, value)
        return worker

    was, now = said(model, rotated({})), said(model, rotated(change))
    assert {name for name in was if was[name] != now[name]} == ({field} if field else set())
    assert was["x.rotation"] is not None


def test_a_rotation_that_depends_on_the_sequence_is_refused(tmp_path: Path) -> None:
    worker = Worker()
    worker.model.rotary = torch.nn.Module()
    worker.model.rotary.register_buffer("inv_freq", torch.zeros(4), persistent=False)
    worker.model.rotary.rope_type = "dynamic"
    with pytest.raises(kvstore.Unsupported, match="rope_type: 'dynamic' of Module makes other rotations"):
        said(tiny.make("llama", tmp_path), worker)


def test_weights_that_are_no_files_are_those_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written while they were loaded, or loaded by another loader than vLLM's for files."""
    model = tiny.make("llama", tmp_path)
    assert said(model, load_format="dummy")["x.weights"] == "dummy 0"
    assert said(model, load_format="sharded_state")["x.weights"] == "loaded 1x1"
    monkeypatch.setattr("kvstore.vllm.compat.load_began", lambda: 0.0)
    assert said(model)["x.weights"] == "loaded 1x1"


def test_what_kernels_hide_is_nobody_elses(tmp_path: Path) -> None:
    worker = Worker()
    loaded = Loaded(worker)
    assert loaded.digest(True) == loaded.digest(True) == Loaded(Worker()).digest(False)
    worker.model.hidden = torch.nn.Linear(4, 4)
    worker.model.hidden.weight = torch.nn.Parameter(torch.empty(0))
    worker.model.hidden.cpu_linear = SimpleNamespace()
    hidden = Loaded(worker)
    assert not hidden.is_seen
    assert hidden.digest(True) == hidden.digest(True)
    assert hidden.digest(False) != hidden.digest(False)
    worker.model.hidden.cpu_linear = SimpleNamespace()
    assert hidden.digest(True) != hidden.digest(True)
