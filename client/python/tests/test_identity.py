"""Model identity: one changed number anywhere changes a digest, irrelevant changes do not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kvstore import Unsupported
from kvstore.doors import identity as _identity
from kvstore.doors.identity import adapter_digest, computed, model_name, remote_code_digest, short, weights_digest

#: More than two parts of a file, without round numbers.
LARGE = 2 * _identity._PART_BYTES + 4099


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keeps tests from seeing each other's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kvstore" / "files.json"


def change(path: Path, at: int = -1, by: int = 1) -> None:
    """Changes one byte of a file, and keeps its times."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ by]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def model(folder: Path, *more: str) -> Path:
    for name in ("config.json", "model.safetensors", *more):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode() * 1000)
    (folder / "config.json").write_text("{}")
    return folder


# -- files


@pytest.mark.parametrize("at", [0, 12345, _identity._PART_BYTES - 1, _identity._PART_BYTES, LARGE // 2 + 77, -1])
def test_one_byte_anywhere_in_a_file_of_weights_counts(tmp_path: Path, at: int) -> None:
    """Of 32 MiB: samples would nearly always miss it."""
    folder = model(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(bytes(LARGE))
    before = weights_digest(folder)
    assert weights_digest(folder) == before
    change(folder / "model.safetensors", at)
    assert weights_digest(folder) != before


@pytest.mark.parametrize(
    "name",
    [
        *("pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.gguf", "model.SAFETENSORS", "weights.tensors"),
        *(
            "model.ckpt",
            "a.npz",
            "kind.nobody-knows",
            "no_suffix",
            "vision/tower/model.bin",
            "original/consolidated.00.pth",
        ),
        *(
            "model.safetensors.index.json",
            "kv_cache_scales.json",
            "preprocessor_config.json",
            "tokenizer_embedding.bin",
        ),
    ],
)
def test_every_kind_of_file_that_may_be_loaded_counts(tmp_path: Path, name: str) -> None:
    folder = model(tmp_path / "m")
    without = weights_digest(folder)
    model(folder, name)
    before = weights_digest(folder)
    assert before != without
    change(folder / name)
    assert weights_digest(folder) != before


@pytest.mark.parametrize(
    "name",
    [
        *(
            "README.md",
            "LICENSE",
            "tokenizer.json",
            "tokenizer.model",
            "vocab.json",
            "merges.txt",
            "chat_template.jinja",
        ),
        *("generation_config.json", ".cache/huggingface/download/x.bin", ".gitattributes", "training_args.bin"),
        *("optimizer.pt", "rng_state_0.pth", "trainer_state.json", "events.out.tfevents.1", "__pycache__/a.pyc"),
    ],
)
def test_what_shapes_nothing_does_not_count(tmp_path: Path, name: str) -> None:
    folder = model(tmp_path / "m")
    without = weights_digest(folder)
    assert weights_digest(model(folder, name)) == without


def test_names_below_the_folder_count_and_its_path_does_not(tmp_path: Path) -> None:
    one = weights_digest(model(tmp_path / "m"))
    assert weights_digest(model(tmp_path / "elsewhere" / "n")) == one
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / "other.safetensors")
    assert weights_digest(tmp_path / "m") != one


def test_two_files_that_change_places_count(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", "a.bin", "b.bin")
    one = weights_digest(folder)
    (folder / "a.bin").rename(folder / "c")
    (folder / "b.bin").rename(folder / "a.bin")
    (folder / "c").rename(folder / "b.bin")
    assert weights_digest(folder) != one


def test_a_snapshot_of_the_hub_is_as_a_folder_and_a_moved_link_counts(tmp_path: Path) -> None:
    plain = model(tmp_path / "plain")
    blobs, snapshot = tmp_path / "models--org--name" / "blobs", tmp_path / "models--org--name" / "snapshots" / "0e9e39f"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for i, file in enumerate(sorted(plain.iterdir())):
        (blobs / str(i)).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/{i}")
    one = weights_digest(plain)
    assert weights_digest(snapshot) == one
    assert model_name(str(snapshot)) == "org/name"
    (blobs / "new").write_bytes(b"trained further")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../blobs/new")
    assert weights_digest(snapshot) != one


def test_a_folder_reached_by_a_link_counts_and_a_circle_ends(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    elsewhere = model(tmp_path / "tower")
    (folder / "vision").symlink_to(elsewhere)
    (folder / "circle").symlink_to(folder)
    one = weights_digest(folder)
    change(elsewhere / "model.safetensors")
    assert weights_digest(folder) != one


def test_single_files_are_what_was_given_whatever_they_are_called(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b.gguf")
    (tmp_path / "c.gguf").write_bytes((folder / "b.gguf").read_bytes())
    assert weights_digest(folder / "b.gguf") == weights_digest([tmp_path / "c.gguf"])
    both = [folder / "a-00001-of-00002.gguf", folder / "a-00002-of-00002.gguf"]
    one = weights_digest(both)
    assert weights_digest(both[::-1]) == one
    change(both[1])
    assert weights_digest(both) != one


def test_no_weights_and_unreadable_ones_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(Unsupported, match=r"weights: there are none in .*empty"):
        weights_digest(tmp_path / "empty")
    with pytest.raises(Unsupported, match=r"weights: .*nowhere cannot be read: No such file"):
        weights_digest(tmp_path / "nowhere")
    folder = model(tmp_path / "m")
    (folder / "more.bin").symlink_to(tmp_path / "gone")
    with pytest.raises(Unsupported, match=r"weights: .*more.bin cannot be read: No such file"):
        weights_digest(folder)


# -- the cache of digests


def old(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the folder's files had been written long ago."""
    monkeypatch.setattr(_identity, "_YOUNG_NS", -(10**18))


def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made: list[int] = []
    real = _identity._digest_of_part

    def counted(descriptor: int, start: int) -> bytes:
        made.append(start)
        return real(descriptor, start)

    monkeypatch.setattr(_identity, "_digest_of_part", counted)
    return made


def test_a_file_that_was_read_is_read_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model(tmp_path / "m")
    old(folder, monkeypatch)
    seen = reads(monkeypatch)
    one = weights_digest(folder)
    assert len(seen) == 1
    assert weights_digest(folder) == one
    assert len(seen) == 1
    change(folder / "model.safetensors")  # with its old modification time: the change time shows it
    assert weights_digest(folder) != one
    assert len(seen) == 2
    assert len(json.loads(cache.read_text())) == 2


def test_a_file_that_was_just_written_is_not_kept(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model(tmp_path / "m")
    now = (folder / "model.safetensors").stat().st_ctime_ns
    monkeypatch.setattr(_identity.time, "time_ns", lambda: now + _identity._YOUNG_NS)
    weights_digest(folder)
    assert not cache.exists()
    monkeypatch.setattr(_identity.time, "time_ns", lambda: now + _identity._YOUNG_NS + 1)
    weights_digest(folder)
    assert cache.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"x": 1}', b"\xff\xfe", None])
def test_what_is_known_may_be_lost_or_damaged(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    folder = model(tmp_path / "m")
    old(folder, monkeypatch)
    one = weights_digest(folder)
    if content is None:
        cache.unlink()
        cache.mkdir()
    else:
        cache.write_bytes(content)
    assert weights_digest(folder) == one
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    assert weights_digest(folder) == one


def test_a_file_that_is_written_while_it_is_read_is_read_again_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model(tmp_path / "m")
    real = _identity._digest_of_part
    writes = iter(range(10))
    last = 1

    def written(descriptor: int, start: int) -> bytes:
        made = real(descriptor, start)
        if next(writes) < last:
            with open(folder / "model.safetensors", "ab") as file:
                file.write(b"more")
        return made

    monkeypatch.setattr(_identity, "_digest_of_part", written)
    found = weights_digest(folder)
    monkeypatch.setattr(_identity, "_digest_of_part", real)
    assert found == weights_digest(folder)
    last, writes = 10, iter(range(10))
    monkeypatch.setattr(_identity, "_digest_of_part", written)
    with pytest.raises(Unsupported, match="is being written to"):
        weights_digest(folder)


# -- adapters, remote code


def adapter(folder: Path, **more: object) -> Path:
    folder.mkdir(parents=True)
    config = {
        "r": 8,
        "lora_alpha": 16,
        "target_modules": ["q_proj", "v_proj"],
        "base_model_name_or_path": "/a",
        "revision": None,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config | more))
    (folder / "adapter_model.safetensors").write_bytes(bytes(5000))
    return folder


def test_an_adapter_is_its_weights_and_settings_wherever_it_lies(tmp_path: Path) -> None:
    one = adapter_digest(adapter(tmp_path / "one"))
    other = adapter(
        tmp_path / "other", base_model_name_or_path="/b", target_modules=["v_proj", "q_proj"], new_field=None
    )
    assert adapter_digest(other) == one
    change(other / "adapter_model.safetensors", 2500)  # trained further into the same folder
    assert adapter_digest(other) != one
    assert adapter_digest(adapter(tmp_path / "louder", lora_alpha=32)) != one
    assert adapter_digest(adapter(tmp_path / "more", use_rslora=True)) != one
    with pytest.raises(Unsupported, match=r"adapter_config\.json"):
        adapter_digest(model(tmp_path / "none"))


def test_code_that_comes_with_a_model_counts_and_must_be_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model(tmp_path / "m", "modeling_x.py", "ops/kernel.py")
    one = remote_code_digest(folder)
    change(folder / "ops" / "kernel.py")
    assert remote_code_digest(folder) != one
    (folder / "config.json").write_text('{"auto_map": {"AutoModel": "org/code--modeling_y.Y"}}')
    monkeypatch.setattr(_identity, "model_folder", lambda name: None)
    with pytest.raises(Unsupported, match="remote code: org/code is not on this machine"):
        remote_code_digest(folder)
    other = model(tmp_path / "code", "modeling_y.py")
    monkeypatch.setattr(_identity, "model_folder", lambda name: {"org/code": str(other)}[name])
    one = remote_code_digest(folder)
    change(other / "modeling_y.py")
    assert remote_code_digest(folder) != one


# -- configurations and names


class Config:
    """As in transformers."""

    model_type = "some"

    def __init__(self, **given: object) -> None:
        self.hidden_size = 8
        self.rms_norm_eps = 1e-6
        self._name_or_path = ""
        self.__dict__ |= given

    def to_dict(self) -> dict[str, object]:
        made = {k: v.to_dict() if isinstance(v, Config) else v for k, v in self.__dict__.items()}
        return made | {"model_type": self.model_type, "transformers_version": "5.0"}


class Newer(Config):
    """Of a release with more fields."""

    def __init__(self, **given: object) -> None:
        super().__init__(**({"output_router_logits": False, "new_bias": 0} | given))


def test_a_release_that_knows_more_of_a_configuration_says_the_same() -> None:
    inner = Config(sliding_window=9)
    assert computed(Newer(_name_or_path="/a", text=Newer(sliding_window=9))) == computed(Config(text=inner))
    assert computed(Newer(new_bias=1)) != computed(Config())
    assert computed(Config(text=Config(sliding_window=8))) != computed(Config(text=inner))
    assert computed(Config(hidden_size=9)) != computed(Config())
    assert computed(Config())["rms_norm_eps"] == 1e-6  # another release may change the default
    assert computed({"dtype": "x", "a": {"_name_or_path": "/b", "b": 1}}) == {"a": {"b": 1}}


def test_names_are_printable_and_no_paths(tmp_path: Path) -> None:
    (tmp_path / "modèle").mkdir()
    assert model_name(f"{tmp_path}/modèle/") == "modèle"
    assert short("modèle 100%") == "mod%C3%A8le 100%25"
    assert short("org/Name-8B v1") == "org/Name-8B v1"
    assert short("x" * 2000).startswith("sha256 ")
    assert model_name("org/name") == "org/name"
    assert model_name("/gone/model") == "model"


# -- tensors


@pytest.fixture
def torch() -> object:
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def tensors(torch):
    from kvstore.doors import tensors

    return tensors


def test_any_element_of_what_was_loaded_counts(torch, tensors) -> None:
    torch.manual_seed(1)
    loaded_digest = tensors.loaded_digest
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool):
        size = tensors._CHUNK_BYTES // torch.empty((), dtype=dtype).element_size() + 1003
        data = (torch.rand(size) * 2).to(dtype)
        before = loaded_digest({"a": data})
        assert loaded_digest({"a": data.clone()}) == before
        last = data.view(torch.uint8)
        for at in (0, 7, tensors._HOST_BYTES, tensors._CHUNK_BYTES - 1, tensors._CHUNK_BYTES, last.numel() - 1):
            last[at] ^= 128
            assert loaded_digest({"a": data}) != before, (dtype, at)
            last[at] ^= 128
        assert loaded_digest({"a": data}) == before


def test_changes_that_cancel_out_in_a_sum_count(torch, tensors) -> None:
    data = torch.arange(4096, dtype=torch.int64)
    seen = {tensors.loaded_digest({"a": data})}
    for first, second in ((0, 9), (5, 4095), (7, 80)):
        swapped = data.clone()
        swapped[[first, second]] = data[[second, first]]
        signs = data.clone()
        signs[[first, second]] ^= -(2**63)
        moved = data.clone()
        moved[first] += 1
        moved[second] -= 1
        for each in (swapped, signs, moved):
            seen.add(tensors.loaded_digest({"a": each}))
    assert len(seen) == 10


def test_names_shapes_and_types_of_tensors_count_and_their_order_does_not(torch, tensors) -> None:
    loaded_digest = tensors.loaded_digest
    a, b = torch.arange(64.0).reshape(8, 8), torch.zeros(0, 3)
    one = loaded_digest({"a": a, "b": b})
    assert loaded_digest([("b", b), ("a", torch.nn.Parameter(a))]) == one
    others = (
        {"a": a, "c": b},
        {"a": a.reshape(4, 16), "b": b},
        {"a": a.view(torch.int32), "b": b},
        {"a": a},
        {"a": a.T, "b": b},
    )
    assert len({one, *(loaded_digest(each) for each in others)}) == 6
    padded = torch.zeros(8, 9)
    padded[:, :8] = a
    gaps = loaded_digest({"a": padded[:, :8]})
    padded[3, 3] += 1
    assert loaded_digest({"a": padded[:, :8]}) != gaps
    with pytest.raises(Unsupported, match="weights: a has no bytes here"):
        loaded_digest({"a": torch.zeros(3, device="meta")})


def test_a_tensor_made_of_others_is_looked_into(torch, tensors) -> None:
    inner = torch.arange(4.0)

    class Frame:
        def __tensor_flatten__(self):
            return ["data", "scale"], "fp8"

    def frame() -> object:
        made = Frame()
        made.data, made.scale = inner, torch.ones(1)
        return made

    one = tensors.loaded_digest({"a": frame()})
    assert tensors.loaded_digest({"a": frame()}) == one
    inner[2] += 1
    assert tensors.loaded_digest({"a": frame()}) != one


def test_rotations_are_told_apart_by_their_values(torch, tensors) -> None:
    short_, long_ = torch.rand(1024, 64), torch.rand(4096, 64)
    tables = [
        tensors.rotation_digest(each) for each in ([short_], [long_], [short_, long_], [long_, short_], {"x": short_})
    ]
    assert len(set(tables)) == 5
    assert tensors.rotation_digest([short_.clone()]) == tables[0]
