"""Prompt modules of a request: leading runs of tokens, each with the keys and values of a prompt that has this run alone.

A request names its modules in ``kv_transfer_params``: ``{"modules": [[first token, token count], ...]}``. They follow one another from token
0, because a connector gives vLLM one leading run of tokens. A module is stored by a request that begins with it, computed from token 0,
and loaded at any place of a prompt: keys turn by the distance (module_pages.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..namespaces import Namespace
from .messages import Piece

#: A prompt of more is refused: its list alone would take the scheduler's thread long.
MODULES_MAX = 1024


class Refused(Exception):
    """A request's modules cannot be served. ``reason`` is one of stats.REFUSALS, the text is for the log."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class ModuleBlock:
    """The tokens of one block of a module. The last block of a module may have fewer than the others."""

    hash: bytes
    #: Its first token, in the prompt.
    first: int
    count: int
    #: From its place in the module alone to its place in the prompt.
    delta: int

    def piece(self, name: bytes, pages: list[int], block_size: int) -> Piece:
        """The block in the request's pages."""
        begin, last = self.first // block_size, (self.first + self.count - 1) // block_size
        return Piece(name, begin, self.first, self.count, self.delta, tuple(pages[begin : last + 1]))


@dataclass(frozen=True)
class Modules:
    """A request's modules. Without blocks: they were refused.

    1. A block's hash binds the request's salt, and the tokens of its module up to the block's end: neither its place nor its neighbours.
    2. Either all blocks up to ``token_count`` are loaded, or the engine computes everything: a token computed behind the modules that are
       there would see them, and so would not be what its module has alone.
    """

    blocks: tuple[ModuleBlock, ...] = ()
    #: How many of the blocks are the first module's: computed at their own places, they are what that module has alone.
    own_count: int = 0
    #: Tokens to load: all of the modules', but for the prompt's last, which vLLM has to compute.
    token_count: int = 0
    module_count: int = 0
    #: How many blocks have tokens to load.
    needed_count: int = field(init=False)

    def __post_init__(self) -> None:
        count = sum(block.first < self.token_count for block in self.blocks)
        object.__setattr__(self, "needed_count", count)

    @property
    def hashes(self) -> list[bytes]:
        return [block.hash for block in self.blocks]

    def computed_count(self, token_count: int, block_size: int) -> int:
        """How many blocks of the first module are complete once the engine has computed so many tokens."""
        if self.own_count == 0:
            return 0
        last = self.blocks[self.own_count - 1]
        return self.own_count if token_count >= last.first + last.count else token_count // block_size

    def pieces(self, names: list[bytes], first: int, pages: list[int], block_size: int) -> list[Piece]:
        """The blocks with these names, from ``first`` on, in the request's pages."""
        blocks = self.blocks[first : first + len(names)]
        return [block.piece(name, pages, block_size) for name, block in zip(names, blocks, strict=True)]

    def pieces_to_load(self, names: list[bytes], pages: list[int], block_size: int) -> list[Piece]:
        """All that a load needs. ``names`` are the needed blocks'."""
        pieces = self.pieces(names, 0, pages, block_size)
        last = pieces[-1]
        pieces[-1] = last._replace(token_count=min(last.token_count, self.token_count - last.first))
        return pieces

    def tokens_of(self, is_counted: Any) -> int:
        """Tokens to load of the blocks that ``is_counted`` marks."""
        marked = zip(self.blocks[: self.needed_count], is_counted, strict=True)
        return sum(min(block.count, self.token_count - block.first) for block, is_it in marked if is_it)


#: Of a request whose modules were refused: the engine computes it, and nothing of it is looked up or stored.
REFUSED = Modules()


def modules_of(request: Any, block_size: int) -> Modules | None:
    """The request's modules, or None. Raises :class:`Refused`."""
    said = (request.kv_transfer_params or {}).get("modules")
    if said is None or said == []:
        return None
    token_count = int(request.num_prompt_tokens)
    modules = _checked(said, token_count)
    if not request.cache_salt:
        raise Refused("salt", "the request has no cache_salt, under which modules are kept")
    if request.prompt_token_ids is None or request.prompt_embeds is not None or request.mm_features:
        raise Refused("prompt", "the prompt has more than tokens: images or embeddings")
    if getattr(request, "resumable", False):
        raise Refused("prompt", "the prompt grows: its input is a stream")
    if request.skip_reading_prefix_cache:
        raise Refused(
            "prompt", "the request wants all of its prompt computed, for log-probabilities of the prompt, say"
        )
    tokens = np.asarray(request.prompt_token_ids, dtype="<u4")
    blocks = [list(_blocks_of(tokens, first, count, request.cache_salt, block_size)) for first, count in modules]
    return Modules(
        blocks=tuple(block for of_module in blocks for block in of_module),
        own_count=len(blocks[0]),
        token_count=min(sum(modules[-1]), token_count - 1),
        module_count=len(modules),
    )


def _checked(said: Any, token_count: int) -> list[tuple[int, int]]:
    if not isinstance(said, (list, tuple)):
        raise Refused("form", f"modules is {_short(said)}, allowed are pairs [first token, token count]")
    if len(said) > MODULES_MAX:
        raise Refused("many", f"modules has {len(said)} entries, allowed are at most {MODULES_MAX}")
    end = 0
    modules = []
    for i, each in enumerate(said):
        if not isinstance(each, (list, tuple)) or len(each) != 2 or not all(_is_whole(number) for number in each):
            raise Refused(
                "form", f"modules[{i}] is {_short(each)}, allowed are two whole numbers, [first token, token count]"
            )
        first, count = each
        if first < 0 or count < 1:
            raise Refused("form", f"modules[{i}] is {_short(each)}, allowed are first tokens from 0 and counts from 1")
        if i == 0 and first != 0:
            raise Refused(
                "start",
                f"modules[0] begins at token {first}, allowed is 0: a connector gives vLLM a leading run of tokens",
            )
        if first < end:
            raise Refused(
                "overlap", f"modules[{i}] begins at token {first}, inside the module before, which ends at {end}"
            )
        if first > end:
            raise Refused(
                "gap",
                f"modules[{i}] begins at token {first}, the module before ends at {end}: tokens to compute between modules need "
                "get_computed_token_gaps, which vLLM's connectors do not have",
            )
        end = first + count
        if end > token_count:
            raise Refused("beyond", f"modules[{i}] ends at token {end}, the prompt has {token_count}")
        modules.append((first, count))
    return modules


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _short(said: Any) -> str:
    text = repr(said)
    return text if len(text) <= 80 else text[:77] + "..."


def _blocks_of(tokens: Any, first: int, count: int, salt: str, block_size: int) -> Iterator[ModuleBlock]:
    chain = hashlib.sha256(b"kvstore module\0" + salt.encode(errors="surrogatepass")).digest()
    for begin in range(first, first + count, block_size):
        size = min(block_size, first + count - begin)
        chain = hashlib.sha256(chain + size.to_bytes(4, "little") + tokens[begin : begin + size].tobytes()).digest()
        yield ModuleBlock(chain, begin, size, first)


def module_namespace(exact: Namespace) -> Namespace:
    """The namespace of modules beside that of exact prefixes: a module's rows do not depend on the kernels' order of pages."""
    engine = " ".join(exact.fields["x.engine"].split()[:2])
    fields = exact.fields | {
        "layout": "[layer][component][token][head][feature]",
        "x.engine": engine,
        "x.modules": "each alone from position 0",
    }
    fields.pop("x.hash_tokens", None)
    return Namespace.from_text("".join(f"{name}={value}\n" for name, value in sorted(fields.items())))
