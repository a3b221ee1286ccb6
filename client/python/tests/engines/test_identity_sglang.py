"""SGLang's pages are identified by the loaded content: made-up schedulers, one case per property; then real engines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sglang")

import sglang_cpu
import tiny
import torch
import transformers
from conftest import Node
from sglang_pools import Backend, backend, keys_of, mha_pool, put, salt, sglang_context  # noqa: F401
from test_sglang_engine import PAGE, Engine, prompt_of, same

import kvstore
from kvstore.errors import Mismatch, Unsupported
from kvstore.sglang import compat, identity

KEYS = keys_of(3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# -- made-up engines


class RotaryEmbedding(torch.nn.Module):
    def __init__(self, base: float) -> None:
        super().__init__()
        self.register_buffer("cos_sin_cache", (torch.arange(32.0)[:, None] / base).cos(), persistent=False)


class Phi3LongRoPEScaledRotaryEmbedding(RotaryEmbedding):
    pass


class Model(torch.nn.Module):
    def __init__(self, rotation: torch.nn.Module) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = torch.nn.Linear(16, 16)
        self.rotation = rotation


class Controller(compat.HiCacheController):  # type: ignore[misc]
    def __init__(self, make: Callable[[], Any]) -> None:
        self.storage = make()

    def reset(self) -> None:
        pass


class Scheduler:
    """Makes the backend as SGLang's scheduler does: in its ``__init__``, or later on request."""

    def __init__(self, make: Callable[[], Any], path: Path | str, is_late: bool = False, **more: Any) -> None:
        settings = {"model_type": "llama", "num_hidden_layers": 3} | more.pop("config", {})
        self.tp_worker = SimpleNamespace(
            model_runner=SimpleNamespace(
                model=Model(more.pop("rotation", RotaryEmbedding(10000.0))),
                model_config=SimpleNamespace(
                    model_path=str(path),
                    revision=more.pop("revision", None),
                    dtype=torch.bfloat16,
                    quantization=more.pop("quantization", None),
                    hf_config=transformers.LlamaConfig(**settings),
                    **more.pop("model", {}),
                ),
                lora_manager=SimpleNamespace(lora_refs=more.pop("adapters", {})),
            )
        )
        assert not more
        self.draft_worker = None
        self.attn_tp_cpu_group = None
        self._make = make
        if not is_late:
            self.attach()

    def attach(self) -> Any:
        self.controller = Controller(self._make)
        return self.controller.storage

    @property
    def model(self) -> Model:
        return self.tp_worker.model_runner.model


GIVEN: dict[str, Any] = {
    "model_path": "typed",
    "revision": None,
    "load_format": "auto",
    "random_seed": 1,
    "dtype": "auto",
    "kv_cache_dtype": "auto",
    "quantization": None,
    "quantization_param_path": None,
    "json_model_override_args": "{}",
    "speculative_algorithm": None,
    "speculative_draft_model_path": None,
    "speculative_draft_model_revision": None,
    "enable_lora": False,
    "trust_remote_code": False,
    "weight_cache_mode": "off",
}

Made = Callable[..., Any]


@pytest.fixture
def engine(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Made:  # noqa: F811
    """The scheduler of an engine that loaded ``path``, with its backend and pages."""

    def make(
        path: Path | str, *, given: dict[str, Any] | None = None, options: dict[str, Any] | None = None, **more: Any
    ) -> Any:
        arguments = SimpleNamespace(**(GIVEN | (given or {})))
        monkeypatch.setattr(compat, "get_server_args", lambda: arguments)
        pool = mha_pool("page_first_direct")
        backend_of = {name: more.pop(name) for name in ("pp_size", "pp_rank") if name in more}
        return Scheduler(lambda: backend(pool, more=options, **backend_of), path, **more)

    return make


def stored(scheduler: Any) -> None:
    put(scheduler.controller.storage, KEYS, [0, 1, 2])


def finds(scheduler: Any) -> int:
    return int(scheduler.controller.storage.batch_exists(KEYS))


def folder_of(at: Path, **files: str) -> Path:
    at.mkdir(parents=True, exist_ok=True)
    for name, content in ({"config_json": "{}", "model_safetensors": "weights"} | files).items():
        (at / name.replace("_", ".", 1)).write_text(content)
    return at


# -- weights


def test_weights_are_shared_by_content_wherever_they_lie(engine: Made, tmp_path: Path) -> None:
    here, there = folder_of(tmp_path / "a" / "m"), folder_of(tmp_path / "b" / "m")
    stored(engine(here))
    assert finds(engine(there, given={"revision": "main"}, revision="main")) == 3
    folder_of(there, model_safetensors="trained further")
    assert finds(engine(there)) == 0
    folder_of(there)
    assert finds(engine(there)) == 3
    folder_of(there, pytorch_pth="more")
    assert finds(engine(there)) == 0


def test_a_model_of_the_hub_is_what_its_snapshot_holds(
    engine: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a revision: the repository moves on. The path of a snapshot, which offline engines are given, names the same model. A snapshot
    lacks the files that no engine fetches.
    """
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--name"
    old, new = (folder_of(repository / "snapshots" / (digit * 40), model_safetensors=digit) for digit in "ab")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(old.name)
    (repository / "trees").mkdir()
    listed = {name: {"size": 1, "blob_id": "0" * 40} for name in ("model.safetensors", "original/consolidated.00.pth")}
    for each in (old, new):
        (repository / "trees" / f"{each.name}.json").write_text(json.dumps({"format_version": 1, "files": listed}))
    stored(engine("org/name"))
    assert finds(engine("org/name", given={"revision": old.name}, revision=old.name)) == 3
    assert finds(engine(old)) == 3
    (repository / "refs" / "main").write_text(new.name)
    assert finds(engine("org/name")) == 0
    assert finds(engine(new)) == 0


@pytest.mark.parametrize(
    ("path", "more", "why"),
    [
        ("org/none", {}, "weights: org/none is not on this machine"),
        ("", {"model": {"model_weights": "s3://bucket/model"}}, "weights: they are loaded from s3://bucket/model"),
        ("", {"given": {"weight_cache_mode": "client"}}, "weights: they are another process's"),
    ],
)
def test_weights_that_are_not_known_are_refused_by_name(
    engine: Made, tmp_path: Path, path: str, more: Any, why: str
) -> None:
    """Or a given weights_epoch."""
    place = path or folder_of(tmp_path / "m")
    with pytest.raises(Unsupported, match=rf"{why}.*Set weights_epoch"):
        engine(place, **more)
    stored(engine(place, options={"weights_epoch": 1}, **more))
    assert finds(engine(place, options={"weights_epoch": 1}, **more)) == 3
    assert finds(engine(place, options={"weights_epoch": 2}, **more)) == 0


def test_a_store_that_is_attached_to_a_serving_engine_is_refused_by_name(engine: Made, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m")
    with pytest.raises(Unsupported, match="attached while the engine serves"):
        engine(folder, is_late=True).attach()
    engine(folder, is_late=True, options={"weights_epoch": 1}).attach()


def test_an_engine_whose_scheduler_is_not_found_is_refused_by_name(
    backend: Backend,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compat, "get_server_args", lambda: SimpleNamespace(**GIVEN))
    with pytest.raises(Unsupported, match="its scheduler, which knows what is loaded, is not found"):
        backend(mha_pool("layer_first"))


# -- parts of the model


def test_configuration_quantisation_and_code_are_what_was_loaded(engine: Made, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", modeling_py="code = 1")
    stored(engine(folder))
    assert finds(engine(folder, config={"_name_or_path": "/elsewhere"})) == 3
    assert finds(engine(folder, config={"rms_norm_eps": 1e-5})) == 0  # by --json-model-override-args, for example
    assert finds(engine(folder, quantization="fp8")) == 0
    code = {"trust_remote_code": True}
    assert finds(engine(folder, given=code)) == 0
    stored(engine(folder, given=code))
    assert finds(engine(folder, given=code)) == 3
    folder_of(folder, modeling_py="code = 2")
    assert finds(engine(folder, given=code)) == 0


def test_scales_are_bound_by_what_is_in_their_file(engine: Made, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m")
    scales = [tmp_path / "a.json", tmp_path / "b.json"]
    for each in scales:
        each.write_text("{1.0}")
    given = [{"quantization_param_path": str(each)} for each in scales]
    stored(engine(folder, given=given[0]))
    assert finds(engine(folder, given=given[1])) == 3
    scales[1].write_text("{2.0}")
    assert finds(engine(folder, given=given[1])) == 0


def test_rotations_are_the_tables_that_were_built(engine: Made, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m")
    stored(engine(folder))
    assert finds(engine(folder, rotation=RotaryEmbedding(10000.0))) == 3
    assert finds(engine(folder, rotation=RotaryEmbedding(500000.0))) == 0


def test_a_rotation_by_the_length_of_what_is_computed_is_refused_by_name(engine: Made, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"rotation: Phi3LongRoPEScaledRotaryEmbedding .* longest sequence"):
        engine(folder_of(tmp_path / "m"), rotation=Phi3LongRoPEScaledRotaryEmbedding(1.0))


def test_sglangs_own_rotation_by_length_has_the_name_that_is_refused() -> None:
    from sglang.srt.layers.rotary_embedding import rope_variant

    assert all(hasattr(rope_variant, name) for name in compat.ROTATIONS_BY_LENGTH)


def test_a_draft_is_what_was_loaded(engine: Made, tmp_path: Path) -> None:
    folder, drafts = folder_of(tmp_path / "m"), [folder_of(tmp_path / name / "d") for name in "ab"]
    given = [{"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": str(each)} for each in drafts]
    stored(engine(folder, given=given[0]))
    assert finds(engine(folder, given=given[1])) == 3
    folder_of(drafts[1], model_safetensors="trained further")
    assert finds(engine(folder, given=given[1])) == 0
    with pytest.raises(Unsupported, match="speculative_draft_model_path: org/draft is not on this machine"):
        engine(folder, given=given[0] | {"speculative_draft_model_path": "org/draft"})


def adapters_of(**folders: Path) -> dict[str, Any]:
    """By the ids that SGLang makes of names and paths."""
    return {name: SimpleNamespace(lora_name=name, lora_path=str(path)) for name, path in folders.items()}


def test_an_adapter_trained_further_into_the_same_folder_is_another(engine: Made, tmp_path: Path) -> None:
    """SGLang's own name for it is made of its name and path."""
    folder, style = folder_of(tmp_path / "m"), folder_of(tmp_path / "style", adapter_config_json='{"r": 8}')
    (style / "adapter_config.json").write_text('{"r": 8}')
    lora = {"enable_lora": True}
    stored(engine(folder, given=lora, adapters=adapters_of(style=style)))
    assert finds(engine(folder, given=lora, adapters=adapters_of(style=style))) == 3
    folder_of(style, model_safetensors="trained further")
    assert finds(engine(folder, given=lora, adapters=adapters_of(style=style))) == 0
    with pytest.raises(Unsupported, match="enable_lora: the adapter style is not on this machine: /nowhere"):
        engine(folder, given=lora, adapters=adapters_of(style=Path("/nowhere")))


def test_ranks_that_loaded_different_things_are_an_error_with_the_field(
    engine: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = folder_of(tmp_path / "m"), folder_of(tmp_path / "other" / "m", model_safetensors="other")
    seen = engine(other).controller.storage._facts
    monkeypatch.setattr(identity, "_of_all_ranks", lambda value, group: [value, seen])
    with pytest.raises(
        Mismatch, match=r"weights: rank 0 has '[0-9a-f]{64}', rank 1 '[0-9a-f]{64}': all must load the same"
    ):
        engine(folder)
    monkeypatch.setattr(identity, "_of_all_ranks", lambda value, group: [value, "weights: of rank 1 cannot be read"])
    with pytest.raises(Unsupported, match="of rank 1 cannot be read"):
        engine(folder)


# -- changes of weights


def change_weights(scheduler: Any, by: float) -> None:
    """As SGLang does it: the watches are notified first."""
    for each in list(identity._watches):
        each.changing()
    with torch.no_grad():
        scheduler.model.linear.weight[3, 3] *= by


def test_changed_weights_find_nothing_old_and_unchanged_ones_all(engine: Made, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m")
    one, other = engine(folder), engine(folder)
    stored(one)
    one.controller.reset()  # a flush alone changes nothing
    assert finds(one) == 3
    change_weights(one, 2.0)
    storage = one.controller.storage
    assert finds(one) == 0  # unknown until the flush
    assert storage.batch_set_v1(KEYS, torch.arange(3 * 16)) == [False] * 3
    one.controller.reset()
    assert finds(one) == 0 and finds(other) == 0  # one process: all watches were notified
    other.controller.reset()
    assert finds(other) == 3
    stored(one)
    assert finds(one) == 3
    change_weights(other, 2.0)
    other.controller.reset()
    assert finds(other) == 3  # the same weights again, in another engine
    change_weights(one, 0.5)
    one.controller.reset()
    assert finds(one) == 3
    storage.clear()
    assert finds(one) == 0


def test_a_stage_does_not_know_the_others_weights(engine: Made, tmp_path: Path) -> None:
    one = engine(folder_of(tmp_path / "m"), pp_rank=0, pp_size=2)
    stored(one)
    change_weights(one, 1.0)
    one.controller.reset()
    assert finds(one) == 0


def test_weights_that_cannot_be_read_are_not_known_and_stop_nothing(engine: Made, tmp_path: Path) -> None:
    one = engine(folder_of(tmp_path / "m"))
    stored(one)
    one.model.register_buffer("given_up", torch.zeros(3, device="meta"))
    change_weights(one, 1.0)
    one.controller.reset()
    assert finds(one) == 0


def test_all_that_changes_weights_in_sglang_is_watched(engine: Made, tmp_path: Path) -> None:
    engine(folder_of(tmp_path / "m"))
    changes = compat.changes_of_weights()
    assert {name for _, name in changes} >= {"update_weights_from_disk", "begin_weight_update", "pause"}
    assert all(hasattr(getattr(kind, name), "__wrapped__") for kind, name in changes)
    assert compat.changes("pause", ("weights",), {}) and not compat.changes("pause", ("kv_cache",), {})


# -- real engines


class House:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = Node()
        self.environment = sglang_cpu.environment(folder / "plugin")
        self.engines: list[Engine] = []

    def engine(self, name: str, model: Path, **more: Any) -> Engine:
        self.engines.append(Engine(model, self.node.endpoint, self.folder / f"{name}.log", self.environment, **more))
        return self.engines[-1]

    def stored_blocks(self) -> int:
        with kvstore.Client(self.node.endpoint, deadline=30) as client:
            (node,) = client.stats()
        return int(node["values"]["stored_blocks"])

    def close(self) -> None:
        for each in self.engines:
            each.begin_close()
        for each in self.engines:
            each.close()
        self.node.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.close()


def asked(engine: Engine, prompt: list[int]) -> Any:
    engine.flush()
    return engine.generate(prompt)


def until_stored(house: House, engine: Engine, prompt: list[int]) -> Any:
    """An answer without cached tokens, with its pages in the store: each missing page becomes a block."""
    wanted = house.stored_blocks() + len(prompt) // PAGE
    answer = asked(engine, prompt)
    until = time.monotonic() + 120
    while house.stored_blocks() < wanted:
        assert time.monotonic() < until
        time.sleep(0.02)
    return answer


def test_real_engines_share_by_what_they_loaded(house: House) -> None:
    """One engine stores. Another loads the same model elsewhere; its weights change in place, and back. A third has the changed folder."""
    prompt, length = prompt_of(600, 1), 600 // PAGE * PAGE
    model = tiny.make("llama", house.folder / "a")
    copy = house.folder / "b" / model.name
    copy.parent.mkdir()
    copy.mkdir()
    for each in model.iterdir():
        (copy / each.name).write_bytes(each.read_bytes())
    one, other = house.engine("one", model), house.engine("other", copy)
    cold = until_stored(house, one, prompt)
    warm = asked(other, prompt)
    assert warm["stored"] == [length] and warm["tokens"] == cold["tokens"]
    changed = tiny.make("llama", house.folder / "c", seed=2)
    other.tell({"update": str(changed)})
    answer = asked(other, prompt)
    assert answer["stored"] == [0] and answer["tokens"] != cold["tokens"]
    other.tell({"update": str(model)})
    assert asked(other, prompt)["stored"] == [length]
    for each in changed.iterdir():
        (copy / each.name).write_bytes(each.read_bytes())
    third = asked(house.engine("third", copy), prompt)
    assert third["stored"] == [0]
    assert same(third, answer)


def test_a_real_engine_with_long_rope_is_refused_by_name(house: House) -> None:
    model = tiny.make("llama", house.folder)
    config = json.loads((model / "config.json").read_text())
    config |= {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3"}
    config["rope_parameters"] = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 16,
        "long_factor": [4.0] * 16,
        "original_max_position_embeddings": 1024,
    }
    config |= {"original_max_position_embeddings": 1024, "rope_scaling": config["rope_parameters"]}
    (model / "config.json").write_text(json.dumps(config))
    engine = house.engine("long", model, load_format="dummy")
    with pytest.raises(AssertionError, match="rotates all tokens of a batch by the length of its longest sequence"):
        engine.wait_ready()
