"""A schema: the modules that prompts may import, and how they lie."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from .errors import NOWHERE, Place, fail, shown, shown_tag
from .markup import Element, Text, attributes_of, element_lines, read, text_lines

__all__ = ["Import", "Module", "Parameter", "Scaffold", "Schema", "Union", "Use", "parse_schema"]

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


def parse_schema(text: str) -> Schema:
    """Raises PmlError."""
    from .rules import check

    root = read(text, "schema")
    name = attributes_of(root, ("name",))["name"]
    scaffolds = [_scaffold(item) for item in root.items if isinstance(item, Element) and item.tag == "scaffold"]
    others = [item for item in root.items if isinstance(item, Text) or item.tag != "scaffold"]
    items = [_item(item, "schema", {"module": _module, "union": _union}) for item in others]
    schema = Schema(name, tuple(items), tuple(scaffolds), root.place)
    check(schema)
    return schema


def _item(item: Element | Text, around: str, parsers: Mapping[str, Callable[[Element], Any]]) -> Any:
    if isinstance(item, Text):
        return item
    if item.tag not in parsers:
        allowed = ["text", *(f"<{tag}>" for tag in parsers), *(["<scaffold>"] if around == "schema" else [])]
        fail(item.place, f"{shown_tag(item.tag)} in <{around}>", " or ".join((", ".join(allowed[:-1]), allowed[-1])))
    return parsers[item.tag](item)


def _module(element: Element) -> Module:
    parsers = {"module": _module, "union": _union, "parameter": _parameter, "import": _import}
    values = attributes_of(element, ("name",), ("cache",))
    cache = values.get("cache", "true")
    if cache not in ("true", "false"):
        fail(element.place, f"cache={shown(cache)}", 'cache="true" or cache="false"')
    items = tuple(_item(item, "module", parsers) for item in element.items)
    return Module(values["name"], items, cache == "true", element.place)


def _union(element: Element) -> Union:
    scaffold = attributes_of(element, (), ("scaffold",)).get("scaffold")
    return Union(tuple(map(_module, _only(element, "module"))), scaffold, element.place)


def _parameter(element: Element) -> Parameter:
    values = attributes_of(element, ("name", "length"))
    length = values["length"]
    if not re.fullmatch("[0-9]{1,9}", length):
        fail(element.place, f"length={shown(length)}", LENGTH_RULE)
    _only(element)
    return Parameter(values["name"], int(length), element.place)


def _import(element: Element) -> Import:
    _only(element)
    return Import(attributes_of(element, ("name",))["name"], element.place)


def _scaffold(element: Element) -> Scaffold:
    name = attributes_of(element, ("name",))["name"]
    uses = []
    for each in _only(element, "use"):
        _only(each)
        uses.append(Use(attributes_of(each, ("name",))["name"], each.place))
    return Scaffold(name, tuple(uses), element.place)


def _only(element: Element, tag: str | None = None) -> list[Element]:
    """The element's elements, all of which have to have this tag. Text is refused."""
    elements = element.elements()
    for each in elements:
        if each.tag != tag:
            fail(each.place, f"{shown_tag(each.tag)} in <{element.tag}>", f"<{tag}>" if tag else "an empty element")
    return elements


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
