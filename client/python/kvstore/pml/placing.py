"""Where a prompt's texts and arguments lie."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .errors import fail, shown_tag
from .lengths import Tokenizer, lengths_of, tokens_of
from .markup import Text
from .prompt import Imported, Prompt
from .schema import Module, Parameter, joined

__all__ = ["Kind", "Piece", "Placed", "Placing"]

Kind = Literal["module", "argument", "text"]


class Piece(NamedTuple):
    """At least one token, at consecutive positions from ``begin``."""

    kind: Kind
    name: str
    tokens: tuple[int, ...]
    begin: int


class Placed(NamedTuple):
    """``shift``: the module's first position, less that in the schema."""

    module: Module
    shift: int

    @property
    def is_cached(self) -> bool:
        return self.module.is_cached


class Placing:
    """``pieces`` in the order of positions, ``modules`` by path in the same order. A text at the schema's top level is a module of its own
    named "#1", "#2" and so on. It follows the nearest imported module before it in the schema; without one it begins the prompt.
    """

    def __init__(self, prompt: Prompt, tokenizer: Tokenizer, *, is_compact: bool) -> None:
        self.pieces: list[Piece] = []
        self.modules: dict[str, Placed] = {}
        self._prompt, self._tokenizer, self._is_compact = prompt, tokenizer, is_compact
        self._definitions = prompt.schema.modules
        self._lengths = lengths_of(prompt.schema, tokenizer)
        self._cursor = 0
        self._place()

    def _place(self) -> None:
        root = self._definitions[""]
        children = {item.name: root.children[item.name] for item in self._prompt.items if isinstance(item, Imported)}
        imported = {child.item_index for child in children.values()}
        followers: dict[int, list[tuple[str, int]]] = {-1: []}  # the schema's own texts, by the item that they follow
        last, count = -1, 0
        for index, item in enumerate(root.items):
            if index in imported:
                last = index
                followers[index] = []
            elif isinstance(item, Text):
                count += 1
                followers[last].append((f"#{count}", index))
        self._place_texts(followers[-1])
        for part in self._prompt.items:
            if isinstance(part, Text):
                tokens = tokens_of(self._tokenizer, part.text)
                self._add("text", "", tokens, self._cursor)
                self._cursor += len(tokens)
            else:
                child = children[part.name]
                definition, begin, shift = child.definition(""), *self._begin(child.item_index)
                self._place_module(part.name, definition, part, begin, shift)
                self._cursor = begin + self._lengths[definition].length
                self._place_texts(followers[child.item_index])

    def _begin(self, index: int) -> tuple[int, int]:
        """Where an item of the schema's top level begins, and how far that is from its place in the schema."""
        offset = self._lengths[""].offsets[index]
        begin = self._cursor if self._is_compact else max(self._cursor, offset)
        return begin, begin - offset

    def _place_texts(self, texts: list[tuple[str, int]]) -> None:
        for name, index in texts:
            begin, shift = self._begin(index)
            tokens = self._lengths[""].tokens[index]
            self.modules[name] = Placed(Module(name, ()), shift)
            self._add("module", name, tokens, begin)
            self._cursor = begin + len(tokens)

    def _place_module(self, path: str, definition: str, imported: Imported, begin: int, shift: int) -> None:
        module, lengths = self._definitions[definition], self._lengths[definition]
        self.modules[path] = Placed(module, shift)
        arguments = {argument.name: argument.text for argument in imported.arguments}
        within = {module.children[item.name].item_index: item for item in imported.items}
        for index, item in enumerate(module.items):
            at = begin + lengths.offsets[index]
            if isinstance(item, Text):
                self._add("module", path, lengths.tokens[index], at)
            elif isinstance(item, Parameter):
                if item.name in arguments:
                    tokens = self._argument(imported, item, arguments[item.name])
                    self._add("argument", f"{path}:{item.name}", tokens, at)
            elif index in within:
                name = within[index].name
                inner = module.children[name].definition(definition)
                self._place_module(joined(path, name), inner, within[index], at, shift)

    def _argument(self, imported: Imported, parameter: Parameter, text: str) -> tuple[int, ...]:
        tokens = tokens_of(self._tokenizer, text)
        if len(tokens) > parameter.length:
            found = f"{len(tokens)} tokens in the argument '{parameter.name}' of {shown_tag(imported.name)}"
            fail(imported.place, found, f"at most {parameter.length}")
        return tokens

    def _add(self, kind: Kind, name: str, tokens: tuple[int, ...], begin: int) -> None:
        if tokens:
            self.pieces.append(Piece(kind, name, tokens, begin))
