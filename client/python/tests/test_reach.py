"""FlashInfer's page tables and masks, and the order of a batch, against NumPy written from their papers' definitions. Random cases print
their seed.
"""

from __future__ import annotations

import numpy as np
import pytest
from codes import ELEMENTS, random_codes
from hypothesis import given, settings
from hypothesis import strategies as st

import kvstore
from kvstore import (
    BadRequest,
    Layout,
    PagedCache,
    PagePool,
    Part,
    append_positions,
    gather,
    pack_masks,
    plan_shared_prefixes,
    scatter,
    slots_of_csr,
)

# -- FlashInfer's page tables


class Batch:
    """Requests with pages in compressed rows, and tokens to append."""

    def __init__(self, rng, page_tokens):
        self.page_tokens = page_tokens
        self.lens = rng.integers(0, 20, int(rng.integers(1, 5)))
        self.appended = np.array([rng.integers(0, n + 1) for n in self.lens])
        pages = -(-self.lens // page_tokens) + rng.integers(0, 2, len(self.lens))
        self.page_count = int(pages.sum()) + 3
        self.indptr = np.concatenate([[0], np.cumsum(pages)]).astype(np.int32)
        self.indices = rng.permutation(self.page_count)[: self.indptr[-1]].astype(np.int32)
        self.append_indptr = np.concatenate([[0], np.cumsum(self.appended)]).astype(np.int32)

    def places(self):
        """(request, position, page, entry) of each appended token: the last is its request's last."""
        for b, (length, count) in enumerate(zip(self.lens.tolist(), self.appended.tolist(), strict=True)):
            for position in range(length - count, length):
                page = int(self.indices[self.indptr[b] + position // self.page_tokens])
                yield b, position, page, position % self.page_tokens


@given(seed=st.integers(0, 2**32 - 1), spare=st.integers(0, 3))
@settings(deadline=None, max_examples=80)
def test_slots_are_those_of_flashinfers_append(seed, spare):
    rng = np.random.default_rng(seed)
    batch = Batch(rng, int(rng.choice([1, 4, 16])))
    places = list(batch.places())
    requests, positions = append_positions(batch.append_indptr, batch.lens, len(places) + spare)
    assert requests.dtype == positions.dtype == np.int32
    assert requests.tolist() == [b for b, _, _, _ in places] + [-1] * spare
    assert positions.tolist() == [position for _, position, _, _ in places] + [0] * spare
    slots = slots_of_csr(batch.indptr, batch.indices, batch.page_tokens, requests, positions)
    assert slots.dtype == np.int64
    assert slots.tolist() == [page * batch.page_tokens + entry for _, _, page, entry in places] + [-1] * spare
    assert len(append_positions(batch.append_indptr, batch.lens)[0]) == len(places)


def append_paged_kv_cache(new, cache, batch, spare):
    """FlashInfer's function, by its own arguments."""
    requests, positions = append_positions(batch.append_indptr, batch.lens, int(batch.append_indptr[-1]) + spare)
    slots = slots_of_csr(batch.indptr, batch.indices, batch.page_tokens, requests, positions)
    scatter(cache, new, slots=slots)
    return slots


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("axes", ["bcthf", "bchtf", "cbthf"])
def test_an_append_writes_what_flashinfers_does_and_a_gather_makes_it_ragged(axes, element):
    code = {} if element in ("fp32", "int8") else {"element": element}
    for seed in range(6):
        print(f"seed {seed}")
        rng = np.random.default_rng(seed)
        batch = Batch(rng, int(rng.choice([1, 4, 16])))
        heads, size = int(rng.integers(1, 4)), int(rng.choice([8, 20]))
        sizes = {"b": batch.page_count, "c": 2, "t": batch.page_tokens, "h": heads, "f": size}
        pages = random_codes(rng, [sizes[axis] for axis in axes], element, any_bits=True)
        count, spare = int(batch.append_indptr[-1]), int(rng.integers(0, 3))
        new = [random_codes(rng, (max(count + spare, 1), heads, size), element, any_bits=True) for _ in range(2)]
        expected = pages.copy()
        view = expected.transpose([axes.index(axis) for axis in "cbthf"])
        for row, (_, _, page, entry) in enumerate(batch.places()):
            for component in range(2):
                view[component, page, entry] = new[component][row]
        ragged = Layout.of_parts(
            [Part(t, "thf", (role,), **code) for t, role in zip(new, ("key", "value"), strict=True)]
        )
        layout = Layout.of(pages, axes, **code)
        slots = append_paged_kv_cache(ragged.bind(new), layout.bind(pages), batch, spare)
        assert pages.tobytes() == expected.tobytes(), f"seed {seed}"
        back = [np.zeros_like(t) for t in new]
        gather(ragged.bind(back), layout.bind(pages), slots=slots)
        for one, other in zip(back, new, strict=True):
            assert one[:count].tobytes() == other[:count].tobytes()
            assert not one[count:].any()


def test_the_worked_examples_of_flashinfers_append():
    requests, positions = append_positions([0, 1, 3, 6, 10], [5, 5, 5, 5])
    assert requests.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    assert positions.tolist() == [4, 3, 4, 2, 3, 4, 1, 2, 3, 4]
    requests, positions = append_positions([0, 2, 3], [5, 3])
    assert slots_of_csr([0, 2, 3], [7, 2, 5], 4, requests, positions).tolist() == [31, 8, 22]
    assert slots_of_csr([0, 1], [-1], 4, [0], [2])[0] < 0
    assert slots_of_csr([0], [], 4, [], []).tolist() == []
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor(each, dtype=torch.int32) for each in ([0, 2, 3], [7, 2, 5])]
    asked = append_positions(torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([5, 3]))
    assert slots_of_csr(*tensors, 4, *asked).tolist() == [31, 8, 22]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: append_positions([0, 2], [5, 3]), "append_indptr: 2 entries, 3 are needed for 2 seq_lens"),
        (lambda: append_positions([0, 3, 2], [5, 3]), r"append_indptr\[2\]: 2 is below the entry before, 3"),
        (lambda: append_positions([-1, 2, 3], [5, 3]), r"append_indptr\[0\]: -1 is below 0"),
        (lambda: append_positions([0, 6, 7], [5, 3]), r"seq_lens\[0\]: 5 is less than the 6 tokens"),
        (lambda: append_positions([0, 1], [-1]), r"seq_lens\[0\]: -1 is less than the 1 tokens"),
        (lambda: append_positions([0, 2, 3], [5, 3], 2), r"row_count: 2 is not in \[3, 2\^31 - 1\]"),
        (lambda: append_positions([0, 2, 3], [5, 3], 2**31), r"row_count: 2147483648 is not in \[3"),
        (lambda: append_positions([[0]], []), "append_indptr: has 2 axes, not 1"),
        (lambda: slots_of_csr([], [], 4, [], []), "indptr: 0 entries"),
        (lambda: slots_of_csr([0, 2, 1], [1, 2], 4, [], []), r"indptr\[2\]: 1 is below the entry before, 2"),
        (lambda: slots_of_csr([0, 2, 3], [1, 2], 4, [], []), "indices: 2, and indptr ends at 3"),
        (lambda: slots_of_csr([0, 2], [1, 2], 0, [], []), r"page_tokens: 0 is not in \[1, 2\^31\]"),
        (lambda: slots_of_csr([0, 2], [1, 2], 4, [0], []), "positions: 0 for 1 batch_indices"),
        (lambda: slots_of_csr([0, 2], [1, 2], 4, [0, 1], [0, 0]), r"batch_indices\[1\]: 1 is not below 1"),
        (
            lambda: slots_of_csr([0, 2], [1, 2], 4, [0], [8]),
            r"positions\[0\]: 8 is not in \[0, 8\), the tokens of request 0",
        ),
        (lambda: slots_of_csr([0, 2], [1, 2], 4, [-1, 0], [0, -2]), r"positions\[1\]: -2 is not in"),
        (lambda: slots_of_csr([0, 1, 2], [1, 2], 4, [0], [4]), r"positions\[0\]: 4 is not in \[0, 4\)"),
    ],
)
def test_wrong_page_tables_are_refused_by_name(call, text):
    with pytest.raises(BadRequest, match=text):
        call()


# -- masks


@given(seed=st.integers(0, 2**32 - 1), is_causal=st.booleans())
@settings(deadline=None, max_examples=80)
def test_masks_are_numpys_packed_bits(seed, is_causal):
    rng = np.random.default_rng(seed)
    batch = int(rng.integers(0, 5))
    queries, keys = rng.integers(0, 9, batch), rng.integers(0, 20, batch)
    if is_causal:  # query q of n stands at position keys - n + q and reads what is not after it
        masks = [np.arange(k) <= np.arange(k - q, k)[:, None] for q, k in zip(queries, keys, strict=True)]
    else:
        masks = [rng.random((q, k)) < 0.5 for q, k in zip(queries, keys, strict=True)]
    flat = np.concatenate([np.zeros(0, bool), *(each.reshape(-1) for each in masks)])
    made = pack_masks(queries, keys, None if is_causal else flat)
    packed = [np.packbits(each.reshape(-1), bitorder="little") for each in masks]
    assert made.packed.dtype == np.uint8 and made.bit_indptr.dtype == made.byte_indptr.dtype == np.int32
    assert made.packed.tolist() == np.concatenate([np.zeros(0, np.uint8), *packed]).tolist()
    assert made.bit_indptr.tolist() == [0, *np.cumsum(queries * keys)]
    assert made.byte_indptr.tolist() == [0, *np.cumsum([len(each) for each in packed], dtype=int)]
    if not is_causal:
        numbers = flat.astype(np.uint8) * 7
        assert (pack_masks(queries.tolist(), keys.tolist(), numbers).packed == made.packed).all()


def test_the_worked_example_of_a_packed_mask():
    made = pack_masks([2, 1], [3, 5])
    assert made.packed.tobytes() == bytes([0x3B, 0x1F])
    assert (made.bit_indptr.tolist(), made.byte_indptr.tolist()) == ([0, 6, 11], [0, 1, 2])
    assert pack_masks([2], [3], np.ones((2, 3), bool)).packed.tolist() == [0x3F]
    torch = pytest.importorskip("torch")
    assert pack_masks([2], [3], torch.tensor([[True, False, False], [True, True, False]])).packed.tolist() == [0b011001]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([1, 2], [3]), "kv_counts: 1 for 2 query_counts"),
        (([1, -2], [3, 4]), r"query_counts\[1\]: -2 is not 0 or more"),
        (([1], [-3]), r"kv_counts\[0\]: -3 is not 0 or more"),
        (([2**16, 1], [2**15, 2**31 - 1]), r"query_counts, kv_counts: over 2\^31 - 1 bits"),
        (([2], [3], np.ones(5, bool)), "mask: 5 elements, 6 pairs of a query and a key"),
        (([2], [3], np.ones(6, np.int32)), "mask: elements of 4 bytes, not bool or uint8"),
        (([2], [3], np.ones((6, 2), bool)[:, 0]), "mask: the array is strided"),
        (([2], [3], [True] * 6), "mask: an object of type list"),
    ],
)
def test_wrong_masks_are_refused_by_name(arguments, text):
    with pytest.raises(BadRequest, match=text):
        pack_masks(*arguments)


# -- the order of a batch

BLOCK = 4
SPACE = kvstore.Namespace(model="reach", block_size=BLOCK, block_bytes=64)


def hashes_of(tokens):
    return SPACE.hash_chain(np.asarray(tokens, np.uint32))


def random_prompts(rng, count, longest=14):
    """Token lists that share beginnings: each continues a random part of an earlier one, or begins anew."""
    prompts = []
    for _ in range(count):
        base = prompts[int(rng.integers(len(prompts)))] if prompts and rng.random() < 0.75 else []
        kept = base[: int(rng.integers(len(base) + 1))]
        prompts.append((kept + rng.integers(0, 1000, int(rng.integers(1, 25))).tolist())[: longest * BLOCK])
    return prompts


def walk(prompts, asked, chosen, depth, level, count_min, out):
    """The tree of prefixes depth first, in order of first appearance. Adds (level, sequences, blocks) of runs to out["runs"]."""

    def block(i, at):
        """The prefix up to the end of block ``at``, or None: not full, or a query's."""
        return tuple(prompts[i][: (at + 1) * BLOCK]) if (at + 1) * BLOCK <= len(prompts[i]) - asked[i] else None

    groups: dict[object, list[int]] = {}
    for i in chosen:
        prefix = block(i, depth)
        groups.setdefault(("alone", i) if prefix is None else prefix, []).append(i)
    for members in groups.values():
        if len(members) < max(2, count_min):
            for i in members:
                out["tails"].append(depth)
                out["order"].append(i)
            continue
        end = depth + 1
        while block(members[0], end) is not None and all(block(i, end) == block(members[0], end) for i in members):
            end += 1
        begin = len(out["order"])
        out["runs"].append((level, begin, begin + len(members), depth, end))
        walk(prompts, asked, members, end, level + 1, count_min, out)


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 12), count_min=st.integers(0, 3))
@settings(deadline=None, max_examples=150)
def test_the_plan_is_a_walk_of_the_tree_of_prefixes(seed, count, count_min):
    rng = np.random.default_rng(seed)
    prompts = random_prompts(rng, count)
    asked = [int(rng.integers(1, min(6, len(each)) + 1)) for each in prompts]
    wanted: dict[str, list] = {"order": [], "runs": [], "tails": []}
    walk(prompts, asked, list(range(count)), 0, 0, count_min, wanted)
    plan = plan_shared_prefixes(
        [hashes_of(each) for each in prompts],
        block_size=BLOCK,
        token_counts=[len(each) for each in prompts],
        query_counts=asked,
        sequence_count_min=count_min,
    )
    assert plan.order.tolist() == wanted["order"]
    assert list(zip(*plan.runs, strict=True)) == wanted["runs"]
    assert plan.tail_begins.tolist() == wanted["tails"]


def test_hashes_alone_are_enough_for_an_order():
    prompts = [[1] * 8, [2] * 8, [1] * 4 + [3] * 4, [2] * 8]
    plan = plan_shared_prefixes([hashes_of(each) for each in prompts], block_size=BLOCK)
    assert plan.order.tolist() == [0, 2, 1, 3]
    assert list(zip(*plan.runs, strict=True)) == [(0, 0, 2, 0, 1), (0, 2, 4, 0, 2)]
    assert plan.tail_begins.tolist() == [1, 1, 2, 2]
    listed = [[row.tobytes() for row in hashes_of(each)] for each in prompts]
    assert (plan_shared_prefixes(listed, block_size=BLOCK).order == plan.order).all()
    long = plan_shared_prefixes([hashes_of([1] * 4)] * 2, block_size=BLOCK, token_counts=[2**62, 9])
    assert long.runs.block_ends.tolist() == [1]


def hit_tokens(prompts, order, page_count):
    """Cached tokens of all requests, one after another, in a cache of so many pages."""
    cache, total = PagedCache(PagePool(page_count + 1), BLOCK), 0
    for i in order:
        sequence, cached = cache.open(hashes_of(prompts[i]), len(prompts[i]))
        cache.name_blocks(sequence, hashes_of(prompts[i]))
        cache.close(sequence)
        total += cached
    return total


@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=40)
def test_in_the_planned_order_each_shared_block_is_computed_once(seed):
    """SGLang's theorem: a cache that holds the longest request hits as often as an endless one."""
    rng = np.random.default_rng(seed)
    prompts = random_prompts(rng, 12)
    order = plan_shared_prefixes([hashes_of(each) for each in prompts], block_size=BLOCK).order.tolist()
    smallest = max(-(-len(each) // BLOCK) for each in prompts)
    hits = hit_tokens(prompts, order, smallest)
    assert hits == hit_tokens(prompts, order, 1000)
    assert hits >= hit_tokens(prompts, rng.permutation(12).tolist(), smallest)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"token_counts": [8]}, "token_counts: 1 for 2 sequences of hashes"),
        ({"query_counts": [1, 1, 1]}, "query_counts: 3 for 2 sequences of hashes"),
        ({"token_counts": [8, 0]}, r"token_counts\[1\]: 0 is not 1 or more"),
        ({"token_counts": [8, 9], "query_counts": [1, 10]}, r"query_counts\[1\]: 10 is not in \[1, 9\]"),
        ({"query_counts": [0, 1]}, r"query_counts\[0\]: 0 is not in \[1, 9\]"),
        ({"block_size": 0}, r"block_size: 0 is not in \[1, 65536\]"),
    ],
)
def test_a_wrong_batch_is_refused_by_name(more, text):
    with pytest.raises(BadRequest, match=text):
        plan_shared_prefixes([hashes_of([1] * 8), hashes_of([2] * 8)], **{"block_size": BLOCK, **more})
