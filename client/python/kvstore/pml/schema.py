"""A schema: the modules that prompts may import, and how they lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from .errors import NOWHERE, Place
from .markup import Text, element_lines, text_lines

__all__ = ["Import", "Module", "Parameter", "Scaffold", "Schema", "Union", "Use"]

LENGTH_MAX = 1 << 20
LENGTH_RULE = f"a length of 1 to {LENGTH_MAX} tokens"


@dataclass(frozen=True)
class Parameter:
    """``length`` positions for an argument's tokens."""

    name: str
    length: int
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True)
class Import:
    """A module of the schema, written elsewhere, as a nested module. Its name here is the last of its path."""

    path: str
    place: Place = field(default=NOWHERE, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Union:
    """Modules of which a prompt imports at most one. ``scaffold`` names the one that is encoded together with the module around."""

    members: tuple[Module, ...]
    scaffold: str | None = None
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True)
class Module:
    name: str
    items: tuple[Text | Parameter | Import | Union | Module, ...]
    is_cached: bool = True
    place: Place = field(default=NOWHERE, compare=False, repr=False)

    @cached_property
    def children(self) -> dict[str, Child]:
        """The modules that a prompt may name within this one."""
        return {child.item.name: child for child in self.each_child()}

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        return {item.name: item for item in self.items if isinstance(item, Parameter)}

    def each_child(self) -> Iterator[Child]:
        for index, item in enumerate(self.items):
            if isinstance(item, Union):
                yield from (Child(index, member, item) for member in item.members)
            elif isinstance(item, (Module, Import)):
                yield Child(index, item, None)


class Child(NamedTuple):
    """A module within another: the item's index there, and the union around it."""

    item_index: int
    item: Module | Import
    union: Union | None

    def definition(self, parent: str) -> str:
        """Where the module is written, in a parent that is written at the given path."""
        return self.item.path if isinstance(self.item, Import) else joined(parent, self.item.name)


@dataclass(frozen=True)
class Use:
    path: str
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True)
class Scaffold:
    """Modules that are encoded together where a prompt imports them all."""

    name: str
    uses: tuple[Use, ...]
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True)
class Schema:
    """Made by :func:`parse_schema`. ``str()`` is its canonical text."""

    name: str
    items: tuple[Text | Union | Module, ...]
    scaffolds: tuple[Scaffold, ...] = ()
    place: Place = field(default=NOWHERE, compare=False, repr=False)

    def __hash__(self) -> int:
        return hash(self.name)  # a key for what is kept of a schema: its items would be walked each time

    def __str__(self) -> str:
        items = [*map(_lines, self.items), *map(_scaffold_lines, self.scaffolds)]
        return "\n".join(element_lines("schema", [("name", self.name)], items)) + "\n"

    @cached_property
    def modules(self) -> dict[str, Module]:
        """The written modules by path. The schema itself is the module at "" around them."""
        found = {"": Module("", self.items, place=self.place)}
        waiting = [""]
        while waiting:
            parent = waiting.pop()
            for child in found[parent].each_child():
                if isinstance(child.item, Module):
                    path = child.definition(parent)
                    found[path] = child.item
                    waiting.append(path)
        return found


def joined(parent: str, name: str) -> str:
    return f"{parent}/{name}" if parent else name


def _lines(item: Text | Parameter | Import | Union | Module) -> list[str]:
    if isinstance(item, Text):
        return text_lines(item.text)
    if isinstance(item, Parameter):
        return element_lines("parameter", [("name", item.name), ("length", str(item.length))])
    if isinstance(item, Import):
        return element_lines("import", [("name", item.path)])
    if isinstance(item, Union):
        attributes = [] if item.scaffold is None else [("scaffold", item.scaffold)]
        return element_lines("union", attributes, map(_lines, item.members))
    attributes = [("name", item.name), *([] if item.is_cached else [("cache", "false")])]
    return element_lines("module", attributes, map(_lines, item.items))


def _scaffold_lines(scaffold: Scaffold) -> list[str]:
    uses = (element_lines("use", [("name", use.path)]) for use in scaffold.uses)
    return element_lines("scaffold", [("name", scaffold.name)], uses)
