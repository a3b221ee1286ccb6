"""Keys of prompt modules: where they lie in vLLM's pages, and how they turn, by vLLM's own operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

import scheduled
import torch
from synthetic import engine_config
from vllm.config import set_current_vllm_config

import kvstore
from kvstore.layouts import Cache, Layout, scatter
from kvstore.vllm import compat, module_pages
from kvstore.vllm.messages import Piece
from kvstore.vllm.module_pages import ModulePages
from kvstore.vllm.pages import Line
from kvstore.vllm.rotation import rotation_of

model = scheduled.model  # a fixture
pytestmark = pytest.mark.skipif(not compat.SERVES_MODULES, reason="prompt modules are served from 0.32 on")
HEADS, TOKENS, SIZE, PAGES = 2, 32, 64, 4


@pytest.fixture
def configured(model: Path) -> Iterator[Any]:
    config = engine_config(model, None)
    with set_current_vllm_config(config):
        yield config


# -- rotations

MOST = 4096
ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 10000.0},
    {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    {
        **{"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0},
        **{"high_freq_factor": 4.0, "original_max_position_embeddings": 512},
    },
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 1024},
]


def made_rope(rope: dict[str, Any], is_neox: bool = True, dtype: torch.dtype = torch.float32) -> Any:
    from vllm.model_executor.layers.rotary_embedding import get_rope

    return get_rope(SIZE, MOST, is_neox, dict(rope), dtype)


class LlamaAttention(torch.nn.Module):
    """Of a name that is served."""

    __module__ = "vllm.model_executor.models.llama"

    def __init__(self, rotary: Any, **more: Any) -> None:
        super().__init__()
        self.rotary_emb, self.attn = rotary, torch.nn.Identity()
        for name, value in ({"sliding_window": None, "kv_sharing_target_layer_name": None} | more).items():
            setattr(self.attn, name, value)


class OtherAttention(LlamaAttention):
    __module__ = "another"


def turned(*layers: Any) -> Any:
    """The rotation of a model of these layers."""
    names = [f"layers.{i}.attn" for i in range(len(layers))]
    return rotation_of(
        torch.nn.ModuleList(layers), names, {name: each.attn for name, each in zip(names, layers, strict=True)}
    )


def rows_of(keys: torch.Tensor) -> Cache:
    """[token, head, feature] as pages of one token."""
    layout = Layout.of(keys[:, None], "bthf", roles=("key",))
    return layout.bind(keys[:, None])


@pytest.mark.parametrize("is_neox", [True, False], ids=["neox", "gptj"])
@pytest.mark.parametrize("rope", ROPES, ids=lambda each: f"{each['rope_type']}{each.get('partial_rotary_factor', '')}")
def test_turned_keys_are_those_that_the_model_has_at_the_other_position(
    configured: Any, rope: dict[str, Any], is_neox: bool
) -> None:
    rotary = made_rope(rope, is_neox)
    rotation = turned(LlamaAttention(rotary))
    keys = torch.randn(8, HEADS * SIZE, generator=torch.Generator().manual_seed(1))
    for delta in (0, 1, 77, 3000):
        here, there = (
            rotary.forward_native(torch.arange(8) + at, keys.clone(), keys.clone())[1].reshape(8, HEADS, SIZE)
            for at in (0, delta)
        )
        moved = torch.zeros_like(here)
        move = replace(rotation, delta=delta)
        scatter(rows_of(moved), rows_of(here.contiguous()), slots=np.arange(8), move=move)
        # The model's own angles were rounded to a float.
        torch.testing.assert_close(moved, there, rtol=0, atol=2e-3 if delta else 0)


def test_a_table_in_the_models_number_type_is_recognised(configured: Any) -> None:
    exact, coarse = (
        turned(LlamaAttention(made_rope(ROPES[3], dtype=each))) for each in (torch.float32, torch.bfloat16)
    )
    assert exact == coarse


def unlike_its_frequencies() -> Any:
    rotary = made_rope(ROPES[0] | {"rope_theta": 20000.0})
    rotary.base = 10000.0
    return LlamaAttention(rotary)


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        (
            lambda: [OtherAttention(made_rope(ROPES[0]))],
            "layers.0.attn: another.OtherAttention is not supported, only llama.Llam",
        ),
        (lambda: [LlamaAttention(made_rope(ROPES[0]), sliding_window=64)], "layers.0.attn: a window of 64 tokens"),
        (
            lambda: [LlamaAttention(made_rope(ROPES[0]), kv_sharing_target_layer_name="layers.7.attn")],
            "layers.0.attn: it reads the keys of layers.7.attn",
        ),
        (
            lambda: [LlamaAttention(made_rope(each)) for each in (ROPES[0], ROPES[3])],
            "layers.1.attn: another rotation than layers.0.attn",
        ),
        (
            lambda: [LlamaAttention(made_rope({"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}))],
            "the rotation DynamicNTKScalingRotaryEmbedding is not supported",
        ),
        (
            lambda: [LlamaAttention(made_rope(ROPES[0] | {"mrope_section": [8, 12, 12]}))],
            "the rotation MRotaryEmbedding is not supported",
        ),
        (lambda: [unlike_its_frequencies()], "its table of cosines and sines has other angles"),
        (lambda: [LlamaAttention(None)], "the rotation NoneType is not supported"),
    ],
    ids=["attention", "window", "shared keys", "two rotations", "by length", "several positions", "table", "none"],
)
def test_a_rotation_that_is_not_known_to_be_one_is_refused_by_name(configured: Any, layers: Any, text: str) -> None:
    with pytest.raises(kvstore.errors.Unsupported, match=text):
        turned(*layers())


# -- pages


def pages_of(
    pages: list[torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    part_count: int = 1,
    rotation: Any = None,
    nbytes: int = 0,
) -> ModulePages:
    """``pages`` of each layer."""
    names = tuple(f"layers.{i}.attn" for i in range(len(pages)))
    nbytes = nbytes or pages[0][0].numel() * pages[0].element_size() * len(pages)
    group = SimpleNamespace(
        layers=names, is_state=False, window_tokens=0, part_count=part_count, block_bytes=nbytes // part_count
    )
    monkeypatch.setattr(module_pages, "rotation_of", lambda *_: rotation)
    config = SimpleNamespace(
        speculative_config=None,
        model_config=SimpleNamespace(uses_mrope=False),
        compilation_config=SimpleNamespace(static_forward_context={}),
    )
    of = SimpleNamespace(groups=(group,), is_mla=False, page_count=PAGES, block_size=TOKENS)
    worker = SimpleNamespace(get_model=lambda: None)
    return ModulePages(of, dict(zip(names, pages, strict=True)), worker, config)  # type: ignore[arg-type]


class Rows:
    """Lent memory."""

    line = Line(None)

    def __init__(self, count: int, nbytes: int) -> None:
        self.rows = np.full((count, nbytes), 0x5A, np.uint8)


def written(isa: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Pages of two layers that vLLM's operation has filled, and what it was given: [layer, keys or values, token, head, feature]."""
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends import cpu_attn

    monkeypatch.setattr(cpu_attn, "_get_attn_isa", lambda *_: isa)
    given = torch.randn(2, 2, PAGES * TOKENS, HEADS, SIZE, generator=torch.Generator().manual_seed(2)).to(dtype)
    layers = []
    for keys, values in given:
        pages = torch.zeros(PAGES, HEADS, TOKENS, 2 * SIZE, dtype=dtype)
        key_pages, value_pages = pages.view(PAGES, HEADS, TOKENS * 2, SIZE).chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(keys, values, key_pages, value_pages, torch.arange(PAGES * TOKENS), isa)
        layers.append(pages)
    return layers, given


KERNELS = pytest.mark.parametrize(
    ("isa", "dtype"),
    [
        ("vec", torch.float32),
        ("vec", torch.bfloat16),
        ("vec16", torch.float16),
        ("amx", torch.bfloat16),
    ],
    ids=str,
)


@KERNELS
def test_rows_have_the_tokens_in_order_however_kernels_pack_them(
    isa: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, given = written(isa, dtype, monkeypatch)
    pages = pages_of(layers, monkeypatch)
    rows = Rows(2, layers[0][0].numel() * layers[0].element_size() * 2)
    pages.gather(rows, [Piece(b"", 0, 0, TOKENS, 0, (2,)), Piece(b"", 1, TOKENS, 5, 0, (1,))], [[0, 1]])  # type: ignore[arg-type]
    whole, part = torch.from_numpy(rows.rows).view(dtype).view(2, 2, 2, TOKENS, HEADS, SIZE)
    assert torch.equal(whole, given[:, :, 2 * TOKENS : 3 * TOKENS])
    assert torch.equal(part[:, :, :5], given[:, :, TOKENS : TOKENS + 5])
    assert not part[:, :, 5:].any(), "what lies behind a module is not its own"


@KERNELS
@pytest.mark.parametrize("part_count", [1, 2])
def test_a_block_in_two_pages_is_as_vllm_would_have_written_it(
    isa: str, dtype: torch.dtype, part_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tokens of these pages keep their bits. A delta of 0 turns nothing, so that bits can be compared."""
    layers, _ = written(isa, dtype, monkeypatch)
    source, given = written(isa, dtype, monkeypatch)
    for each in source:
        each.copy_(each.flip(0).contiguous())
    still = kvstore.layouts.Rotation(size=SIZE)
    nbytes = layers[0][0].numel() * layers[0].element_size() * 2 // part_count
    rows = Rows(2 * part_count, nbytes)
    numbers = [[2 * part + i for i in range(2)] for part in range(part_count)]
    moved = [Piece(b"", 0, 0, TOKENS, 0, (0,)), Piece(b"", 1, TOKENS, 7, 0, (1,))]
    pages_of(source, monkeypatch, part_count).gather(rows, moved, numbers)  # type: ignore[arg-type]
    to = [Piece(b"", 0, 11, TOKENS, 0, (3, 1)), Piece(b"", 1, 11 + TOKENS, 7, 0, (1,))]
    pages_of(layers, monkeypatch, part_count, still).scatter(rows, to, numbers)  # type: ignore[arg-type]
    # In the order in which vLLM would have written: pages 3 and 1, from the eleventh token on.
    from vllm import _custom_ops as ops

    slots = [3 * TOKENS + i for i in range(11, TOKENS)] + [TOKENS + i for i in range(11 + 7)]
    expected, old = written(isa, dtype, monkeypatch)
    first = (PAGES - 1) * TOKENS
    for pages, (keys, values), got in zip(expected, given, layers, strict=True):
        key_pages, value_pages = pages.view(PAGES, HEADS, TOKENS * 2, SIZE).chunk(2, dim=2)
        tokens = [*range(first, first + TOKENS), *range(first - TOKENS, first - TOKENS + 7)]
        ops.cpu_attn_reshape_and_cache(keys[tokens], values[tokens], key_pages, value_pages, torch.tensor(slots), isa)
        assert torch.equal(got, pages)
    assert torch.equal(old, given)


def test_a_kernels_blocks_may_be_parts_of_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """In rows, as on CUDA, and with tokens before heads."""
    monkeypatch.setattr(module_pages, "_packed_orders", lambda _, pages: module_pages._rows_orders(pages))
    given = torch.randn(PAGES * TOKENS, HEADS, 2 * SIZE, generator=torch.Generator().manual_seed(4))
    blocks = given.view(2 * PAGES, TOKENS // 2, HEADS, 2 * SIZE).transpose(1, 2)
    rows = Rows(1, given[0].numel() * TOKENS * 4)
    nbytes = given[0].numel() * TOKENS * 4
    pages_of([blocks], monkeypatch, nbytes=nbytes).gather(rows, [Piece(b"", 0, 0, TOKENS, 0, (2,))], [[0]])  # type: ignore[arg-type]
    keys, values = torch.from_numpy(rows.rows).view(torch.float32).view(2, TOKENS, HEADS, SIZE)
    assert torch.equal(torch.cat([keys, values], dim=2), given[2 * TOKENS : 3 * TOKENS])


def test_pages_of_another_shape_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for shape in ((PAGES, HEADS, TOKENS, 2 * SIZE + 1), (PAGES + 1, HEADS, TOKENS, 2 * SIZE), (PAGES, TOKENS, SIZE)):
        with pytest.raises(kvstore.errors.Unsupported, match=r"layers.0.attn: pages of shape \("):
            pages_of([torch.zeros(shape)], monkeypatch)
    with pytest.raises(kvstore.errors.Unsupported, match=r"layers.0.attn: blocks of 32768 bytes, the engine says 100"):
        pages_of([torch.zeros(PAGES, HEADS, TOKENS, 2 * SIZE)], monkeypatch, nbytes=100)


def test_an_order_that_no_layout_has_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    order = torch.randperm(TOKENS * SIZE, generator=torch.Generator().manual_seed(3))

    def write(keys: torch.Tensor, values: torch.Tensor, page: torch.Tensor) -> None:
        page.view(2, -1)[0], page.view(2, -1)[1] = keys.reshape(-1)[order], values.reshape(-1)[order]

    monkeypatch.setattr(compat, "write_tokens", write)
    with pytest.raises(kvstore.errors.Unsupported, match=r"layers.0.attn: the kernels' order of a page is not known"):
        pages_of([torch.zeros(PAGES, HEADS, TOKENS, 2 * SIZE)], monkeypatch)
    with pytest.raises(kvstore.errors.Unsupported, match=r"layers.0.attn: the kernels' order of keys in a page"):
        monkeypatch.setattr(compat, "write_tokens", lambda *_: None)
        pages_of([torch.zeros(PAGES, HEADS, TOKENS, 2 * SIZE)], monkeypatch)
