"""Engines' block names, from a namespace's record: token hashes as each engine makes them, and the connector's names for blocks."""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..doors.groups import LayerGroup, usable
from ..doors.names import BlockNames
from ..errors import Unsupported
from ..namespaces import Namespace

#: Start of vLLM's first hash if PYTHONHASHSEED is not set.
HASH_SEED = "vllm-none-hash"

_HASH_BYTES = 32
_GROUP = re.compile(r"(full|mla|window|state)(\d*)")


@dataclass(frozen=True)
class Group(LayerGroup):
    """As the record tells them."""

    window_tokens: int = 0
    is_state: bool = False


@dataclass(frozen=True)
class Naming(BlockNames):
    """Block names as a namespace's record defines them. A block has groups times parts names, in this order."""

    hash: str
    #: 0: unknown, as for namespaces without engines' prefixes.
    block_size: int
    #: Tokens of one hash: fewer than a block's where an engine hashes less than a page.
    hash_tokens: int
    groups: tuple[Group, ...] = (Group(),)
    part_count: int = 1
    #: Whether blocks form prefixes in the store itself.
    is_chain: bool = False

    @classmethod
    def of(cls, namespace: Namespace) -> Naming:
        """Raises Unsupported if the record lacks the fields."""
        fields = namespace.fields
        made_by = fields.get("hash", "")
        if not namespace.is_set:
            return cls(made_by, namespace.block_size, namespace.block_size, is_chain=True)
        if made_by == "sglang" and "x.page_size" in fields:
            size = int(fields["x.page_size"])
            return cls(made_by, size, size, part_count=int(fields.get("x.parts", 1)))
        if made_by.startswith("vllm-") and "x.block_size" in fields and fields.get("layout", "").startswith("vllm-"):
            size = int(fields["x.block_size"])
            return cls(
                made_by,
                size,
                int(fields.get("x.hash_tokens", size)),
                _groups_of(fields.get("x.groups", "")),
                int(fields.get("x.parts", fields.get("x.ranks", 1))),
            )
        return cls(made_by, 0, 0)

    @property
    def name_count(self) -> int:
        """Names of one block."""
        return len(self.groups) * self.part_count

    def hashes(
        self,
        namespace: Namespace,
        tokens: npt.NDArray[np.uint32],
        *,
        seed: str = HASH_SEED,
        cache_salt: str = "",
    ) -> list[bytes]:
        """Hashes of all whole blocks of the tokens. Raises Unsupported where only the engine can make them."""
        if self.block_size == 0:
            raise Unsupported("token_ids: the namespace does not say how its blocks are named: ask with hashes")
        if self.hash == "vllm-sha256_cbor":
            made = vllm_hashes(tokens, self.hash_tokens, seed=seed, cache_salt=cache_salt)
            return made[self.block_size // self.hash_tokens - 1 :: self.block_size // self.hash_tokens]
        if cache_salt:
            raise Unsupported(f"cache_salt: only with vLLM's sha256_cbor, not {self.hash or 'this namespace'}")
        if self.hash == "sglang":
            return sglang_hashes(tokens, self.block_size)
        if self.is_chain and self.hash in ("", "kvstore"):
            return [bytes(each) for each in namespace.hash_chain(tokens)]
        raise Unsupported(f"token_ids: only the engine itself makes hashes of {self.hash!r}: ask with hashes")

    def usable(self, held: npt.NDArray[np.bool_]) -> int:
        """How many leading blocks can serve a request. ``held``: [group, block]."""
        return usable(self.groups, self.block_size, held)


def _groups_of(text: str) -> tuple[Group, ...]:
    """Groups from the connector's ``x.groups``, which is a digest if it is too long for a field."""
    made = []
    for each in text.split("; "):
        kind = _GROUP.fullmatch(each.split(" ", 1)[0])
        if kind is None:
            raise Unsupported("namespace: its record does not say which groups of layers the blocks have")
        made.append(Group(int(kind[2]) if kind[1] == "window" else 0, kind[1] == "state"))
    return tuple(made)


# -- hashes


def vllm_hashes(
    tokens: npt.NDArray[np.uint32],
    hash_tokens: int,
    *,
    seed: str = HASH_SEED,
    cache_salt: str = "",
) -> list[bytes]:
    """vLLM's ``sha256_cbor`` of release 0.32: SHA-256 of [hash before, [tokens], extra keys] in CBOR, without the adapter
    (kvstore.vllm.adapters). Older releases do not mark a salt as such, and hash it differently.
    """
    of_first = [_array(_text("cache_salt"), _text(cache_salt))] if cache_salt else []
    count = len(tokens) // hash_tokens
    numbers, ends = _cbor_numbers(tokens[: count * hash_tokens])
    begin, middle = b"\x83" + _head(2, _HASH_BYTES), _head(4, hash_tokens)
    last = hashlib.sha256(_text(seed)).digest()
    made: list[bytes] = []
    start = 0
    for i in range(count):
        end = int(ends[(i + 1) * hash_tokens - 1])
        more = [] if i else of_first
        found = hashlib.sha256(begin + last + middle)
        found.update(numbers[start:end])
        found.update(_array(*more) if more else b"\xf6")
        last = found.digest()
        made.append(last)
        start = end
    return made


def sglang_hashes(tokens: npt.NDArray[np.uint32], page_size: int) -> list[bytes]:
    """SGLang's page hashes: SHA-256 of the hash before and the tokens, four bytes each."""
    raw = np.ascontiguousarray(tokens, "<u4").tobytes()
    step = 4 * page_size
    last = b""
    made: list[bytes] = []
    for begin in range(0, len(raw) - step + 1, step):
        last = hashlib.sha256(last + raw[begin : begin + step]).digest()
        made.append(last)
    return made


def _head(major: int, value: int) -> bytes:
    """The shortest form, as in canonical CBOR."""
    if value < 24:
        return bytes([major << 5 | value])
    for info, form, limit in ((24, ">BB", 8), (25, ">BH", 16), (26, ">BI", 32)):
        if value < 1 << limit:
            return struct.pack(form, major << 5 | info, value)
    return struct.pack(">BQ", major << 5 | 27, value)


def _text(text: str) -> bytes:
    raw = text.encode()
    return _head(3, len(raw)) + raw


def _array(*items: bytes) -> bytes:
    return _head(4, len(items)) + b"".join(items)


def _cbor_numbers(tokens: npt.NDArray[np.uint32]) -> tuple[memoryview, npt.NDArray[np.int64]]:
    """All tokens in CBOR, concatenated, and each one's end: computed at once, since a prompt may have 10^5 tokens."""
    lengths = np.select([tokens < 24, tokens < 1 << 8, tokens < 1 << 16], [1, 2, 3], 5).astype(np.int64)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    raw = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    big = tokens.astype(">u4").view(np.uint8).reshape(-1, 4)
    for length, head in ((1, 0), (2, 0x18), (3, 0x19), (5, 0x1A)):
        these = np.flatnonzero(lengths == length)
        if length == 1:
            raw[starts[these]] = big[these, 3]
            continue
        raw[starts[these]] = head
        for i in range(1, length):
            raw[starts[these] + i] = big[these, 4 - length + i]
    return memoryview(raw.tobytes()), ends
