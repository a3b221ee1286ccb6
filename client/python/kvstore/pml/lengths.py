"""What a tokenizer makes of a schema: the tokens of each text, and where each item of a module begins."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from ..errors import BadRequest
from .errors import fail, shown
from .markup import Text
from .schema import Import, Module, Parameter, Schema, Union, joined

__all__ = ["Lengths", "ModuleLengths", "Tokenizer", "lengths_of", "tokens_of"]

TOKEN_COUNT = 1 << 32
POSITION_MAX = (1 << 31) - 1


class Encoder(Protocol):
    """As Hugging Face's tokenizers."""

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]: ...


Tokenizer = Callable[[str], Sequence[int]] | Encoder


def tokens_of(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Raises BadRequest for what is no token."""
    encode: Any = getattr(tokenizer, "encode", None)
    made = tokenizer(text) if encode is None else encode(text, add_special_tokens=False)  # type: ignore[operator]
    try:
        tokens = tuple(map(operator.index, made))
    except TypeError as error:
        raise BadRequest(f"tokenizer: {error} in the tokens of {shown(text)}; allowed are integers") from error
    for token in tokens:
        if not 0 <= token < TOKEN_COUNT:
            raise BadRequest(f"tokenizer: {token} is a token of {shown(text)}; allowed are 0 to {TOKEN_COUNT - 1}")
    return tokens


@dataclass(frozen=True)
class ModuleLengths:
    """Positions from the module's first one. ``tokens`` has those of the items that are texts, by index."""

    offsets: tuple[int, ...]
    tokens: dict[int, tuple[int, ...]]
    length: int


class Lengths:
    """Of the modules of a schema, by the path where each is written."""

    def __init__(self, schema: Schema, tokenizer: Tokenizer) -> None:
        self._modules: dict[str, ModuleLengths] = {}
        self._schema, self._tokenizer = schema, tokenizer
        self._measure("", schema.modules[""])
        del self._schema, self._tokenizer  # the schema is the key that this object is kept by

    def __getitem__(self, definition: str) -> ModuleLengths:
        return self._modules[definition]

    def _measure(self, definition: str, module: Module) -> int:
        known = self._modules.get(definition)
        if known is not None:
            return known.length
        offsets: list[int] = []
        tokens: dict[int, tuple[int, ...]] = {}
        length = 0
        for index, item in enumerate(module.items):
            offsets.append(length)
            if isinstance(item, Text):
                tokens[index] = tokens_of(self._tokenizer, item.text)
                length += len(tokens[index])
            elif isinstance(item, Parameter):
                length += item.length
            elif isinstance(item, Union):
                length += max(self._measure(joined(definition, member.name), member) for member in item.members)
            elif isinstance(item, Import):
                length += self._measure(item.path, self._schema.modules[item.path])
            else:
                length += self._measure(joined(definition, item.name), item)
            if length > POSITION_MAX:
                fail(item.place, f"a module of {length} positions up to here", f"at most {POSITION_MAX}")
        self._modules[definition] = ModuleLengths(tuple(offsets), tokens, length)
        return length


_kept: WeakKeyDictionary[Schema, tuple[Tokenizer, Lengths]] = WeakKeyDictionary()


def lengths_of(schema: Schema, tokenizer: Tokenizer) -> Lengths:
    """Kept till another tokenizer is used with the schema: its texts are tokenised once for all prompts."""
    kept = _kept.get(schema)
    if kept is not None and kept[0] == tokenizer:
        return kept[1]
    lengths = Lengths(schema, tokenizer)
    _kept[schema] = tokenizer, lengths
    return lengths
