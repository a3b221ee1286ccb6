"""Checksums that a caller computes and verifies: beside gathers and scatters, in puts and gets."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import namespace, tokens

import kvstore
from kvstore import Layout, gather, gather_with_checksums, scatter_verified

PAGES, COUNT = 9, 4
CHOSEN = [7, 0, 3, 5]


class Paged:
    """An engine's pages, and the store's blocks of the same things, of two stripes each."""

    def __init__(self, client: kvstore.Client) -> None:
        rng = np.random.default_rng(5)
        self.pages = [rng.standard_normal((2, PAGES, 16, 8, 64)).astype(np.float16) for _ in range(3)]
        self.layout = Layout.of(self.pages, "cbthf")
        self.cache = self.layout.bind(self.pages)
        self.space = client.open(namespace(self.layout.store_block_bytes))
        self.hashes = self.space.hash_chain(tokens(16 * COUNT))
        self.seeds = self.space.checksum_seeds(self.hashes)
        self.rows = np.zeros((COUNT, self.space.block_bytes), np.uint8)
        self.blocks = self.layout.store_block(COUNT).bind(self.rows)
        self.sums = np.zeros((COUNT, self.space.stripe_count), np.uint64)

    def gather(self) -> None:
        gather_with_checksums(self.blocks, self.cache, blocks=CHOSEN, seeds=self.seeds, checksums=self.sums)


@pytest.fixture
def paged(client):
    return Paged(client)


def test_a_put_takes_the_checksums_of_a_gather_and_a_get_brings_them_back(paged):
    assert paged.space.stripe_count == 2
    plain = np.zeros_like(paged.rows)
    gather(paged.layout.store_block(COUNT).bind(plain), paged.cache, blocks=CHOSEN)
    paged.gather()
    assert (paged.rows == plain).all()
    assert paged.space.put(paged.hashes, paged.rows, checksums=paged.sums).stored == COUNT

    told = np.zeros_like(paged.sums)
    paged.rows[:] = 0
    assert paged.space.get(paged.hashes, paged.rows, checksums=told).block_count == COUNT
    assert (told == paged.sums).all() and (paged.rows == plain).all()

    target = [np.zeros_like(each) for each in paged.pages]
    verdicts = np.full(COUNT, 7, np.uint32)
    to = paged.layout.bind(target)
    scatter_verified(to, paged.blocks, blocks=[1, 2, 8, 4], seeds=paged.seeds, checksums=told, verdicts=verdicts)
    assert not verdicts.any()
    for made, wanted in zip(target, paged.pages, strict=True):
        assert (made[:, [1, 2, 8, 4]] == wanted[:, CHOSEN]).all()


def test_a_load_brings_the_checksums_of_the_blocks_it_found(paged):
    paged.gather()
    paged.space.put(paged.hashes[:2], paged.rows[:2], checksums=paged.sums[:2])
    told = np.zeros_like(paged.sums)
    loaded = paged.space.load(paged.hashes, np.empty_like(paged.rows), checksums=told)
    assert loaded.block_count == 2
    assert (told[:2] == paged.sums[:2]).all() and not told[2:].any()


@pytest.mark.parametrize("stripe", [0, 1])
def test_nodes_refuse_blocks_whose_checksums_are_others(paged, stripe):
    paged.gather()
    paged.sums[2, stripe] ^= np.uint64(1)
    put = paged.space.put(paged.hashes, paged.rows, checksums=paged.sums)
    assert isinstance(put.why, kvstore.CorruptBlock) and "block 2" in str(put.why), put.why
    assert paged.space.match(paged.hashes).block_count == 2


@pytest.mark.parametrize("bad", range(COUNT))
def test_a_damaged_block_is_not_scattered(paged, bad):
    paged.gather()
    paged.rows[bad, -1] ^= 1
    target = [np.zeros_like(each) for each in paged.pages]
    verdicts = np.full(COUNT, 7, np.uint32)
    to = paged.layout.bind(target)
    scatter_verified(to, paged.blocks, blocks=CHOSEN, seeds=paged.seeds, checksums=paged.sums, verdicts=verdicts)
    assert verdicts.tolist() == [0] * bad + [1] * (COUNT - bad)
    for made, wanted in zip(target, paged.pages, strict=True):
        assert (made[:, CHOSEN[:bad]] == wanted[:, CHOSEN[:bad]]).all() and not made[:, CHOSEN[bad:]].any()


def test_checksums_are_bound_to_the_blocks_names(paged, client):
    other = client.open(namespace(paged.space.block_bytes))
    assert not np.isin(other.checksum_seeds(paged.hashes), paged.seeds).any()
    assert len(set(paged.seeds.tolist())) == COUNT
    paged.gather()
    assert other.put(other.hash_chain(tokens(16 * COUNT)), paged.rows, checksums=paged.sums).stored == 0
    states = kvstore.Namespace(model="m", kind="set", block_bytes_max=4096)
    with pytest.raises(kvstore.BadRequest, match=r"^checksum_seeds: a set's depend on each block's length"):
        kvstore._kvstore.checksum_seeds(states, paged.hashes)


def test_checksums_of_other_sizes_and_types_are_refused_by_name(paged):
    seeds, sums, verdicts = paged.seeds, paged.sums, np.zeros(COUNT, np.uint32)
    space, hashes, rows = paged.space, paged.hashes, paged.rows

    def refuses(text, call, *arguments, **more):
        with pytest.raises(kvstore.BadRequest, match=text):
            call(*arguments, **more)

    short = "^checksums: 6, 4 blocks of 2 stripes have 8"
    for call in (space.get, space.load, space.put, space.submit_get, space.submit_load, space.submit_put):
        refuses(short, call, hashes, rows, checksums=sums[:3])
        refuses("^checksums: the elements are not uint64", call, hashes, rows, checksums=sums.view(np.uint32))
        refuses("^checksums: the elements are not uint64", call, hashes, rows, checksums=sums.view(np.float64))
        refuses("^checksums: the array is strided", call, hashes, rows, checksums=np.zeros((4, 4), np.uint64)[:, ::2])
    read_only = sums.copy()
    read_only.flags.writeable = False
    refuses("^checksums: the memory is read-only", space.get, hashes, rows, checksums=read_only)
    assert space.put(hashes, rows, checksums=read_only).stored == 0  # a put only reads them; they are wrong

    def gathers(text, **more):
        given = {"blocks": CHOSEN, "seeds": seeds, "checksums": sums} | more
        refuses(text, gather_with_checksums, paged.blocks, paged.cache, **given)

    gathers("^seeds: 3 for 4 blocks", seeds=seeds[:3])
    gathers("^checksums: 6, 4 blocks have 8", checksums=sums[:3])
    gathers("^checksums: the elements are not uint64", checksums=sums.astype(np.uint32))
    gathers("^count: 17 rows are not whole blocks of 16 tokens", count=17)
    gathers("^count: 80 rows, target has 64", blocks=[*CHOSEN, 1])
    gathers("a slot or block is beyond the cache", blocks=[7, 0, 3, PAGES])
    large = paged.layout.store_block(2, block_tokens=24)
    with pytest.raises(kvstore.BadRequest, match=r"^blocks: of 16 tokens, which do not divide the 24 of target"):
        gather_with_checksums(
            large.bind(np.zeros((2, paged.space.block_bytes * 3 // 2), np.uint8)),
            paged.cache,
            blocks=[1, 2, 3],
            seeds=seeds[:2],
            checksums=np.zeros((2, 3), np.uint64),
        )
    with pytest.raises(kvstore.Mismatch, match=r"^target: not bound to store_block"):
        gather_with_checksums(paged.cache, paged.cache, blocks=CHOSEN, seeds=seeds, checksums=sums)

    def scatters(text, **more):
        given = {"blocks": CHOSEN, "seeds": seeds, "checksums": sums, "verdicts": verdicts} | more
        refuses(text, scatter_verified, paged.cache, paged.blocks, **given)

    scatters("^verdicts: 3, 4 blocks have 4", verdicts=verdicts[:3])
    scatters("^verdicts: the elements are not uint32", verdicts=verdicts.astype(np.uint64))
    scatters("^seeds: 0 for 4 blocks", seeds=[])
